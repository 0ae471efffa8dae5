"""Code out of completions of every form."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviato.rl import completion_text, extract_code
from aviato.rl.extraction import extract
from aviato.rl.reading.languages import INVISIBLE

CASES = {
    "answer": ("why\n<answer>\nprint(1)\n</answer> bye", "print(1)"),
    "last answer": ("<answer>a</answer> no: <answer>b</answer>", "b"),
    "open answer": ("so <answer>print(1)", "print(1)"),
    "empty answer": ("<answer> </answer>```python\nx\n```", "x"),
    "answer before fence": ("```python\nx\n```<answer>y</answer>", "y"),
    "fence in answer": ("<answer>```python\nprint(1)\n```</answer>", "print(1)"),
    "code": ("<code>print(2)</code>", "print(2)"),
    "fence": ("text\n```python\nprint(3)\n```\nmore", "print(3)"),
    "last fence": ("```python\na\n```\n```py\nb\n```", "b"),
    "marked before plain": ("```python\na\n```\n```\noutput\n```", "a"),
    "plain": ("```\na\n```", "a"),
    "another language": ("```bash\nls\n```", None),
    "open fence": ("```python\nprint(4)", "print(4)"),
    "four ticks": ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
    "windows": ("```python\r\nprint(5)\r\n```", "print(5)"),
    "nothing": ("I do not know", None),
    "none": (None, None),
    "messages": ([{"role": "assistant", "content": "<answer>m</answer>"}], "m"),
    "last message of the model": (
        [{"role": "assistant", "content": "<answer>a</answer>"}, {"role": "user", "content": "<answer>b</answer>"}],
        "a",
    ),
    "parts": ([{"role": "assistant", "content": [{"type": "text", "text": "<answer>p"}, {"type": "image"}]}], "p"),
    "bytes": (b"<answer>\xff</answer>", "�"),
}


@pytest.mark.parametrize("name", CASES)
def test_extract(name: str) -> None:
    completion, code = CASES[name]
    assert extract_code(completion) == code


def test_bare_text_is_code_only_where_asked() -> None:
    assert extract_code("print(1)", bare=True) == "print(1)"
    assert extract_code("print(1)") is None


PIECES = st.sampled_from(
    [
        "```",
        "~~~",
        "````",
        "```python",
        "```py",
        "~~~bash",
        "`",
        "\n",
        "\n  ",
        "\n\n",
        "-",
        "1.",
        ">",
        "<answer>",
        "</answer>",
        "<code>",
        "</code>",
        "<solution>",
        "<think>",
        "</think>",
        "<reasoning>",
        "[THINK]",
        "[/THINK]",
        "<|im_end|>",
        "</s>",
        "def f(x):\n",
        "return",
        "x=1",
        "print(1)",
        "I do not",
        "know.",
        '"""',
        "'",
        '"',
        "#",
        "\t",
        "\r\n",
        "\x00",
        "�",
        "\ufeff",
        "\u200b",
        "{",
        "}",
        "=",
        "C++",
    ]
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES, max_size=40).map(" ".join) | st.lists(PIECES, max_size=40).map("".join), st.booleans())
def test_any_text_is_answered(text: str, bare: bool) -> None:
    found = extract(text, bare=bare)
    assert (found.code is None) == (found.language is None) == (found.rule in ("none", "prose", "truncated_thinking"))
    if found.code is not None:
        assert found.code == found.code.strip()
        whole = text.replace("\r\n", "\n").replace("\r", "\n")
        for line in found.code.split("\n"):
            # Without its indentation, the characters that nobody sees, and thinking that was cut out of its middle.
            rest = iter(INVISIBLE.sub("", whole))
            assert all(character in rest for character in INVISIBLE.sub("", line).strip())


@given(st.text(alphabet="`<>/answercodpyth \n{}"))
def test_code_is_lines_of_the_text(text: str) -> None:
    code = extract_code(text)
    assert code is None or (code == code.strip() and all(line.strip() in text for line in code.split("\n")))


# What it begins with, and what then comes again and again.
HOSTILE = {
    "backticks": ("", "`"),
    "runs of backticks": ("", "".join("`" * n + "a" for n in range(300))),
    "shrinking runs": ("", "".join("`" * n + "<answer>" for n in range(400, 3, -1))),
    "tildes": ("", "~"),
    "tags": ("", "<answer"),
    "open tags": ("", "<answer>"),
    "tags on lines": ("", "<answer>\n"),
    "pairs": ("", "<answer>a</answer>"),
    "pairs on lines": ("", "<answer>\nI do not know\n</answer>\n"),
    "pairs of fences": ("", "<answer>```a```</answer>"),
    "tags in tags": ("", "<answer><code><solution>"),
    "thoughts in a line": ("", "<think>`</think>"),
    "thoughts on lines": ("", "<think>\n</think>\n"),
    "closings": ("", "x</think>"),
    "types": ("", "a<Think>"),
    "fences": ("", "```\n"),
    "marked fences": ("", "```python\n"),
    "glued fences": ("", "```python\na```\n"),
    "glued openings": ("", "a ```\n"),
    "closing marks in a fence": ("```python\n", "a</answer>\n"),
    "marks in a fence": ("```python\n", "<answer></think>"),
    "ends in a fence": ("```python\n", "<|im_end|>a"),
    "ends": ("", "a<|im_end|>b\n"),
    "ends of ends": ("", "<|im_end|>"),
    "quotes": ("", ">"),
    "deep lists": ("", "- "),
    "deep, then blank": ("- " * 30 + "a", "\n"),
    "deep, then a fence": ("- " * 15 + "```\n", "\n"),
    "lazy": (">" * 20 + "a\n", "a\n"),
    "items": ("", "- a\n"),
    "items of fences": ("", "- ```\na\n"),
    "blanks": ("", " "),
    "blank lines": ("", "\n"),
    "tabs": ("", "\t"),
    "code": ("", "a = 1\n"),
    "brackets": ("", "("),
    "words": ("", "A b c "),
    "prose in fences": ("", "```\nI do not know.\n```\n"),
    "quotation marks": ("", "\"'"),
    "invisible": ("", "\u200b"),
    "documents": ("", "```markdown\n"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_is_linear(name: str) -> None:
    # Each takes less than a second or two; what is not linear takes minutes, which the limit of a test ends.
    begin, again = HOSTILE[name]
    text = begin + again * (100_000 // len(again))
    for hostile in (text, "<answer>" + text, text + "\n```python\nx = 1\n```"):
        extract(hostile)
    extract(text, bare=True)


def test_ten_megabytes_take_no_time() -> None:
    assert extract_code("`" * 5_000_000 + "<answer" * 700_000) is None


def test_what_is_no_completion() -> None:
    with pytest.raises(TypeError, match="float"):
        completion_text(1.5)
