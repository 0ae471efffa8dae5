"""What the code raises, as a test sees it: in `separate` as where both share a process, and as in a plain Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aviato.rl import Outcome, Task
from tests.verdicts.test_as_a_module import Row, bare

RAISED = {
    "KeyError": ("return {}[n]", "KeyError", "e.args == ('k',) and str(e) == \"'k'\""),
    "KeyError of a number": ("raise KeyError(3)", "KeyError", "e.args == (3,) and str(e) == '3'"),
    "LookupError": ("return {}[n]", "LookupError", "type(e) is KeyError"),
    "IndexError": ("return [][0]", "IndexError", "str(e) == 'list index out of range'"),
    "two arguments": ("raise ValueError('a', 1)", "ValueError", "e.args == ('a', 1) and str(e) == \"('a', 1)\""),
    "no argument": ("raise ValueError", "ValueError", "e.args == () and str(e) == ''"),
    "an argument that is a tuple": ("raise ValueError((1, 2))", "ValueError", "e.args == ((1, 2),)"),
    "an argument that is a dict": ("raise ValueError({'a': [1]})", "ValueError", "e.args[0]['a'] == [1]"),
    "UnicodeDecodeError": ("return b'\\xff'.decode()", "UnicodeDecodeError", "e.start == 0 and 'invalid start byte' in str(e)"),
    "UnicodeDecodeError as ValueError": ("return b'a\\xff'.decode()", "ValueError", "e.object == b'a\\xff'"),
    "UnicodeEncodeError": (
        "return '\\ud800'.encode()",
        "UnicodeEncodeError",
        "e.object == '\\ud800' and e.encoding == 'utf-8'",
    ),
    "FileNotFoundError": ("open('no-such-file')", "FileNotFoundError", "\"directory: 'no-such-file'\" in str(e)"),
    "OSError with a number": ("raise OSError(5, 'Input')", "OSError", "e.errno == 5 and e.strerror == 'Input'"),
    "PermissionError by its number": ("raise OSError(13, 'no')", "PermissionError", "e.errno == 13"),
    "ZeroDivisionError": ("return 1 / 0", "ArithmeticError", "str(e) == 'division by zero'"),
    "OverflowError": ("return 2.0 ** 10000", "OverflowError", "e.args[0] == 34"),
    "TypeError of a call": ("return len(3)", "TypeError", "'has no len()' in str(e)"),
    "AttributeError": ("return n.no_such", "AttributeError", "'no_such' in str(e)"),
    "RecursionError": ("return f(n)", "RecursionError", "'recursion' in str(e)"),
    "NotImplementedError": ("raise NotImplementedError('later')", "NotImplementedError", "e.args == ('later',)"),
    "AssertionError": ("assert n == 1, (n, 2)", "AssertionError", "e.args == (('k', 2),)"),
    "a class of its own": ("raise Own('x', code=7)", "ValueError", "str(e) == 'x (7)'"),
    "a class of its own without text": ("raise Mute('x')", "KeyError", "str(e) == ''"),
    "a text of its own": ("raise Told('x')", "ValueError", "str(e) == 'told: x'"),
    "a text of many lines": ("raise ValueError('a\\nb\\n')", "ValueError", "str(e) == 'a\\nb\\n'"),
    "a surrogate": ("raise ValueError('\\udcff')", "ValueError", "e.args == ('\\udcff',)"),
    "a NUL": ("raise ValueError('a\\0b')", "ValueError", "str(e) == 'a\\0b'"),
    "a cause": ("raise ValueError('x') from KeyError('y')", "ValueError", "str(e) == 'x'"),
    "a note": ("e = ValueError('x'); e.add_note('n'); raise e", "ValueError", "e.args == ('x',)"),
    "another text than is expected": ("raise ValueError('y')", "ValueError", "str(e) == 'x'"),
    "another class": ("raise KeyError('x')", "ValueError", "True"),
    "nothing": ("return 1", "ValueError", "True"),
}
OWN = (
    "class Own(ValueError):\n    def __init__(self, text, code):\n        super().__init__(f'{text} ({code})')\n"
    "class Mute(KeyError):\n    def __str__(self): return ''\n"
    "class Told(ValueError):\n    def __str__(self): return 'told: ' + self.args[0]\n"
)
WRONG = ("another text than is expected", "another class", "nothing")


@pytest.mark.parametrize("name", RAISED)
def test_the_verdict_is_a_bare_runs(name: str, outcomes: Callable[..., list[Outcome]], tmp_path: Path) -> None:
    body, kind, holds = RAISED[name]
    code = f"{OWN}def f(n):\n    {body}\n"
    test = f"try:\n    f('k')\nexcept {kind} as e:\n    assert {holds}, e\nelse:\n    assert False, 'it did not raise'\n"
    passes = name not in WRONG
    assert bare(Row(code, test), tmp_path) is passes, "the table is wrong about a plain Python"
    found = outcomes([Task(code=code, tests=[test], grading=mode) for mode in ("in_process", "separate")])
    assert [one.reward() for one in found] == [float(passes)] * 2, found


HOSTILE = {
    "arguments that cannot be had": "class E(ValueError):\n    args = property(lambda self: 1 / 0)\n",
    "arguments that are no data": "class E(ValueError):\n    def __init__(self, *_): self.args = (object(), E)\n",
    "arguments without end": "class E(ValueError):\n    def __init__(self, *_):\n        self.args = ('x' * (1 << 22),)\n",
    "arguments in themselves": "class E(ValueError):\n    def __init__(self, *_):\n        a = []; a += [a]; self.args = a\n",
    "a text that is another's": "class E(ValueError):\n    def __str__(self): return 'right'\n    args = ('wrong',)\n",
    "a text that cannot be had": "class E(ValueError):\n    def __str__(self): raise SystemExit(0)\n",
    "a name of another": "E = type('SystemExit', (Exception,), {})\n",
    "a name of what ends a loop": "E = type('StopIteration', (Exception,), {})\n",
    "a number that makes it another": "class E(OSError):\n    def __init__(self, *_): super().__init__(4, 'x')\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_exception_passes_for_a_value(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    code = HOSTILE[name] + "def f(n): raise E('right')"
    tests = ["assert f(1) == 1", "for n in [1, 2]: assert f(n) == 1"]
    found = outcomes([Task(code=code, tests=[test], grading="separate") for test in tests])
    assert [one.reward() for one in found] == [0.0] * 2, found
