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
        for line in found.code.split("\n"):  # without its indentation, and the characters that nobody sees
            assert INVISIBLE.sub("", line).strip() in INVISIBLE.sub("", whole)


@given(st.text(alphabet="`<>/answercodpyth \n{}"))
def test_code_is_lines_of_the_text(text: str) -> None:
    code = extract_code(text)
    assert code is None or (code == code.strip() and all(line.strip() in text for line in code.split("\n")))


HOSTILE = {
    "backticks": "`" * 1_000_000,
    "runs of backticks": "".join("`" * (n % 300) + "a" for n in range(7_000)),
    "tildes": "~" * 1_000_000,
    "tags": "<answer" * 150_000,
    "open tags": "<answer>" * 125_000,
    "tags on lines": "<answer>\n" * 100_000,
    "pairs": "<answer>a</answer>" * 50_000,
    "pairs of fences": "<answer>```a```</answer>" * 40_000,
    "thoughts in a line": "<think>`</think>" * 60_000,
    "thoughts on lines": "<think>\n</think>\n" * 60_000,
    "closings": "x</think>" * 100_000,
    "open thoughts": "a<think>" * 125_000,
    "fences": "```\n" * 250_000,
    "marked fences": "```python\n" * 100_000,
    "glued fences": "```python\na```\n" * 70_000,
    "glued openings": "a ```\n" * 160_000,
    "closing marks in a fence": "```python\n" + "a</answer>\n" * 90_000,
    "ends": "a<|im_end|>b\n" * 70_000,
    "ends of ends": "<|im_end|>" * 100_000,
    "quotes": ">" * 1_000_000,
    "deep lists": "- " * 500_000,
    "deep, then blank": "- " * 30 + "a" + "\n" * 1_000_000,
    "lazy": ">" * 20 + "a\n" + "a\n" * 500_000,
    "items": "- a\n" * 250_000,
    "blanks": " " * 1_000_000,
    "blank lines": "\n" * 1_000_000,
    "tabs": "\t" * 1_000_000,
    "code": "a = 1\n" * 160_000,
    "code, then a fence": "a = 1\n" * 160_000 + "```",
    "prose in fences": "```\nI do not know.\n```\n" * 45_000,
    "quotation marks": "\"'" * 500_000,
    "invisible": "\u200b" * 1_000_000,
    "documents": "```markdown\n" * 80_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_is_read_in_linear_time(name: str) -> None:
    # Every one takes seconds at most; what is not linear takes minutes, which is what the limit of a test is for.
    extract(HOSTILE[name])
    extract(HOSTILE[name], bare=True)
    extract("<answer>" + HOSTILE[name])


def test_ten_megabytes_take_no_time() -> None:
    assert extract_code("`" * 5_000_000 + "<answer" * 700_000) is None


def test_what_is_no_completion() -> None:
    with pytest.raises(TypeError, match="float"):
        completion_text(1.5)
