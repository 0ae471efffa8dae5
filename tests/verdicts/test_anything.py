"""Whatever a model writes reaches the verdict of its own item, and harms none beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aviato.rl import CallCase, Outcome, ProgramCase, Task, TestCase, Verdict
from aviato.values.text import is_unicode

TEXTS = {
    "NUL": "\0",
    "NUL in the middle": "x = 1\0\ny = 2",
    "a lone surrogate": "\ud800",
    "a lone low surrogate in a text": "x = '\udfff'",
    "a pair of surrogates that is none": "\udc00\ud800",
    "all of latin-1": "".join(map(chr, range(256))),
    "binary that was decoded": bytes(range(256)).decode("utf-8", "surrogateescape"),
    "a BOM and no more": "\ufeff",
    "non-characters": "\ufffe\uffff\U0010ffff",
    "right to left": "\u202edef f(): pass",
    "escapes": "\x1b[2J\x1b]0;title\x07",
    "line ends of all kinds": "a\rb\r\nc\x0bd\x0ce\x85f\u2028g\u2029h",
    "a very long line": "x" * 300_000,
    "very many lines": "x = 1\n" * 100_000,
    "very deep": "(" * 5_000 + ")" * 5_000,
    "deep lists": "x = " + "[" * 90 + "]" * 90,
    "a format": "%s %(x)s {} {0} {x!r}",
    "a token": "0123456789abcdef" * 4,
    "JSON": '{"cases": 1}\n{"passed": true}',
    "a shell": "$(reboot); `reboot`; rm -rf / # '\"",
    "quotes": "'''\"\"\"\\",
    "a cookie of no encoding": "# coding: nope\nx = 1",
    "a cookie that decodes to something else": "# coding: utf-7\n+ADw-",
    "rot13": "# coding: rot13\nkey = 1",
}


@pytest.mark.parametrize("name", TEXTS)
def test_in_code_stdin_expectations_arguments_and_commands(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    text = TEXTS[name]
    tasks = [
        Task(code=text, tests=["assert f(2) == 4"]),
        Task(code=text, tests=["assert f(2) == 4"], grading="separate"),
        Task(code=text, tests=[CallCase("f", [1], 1)]),
        Task(code=text, expected_output="it prints nothing like this"),
        Task(code="import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", stdin=text, expected_output=text),
        Task(code="print(1)", expected_output=text + "1"),
        Task(code="def f(x): return x", tests=[CallCase("f", [text], text)]),
        Task(code="def f(x): return x + 'x'", tests=[CallCase("f", [text], text)]),
        Task(command=["sh", "-c", 'test "$1" = "$2"', "sh", text, text]),
        Task(command=["cat"], stdin=text),
        Task(code="int main() {" + text, language="c", tests=[ProgramCase(text, text)]),
        Task(code="def f(): raise ValueError(" + ascii(text) + ")", tests=["assert f() == 1"]),
        Task(code="print('right')", expected_output="right"),
    ]
    found = outcomes(tasks)
    rewards = [one.reward() for one in found]
    words = text.encode("utf-8", "surrogatepass")
    assert rewards[:4] == [0.0] * 4, found[:4]
    assert rewards[4] == 1.0, found[4]
    assert (rewards[5], rewards[6], rewards[7]) == (0.0, 1.0, 0.0), found[5:8]
    unusable = "\0" in text or not is_unicode(text)
    assert rewards[8] == (0.0 if unusable else None if len(words) > 131_000 else 1.0), found[8]
    assert (rewards[9], rewards[10]) == (1.0, 0.0), found[9:11]
    assert (rewards[11], rewards[12]) == (0.0, 1.0)
    for one in found:
        assert one.message.isprintable(), repr(one.message)


def test_a_hundred_megabytes_of_code(outcomes: Callable[..., list[Outcome]]) -> None:
    large = "#" + "x" * (100 << 20)
    for one in outcomes([Task(code=large + "\nprint('ok')", expected_output="ok")], timeout_seconds=50):
        assert one.verdict in (Verdict.PASSED, Verdict.OUT_OF_MEMORY, Verdict.TIMED_OUT), one


def test_a_hundred_megabytes_of_input_and_output(outcomes: Callable[..., list[Outcome]]) -> None:
    large = b"x" * (60 << 20)
    code = "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())"
    right, wrong = outcomes(
        [Task(code=code, stdin=large, expected_output=wanted) for wanted in (large, large[:-1] + b"y")], timeout_seconds=50
    )
    assert (right.verdict, wrong.verdict) == (Verdict.PASSED, Verdict.FAILED)


WORDS: dict[str, Any] = {
    "raises NotSeparable": "class NotSeparable(BaseException): pass\ndef f(n): raise NotSeparable('NotSeparable: x')",
    "asserts NotSeparable": "def f(n): assert False, 'NotSeparable: x'",
    "an exception whose text cannot be had": "class E(Exception):\n    def __str__(self): raise ValueError\ndef f(n): raise E",
    "an exception whose text is binary": "def f(n): raise ValueError('\\udcff\\x00\\x1b[31m')",
    "an exception of a megabyte": "def f(n): raise ValueError('x' * (1 << 20))",
    "a name of a megabyte": "def f(n): raise type('E' * (1 << 20), (Exception,), {})",
    "a group of exceptions": "def f(n): raise ExceptionGroup('g', [ValueError(i) for i in range(50)])",
    "an exception with notes": "def f(n):\n    e = ValueError('x')\n    e.add_note('n' * 100000)\n    raise e",
    "a cause that is itself": "def f(n):\n    e = ValueError('x')\n    e.__cause__ = e\n    raise e",
    "BaseException": "def f(n): raise BaseException('x')",
    "KeyboardInterrupt": "def f(n): raise KeyboardInterrupt",
    "GeneratorExit": "def f(n): raise GeneratorExit",
    "StopIteration": "def f(n): raise StopIteration(4)",
    "a recursion without end": "def f(n): return f(n)",
    "a text nested deep": "def f(n):\n    e = None\n    for _ in range(5000): e = ValueError(e)\n    raise e",
}


@pytest.mark.parametrize("mode", ["in_process", "separate"])
def test_whatever_it_raises(mode: str, outcomes: Callable[..., list[Outcome]]) -> None:
    found = outcomes([Task(code=code, tests=["assert f(2) == 4"], grading=mode) for code in WORDS.values()])
    for name, one in zip(WORDS, found, strict=True):
        assert one.reward() == 0.0, (name, one)
        assert len(one.message) < 5_000 and one.message.isprintable(), (name, one.message)


class Text(str):
    """As numpy's: it shows itself as a call, and compares in its own way."""

    def __repr__(self) -> str:
        return f"np.str_({str.__repr__(self)})"

    def __str__(self) -> str:
        raise ValueError

    def __format__(self, form: str) -> str:
        raise ValueError


@pytest.mark.parametrize("text", ["plain", "\0", "\ud800", 'a \'quote\'\n"""'])
def test_texts_of_classes_of_their_own(text: str, outcomes: Callable[..., list[Outcome]]) -> None:
    name = Text(text)
    right, f = Text("def f(n): return n"), Text("f")
    tasks = [
        Task(code=right, tests=[TestCase(source=Text("assert f(1) == 1"), name=name)]),
        Task(code=right, tests=[TestCase(source=Text("for n in [1]: assert f(n) == n"), name=name)], grading="separate"),
        Task(code=right, tests=[CallCase(f, [name], name, name=name)]),
        Task(code=right, tests=[CallCase.from_json_lines(f, Text("1"), Text("1"), name=name)]),
        Task(code=Text("print(1)"), tests=[ProgramCase(Text(""), Text("1"), name=name)]),
        Task(command=[Text("true"), Text("x")], stdin=name),
    ]
    assert [one.reward() for one in outcomes(tasks)] == [1.0] * 6


def test_arguments_a_line(outcomes: Callable[..., list[Outcome]]) -> None:
    cases = [
        CallCase.from_json_lines("f", '"a\u2028b"\r\n"c\x85"\n\n', '"a\u2028bc\x85"'),
        CallCase.from_json_lines("f", '"\\ud800"\n"\\u0000"', '"\\ud800\\u0000"'),
    ]
    assert outcomes([Task(code="def f(a, b): return a + b", tests=cases)])[0].passed
    for arguments, expected in ((None, "1"), (1, "1"), (b"1", "1"), (["1"], "1"), ("1", None), ("1", 1), ("1", b"1")):
        with pytest.raises(TypeError, match="must be a str, not"):
            CallCase.from_json_lines("f", arguments, expected)  # type: ignore[arg-type]
