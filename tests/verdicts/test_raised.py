"""What the code raises, as a test sees it: in `separate` as where both share a process, and as in a plain Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aviato.rl import Outcome, Task
from tests.verdicts.test_as_a_module import Row, bare

BESIDE = "try: 1 / 0\n    except ZeroDivisionError: raise ValueError('x')"
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
    "a UnicodeDecodeError with too long an argument": (
        "return (b'\\xff' * 5000).decode()",
        "ValueError",
        "'start byte' in str(e)",
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
    # Classes of libraries that the test has loaded.
    "json": ("__import__('json').loads('{')", "json.JSONDecodeError", "(e.pos, e.lineno, e.doc) == (1, 1, '{')"),
    "json as what it is derived from": ("__import__('json').loads('{')", "ValueError", "type(e).__name__ == 'JSONDecodeError'"),
    "subprocess": (
        "__import__('subprocess').run(['sh', '-c', 'echo a; exit 3'], check=True, capture_output=True)",
        "subprocess.CalledProcessError",
        "(e.returncode, e.cmd[0], e.stdout, e.output) == (3, 'sh', b'a\\n', b'a\\n') and 'exit status 3' in str(e)",
    ),
    "decimal": ("__import__('decimal').Decimal('x')", "decimal.InvalidOperation", "isinstance(e, ArithmeticError)"),
    "binascii": ("bytes.fromhex; __import__('binascii').unhexlify('x')", "binascii.Error", "str(e) == 'Odd-length string'"),
    "queue": ("__import__('queue').Queue().get_nowait()", "queue.Empty", "str(e) == ''"),
    "configparser": (
        "__import__('configparser').ConfigParser().get('s', 'o')",
        "configparser.NoSectionError",
        "(e.section, e.args, e.message) == ('s', ('s',), \"No section: 's'\")",
    ),
    "statistics": ("__import__('statistics').mean([])", "statistics.StatisticsError", "'one data point' in str(e)"),
    "sqlite3": ("__import__('sqlite3').connect(':memory:').execute('x')", "sqlite3.OperationalError", "'syntax' in str(e)"),
    "sqlite3 as what it is derived from": (
        "__import__('sqlite3').connect(':memory:').execute('x')",
        "sqlite3.Error",
        "type(e) is sqlite3.OperationalError",
    ),
    "re": ("__import__('re').compile('(')", "re.error", "(e.pos, e.pattern, e.msg[:9]) == (0, '(', 'missing )')"),
    "zipfile": ("__import__('zipfile').ZipFile(__import__('io').BytesIO(b'x'))", "zipfile.BadZipFile", "'not a zip' in str(e)"),
    "csv": ("list(__import__('csv').reader(['a\\rb']))", "csv.Error", "'new-line' in str(e)"),
    "struct": ("__import__('struct').unpack('i', b'')", "struct.error", "'requires a buffer' in str(e)"),
    "xml": (
        "__import__('xml.etree.ElementTree').etree.ElementTree.fromstring('<')",
        "xml.etree.ElementTree.ParseError",
        "e.code",
    ),
    "urllib": (
        "raise __import__('urllib.error').error.URLError('refused')",
        "urllib.error.URLError",
        "e.reason == 'refused' and 'urlopen error refused' in str(e) and isinstance(e, OSError)",
    ),
    "socket": ("raise __import__('socket').gaierror(-2, 'unknown')", "socket.gaierror", "e.errno == -2"),
    "asyncio": ("raise __import__('asyncio').InvalidStateError('x')", "asyncio.InvalidStateError", "str(e) == 'x'"),
    "dataclasses": ("F().x = 1", "dataclasses.FrozenInstanceError", "isinstance(e, AttributeError)"),
    "derived from a library's": (
        "raise Broken('a', 'bc', 1)",
        "json.JSONDecodeError",
        "e.pos == 1 and type(e).__name__ == 'Broken'",
    ),
    # What else they have.
    "the name of a class of its own": (
        "raise Own('x', code=7)",
        "ValueError",
        "type(e).__name__ == 'Own' and repr(e)[:4] == 'Own('",
    ),
    "a class of its own without a known base": (
        "raise Plain('x', 1)",
        "Exception",
        "type(e).__name__ == 'Plain' and e.args == ('x', 1)",
    ),
    "two bases": ("raise Both('x')", "KeyError", "isinstance(e, ValueError) and e.args == ('x',)"),
    "arguments and a text of its own": ("raise Told('x')", "ValueError", "e.args == ('x',) and str(e) == 'told: x'"),
    "the cause itself": (
        "raise ValueError('x') from KeyError('y')",
        "ValueError",
        "e.__cause__.args == ('y',) and e.__suppress_context__",
    ),
    "what it was raised beside": (BESIDE, "ValueError", "type(e.__context__) is ZeroDivisionError and e.__cause__ is None"),
    "what it hides": (BESIDE + " from None", "ValueError", "e.__suppress_context__ and e.__cause__ is None"),
    "the notes": ("e = ValueError('x'); e.add_note('n'); raise e", "ValueError", "e.__notes__ == ['n']"),
    "a group": (
        "raise ExceptionGroup('g', [ValueError('a'), TypeError('b')])",
        "ExceptionGroup",
        "e.message == 'g' and [type(one) for one in e.exceptions] == [ValueError, TypeError] and e.subgroup(ValueError)",
    ),
    "a module that is not there": ("import no_such_module", "ModuleNotFoundError", "e.name == 'no_such_module'"),
    "a name that is not there": ("return no_such_name", "NameError", "e.name == 'no_such_name'"),
    "pickled": ("raise Told('x')", "ValueError", "str(__import__('pickle').loads(__import__('pickle').dumps(e))) == 'told: x'"),
    "another library's": ("__import__('json').loads('{')", "configparser.Error", "True"),
    "another text than is expected": ("raise ValueError('y')", "ValueError", "str(e) == 'x'"),
    "another class": ("raise KeyError('x')", "ValueError", "True"),
    "nothing": ("return 1", "ValueError", "True"),
}
OWN = (
    "import dataclasses, json\n@dataclasses.dataclass(frozen=True)\nclass F:\n    x: int = 0\n"
    "class Broken(json.JSONDecodeError): pass\nclass Plain(Exception): pass\nclass Both(KeyError, ValueError): pass\n"
    "class Own(ValueError):\n    def __init__(self, text, code):\n        super().__init__(f'{text} ({code})')\n"
    "class Mute(KeyError):\n    def __str__(self): return ''\n"
    "class Told(ValueError):\n    def __str__(self): return 'told: ' + self.args[0]\n"
)
WRONG = ("another library's", "another text than is expected", "another class", "nothing")


@pytest.mark.parametrize("name", RAISED)
def test_the_verdict_is_a_bare_runs(name: str, outcomes: Callable[..., list[Outcome]], tmp_path: Path) -> None:
    body, kind, holds = RAISED[name]
    code = f"{OWN}def f(n):\n    {body}\n"
    imports = f"import {kind.rpartition('.')[0]}\n" if "." in kind else ""
    test = (
        f"{imports}try:\n    f('k')\nexcept {kind} as e:\n    assert {holds}, e\nelse:\n    assert False, 'it did not raise'\n"
    )
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
    "a skip of unittest's": "import unittest\ndef E(text): return unittest.SkipTest(text)\n",
    "a class derived from a skip": "import unittest\nclass E(unittest.SkipTest, ValueError): pass\n",
    "the name of a skip": "E = type('SkipTest', (Exception,), {'__module__': 'unittest.case'})\n",
    "the name of a failure that is expected": "class XFailed(Exception): pass\nE = XFailed\n",
    "a library that is none": "E = type('E', (Exception,), {'__module__': 'json.decoder'})\n",
    "something of a library that is no class": "E = type('loads', (Exception,), {'__module__': 'json'})\n",
    "an end of a loop among its bases": "class E(ValueError, StopIteration): pass\n",
    "a group of what ends": "def E(text): return BaseExceptionGroup(text, [SystemExit(0), ValueError('right')])\n",
    "a cause of itself": "class E(ValueError):\n    def __init__(self, *_): self.__cause__ = self\n",
    "a name that is none": "E = type('a' * 200 + '\\n', (ValueError,), {'__module__': 'x\\ny'})\n",
    "a number that makes it another": "class E(OSError):\n    def __init__(self, *_): super().__init__(4, 'x')\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_exception_passes_for_a_value(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    code = HOSTILE[name] + "def f(n): raise E('right')"
    tests = [f"import json, unittest\n{test}" for test in ("assert f(1) == 1", "for n in [1, 2]: assert f(n) == 1")]
    found = outcomes([Task(code=code, tests=[test], grading="separate") for test in tests])
    assert [one.reward() for one in found] == [0.0] * 2, found
