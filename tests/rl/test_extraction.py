"""Code out of completions of every form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviato.rl import completion_text, extract_code

CASES = {
    "answer": ("why\n<answer>\nprint(1)\n</answer> bye", "print(1)"),
    "last answer": ("<answer>a</answer> no: <answer>b</answer>", "b"),
    "open answer": ("so <answer>print(1)", "print(1)"),
    "empty answer": ("<answer> </answer>```python\nx\n```", None),
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


@given(st.text(alphabet="`<>/answercodpyth \n{}"))
def test_any_text_is_answered(text: str) -> None:
    code = extract_code(text)
    assert code is None or (code == code.strip() and code in text)


def test_ten_megabytes_take_no_time() -> None:
    assert extract_code("`" * 5_000_000 + "<answer" * 700_000) is None


def test_what_is_no_completion() -> None:
    with pytest.raises(TypeError, match="float"):
        completion_text(1.5)
