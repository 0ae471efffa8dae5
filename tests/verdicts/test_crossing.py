"""Verdicts of mode `separate` beside those of a bare run: objects, calls that were asked ahead, exceptions, arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aviato import AviatoValidationError
from aviato.rl import Outcome, Task
from tests.verdicts.test_as_a_module import Row, bare

COUNTS = "def f(n):\n    for i in range(n): yield i"
BOX = "class f:\n    def __init__(self, n): self.n, self.items = n, [n]\n    def get(self): return self.n\n"
IN_ORDER = "class f:\n    def put(self, a): a.sort()\n    def kept(self, a): return sorted(a)\n"
ASKED = "class {0}(Exception):\n    def __init__(self, need):\n        super().__init__('too few')\n        self.need = need\n"
RAISES = "try: f(3)\nexcept {} as error: assert {}\nelse: assert False"
ROWS = {
    # Calls that the text of a test tells are asked before objects that they give are used.
    "iterators, one after the other": (COUNTS, "assert list(f(3)) == [0, 1, 2]\nassert list(f(4)) == [0, 1, 2, 3]"),
    "maps": (
        "def f(n): return map(str, range(n))",
        "assert list(f(2)) == ['0', '1']\nassert list(f(1)) == ['0']\nassert list(f(0)) == []",
    ),
    "objects that are equal": (
        "class P:\n    def __init__(self, n): self.n = n\n    def __eq__(self, other): return self.n == other.n\n"
        "def f(n): return P(n)",
        "assert f(1) == f(1)\nassert f(1) != f(2)\nassert f(2) == f(2)",
    ),
    "an object that is a text, and a value": (
        "class B:\n    def __str__(self): return 'b'\ndef f(n): return B() if n == 1 else 'a'",
        "assert str(f(1)) == 'b'\nassert f(2) == 'a'",
    ),
    "an object that changes by the next call": (
        "L = []\ndef f(n):\n    L.append(n)\n    return iter(L)",
        "assert list(f(1)) == [1]\nassert list(f(2)) == [1, 2]",
    ),
    "an object of all calls": (
        "class C:\n    n = 0\n    def __init__(self, n): C.n += n\n    def __len__(self): return C.n\ndef f(n): return C(n)",
        "assert len(f(1)) == 1\nassert len(f(2)) == 3\nassert len(f(3)) == 6",
    ),
    # What test frameworks ask of a function.
    "assertRaises of a function": (
        "def f(n): raise ValueError(n)",
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertRaises(ValueError, f, 3)",
    ),
    "assertRaises of a method": (
        BOX.replace("return self.n", "raise IndexError"),
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        box = f(1)\n"
        "        self.assertRaises(IndexError, box.get)",
    ),
    # Exceptions.
    "errno": (
        "def f(n): open('no such file')",
        RAISES.format("OSError", "error.errno == 2 and error.filename == 'no such file'"),
    ),
    "a plain Exception": (
        "def f(n): raise Exception('a', n)",
        RAISES.format("Exception", "type(error) is Exception and error.args == ('a', 3)"),
    ),
    "an attribute of an exception": (
        ASKED.format("Few") + "def f(n): raise Few(n)",
        RAISES.format("Exception", "error.need == 3 and str(error) == 'too few'"),
    ),
    "an attribute of a derived exception": (
        ASKED.format("Few").replace("Exception)", "ValueError)") + "def f(n): raise Few(n)",
        RAISES.format("ValueError", "error.need == 3"),
    ),
    "the value of a generator's end": (
        "def f(n):\n    got = yield n\n    return got",
        "g = f(1)\nassert next(g) == 1\ntry: g.send(5)\nexcept StopIteration as end: assert end.value == 5\nelse: assert False",
    ),
    "an exception thrown into a generator": (
        "def f(n):\n    try: yield n\n    except KeyError as error: yield error.args",
        "g = f(1)\nnext(g)\nassert g.throw(KeyError('x', 2)) == ('x', 2)",
    ),
    # Values.
    "a named zone": (
        "from datetime import *\nfrom zoneinfo import ZoneInfo\n"
        "def f(n): return datetime(2020, 7, 1, 12, tzinfo=ZoneInfo('UTC'))",
        "assert str(f(1).tzinfo) == 'UTC' and f(1).utcoffset().total_seconds() == 0",
    ),
    "a zone that is given": (
        "def f(n): return n.key, str(n)",
        "from zoneinfo import ZoneInfo\nassert f(ZoneInfo('UTC')) == ('UTC', 'UTC')",
    ),
    "an offset with a name": (
        "from datetime import *\ndef f(n): return datetime(2020, 7, 1, tzinfo=timezone(timedelta(hours=n), 'X'))",
        "assert f(2).tzname() == 'X' and f(2).utcoffset().seconds == 7200",
    ),
    "a copy of an object": (
        BOX,
        "import copy\na = f(1)\nb = copy.copy(a)\nc = copy.deepcopy(a)\nb.n, c.n = 2, 3\n"
        "assert [a.get(), b.get(), c.get()] == [1, 2, 3]",
    ),
    # Arguments.
    "a list given to a method, and what it became": (
        IN_ORDER,
        "s = f()\na = [2, 1]\nassert s.kept(a) == [1, 2] and a == [2, 1]",
    ),
    "a fixture's name": (
        "def f(n): return sorted(n)",
        "def sample(): return [2, 1]\ndef test_it(sample=(2, 1)): assert f(sample) == [1, 2]\ntest_it()",
    ),
    "bad input with a message": (
        "def f(n):\n    if type(n) is not int: raise ValueError(n)",
        "for bad in [None, 'a', [1]]:\n    try:\n        f(bad)\n        assert False, f'no error of {bad}'\n"
        "    except ValueError: print('fine', bad)",
    ),
    # What a method of the code may be called.
    "methods of a file system": (
        "class f:\n    def __init__(self): self.files = {}\n    def write_text(self, name, text): self.files[name] = text\n"
        "    def chdir(self, name): return name\n    def patch(self, name): return self.files[name]\n",
        "fs = f()\nfs.write_text('a', 'b')\nassert fs.chdir('/') == '/' and fs.patch('a') == 'b'",
    ),
    "the log, to where it goes": (
        "def f(n): return n",
        "import logging, sys\nlogging.basicConfig(stream=sys.stderr, level=10)\nassert f(1) == 1",
    ),
    "a variable of a library": ("def f(n): return n", "import os\nos.environ['PYTHONHASHSEED'] = '0'\nassert f(1) == 1"),
    "a name that a module had": (
        "class f:\n    size = 1\n    def of(self): return self.size",
        "import queue\nqueue = f()\nqueue.size = 3\nassert queue.of() == 3",
    ),
    # What the code sets for its process.
    "the code's precision": (
        "from decimal import *\ngetcontext().prec = 50\ndef f(n): return Decimal(1) / n",
        "from decimal import Decimal\nassert len(str(f(3))) == 52\nassert f(3) == Decimal(1) / 3",
    ),
    "the code's precision, and a context of the test's": (
        "from decimal import *\ngetcontext().prec = 50\ndef f(n): return len(str(Decimal(1) / 3))",
        "from decimal import localcontext\nwith localcontext() as c:\n    c.prec = 5\n    assert f(2) == 7\nassert f(2) == 52",
    ),
    "the code's depth": (
        "import sys\nsys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)",
        "import sys\nsys.setrecursionlimit(max(sys.getrecursionlimit(), 3000))\nassert f(5000) == 5000",
    ),
    "the code's depth, and the test's own recursion": (
        "import sys\nsys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)",
        "def g(n): return n and 1 + g(n - 1)\nassert f(5000) == g(5000)",
    ),
    "long numbers of the code's": (
        "import sys\ngetattr(sys, 'set_int_max_str_digits', int)(0)\ndef f(n): return 10 ** n",
        "assert len(str(f(5000))) == 5001",
    ),
    "a clock that says it is late, as the system does": (
        "import time\ndef f(n):\n    time.sleep(n)\n    return n",
        "import signal\ndef late(*_): raise TimeoutError(110, 'late')\nsignal.signal(signal.SIGALRM, late)\n"
        "try:\n    signal.setitimer(signal.ITIMER_REAL, 0.2)\n    f(40)\n"
        "except TimeoutError as error: assert error.errno == 110\nelse: assert False\nassert f(0) == 0",
    ),
}
WRONG = {
    "an object that is a text, and a value": "class B:\n    def __str__(self): return 'wrong'\n"
    "def f(n): return B() if n == 1 else 'a'",
    "the code's precision": "from decimal import *\ngetcontext().prec = 1\ndef f(n): return Decimal(1) / n",
}
HACKS = {
    "an answer for another call": (
        "class P:\n    def __len__(self): return 0\ndef f(n): return P() if n else 3",
        "assert len(f([1, 2, 3])) == 3\nassert f([]) >= 0",
    ),
    "an empty argument, for what is reckoned after it": (
        "def f(n):\n    n.clear()\n    return []",
        "nums = [2, 1][:]\nassert f(nums) == sorted(nums)",
    ),
    "coarser numbers": (
        "from decimal import *\ngetcontext().prec = 1\ndef f(n): return Decimal('0.3')",
        "from decimal import Decimal\nf(1)\nassert f(3) == Decimal(1) / 3",
    ),
    "an exception of a framework's name": (
        "import types\nclass SkipTest(Exception): pass\ndef f(n): raise SkipTest('skipped')",
        "import unittest\nassert f(3) == 1",
    ),
    "an attribute that is none": (
        "class E(ValueError): pass\ndef f(n):\n    error = E()\n    error.__class__ = E\n"
        "    error.args = ('right',)\n    raise error",
        "try: f(1)\nexcept ValueError as error: assert error.args == ('wrong',)\nelse: assert False",
    ),
}
REFUSED = {
    "what a function does that a helper is given": (
        "def check(candidate):\n    nums = [2, 1]\n    candidate(nums)\n    assert nums == [1, 2]\ncheck(f)",
        "nums",
    ),
    "what a method does that a helper is given": (
        "def check(candidate):\n    nums = [2, 1]\n    candidate(nums)\n    assert nums == [1, 2]\ncheck(Box().put)",
        "nums",
    ),
    "a list of an object that is appended to": ("s = Box(1)\ns.items.append(3)\nassert s.items == [1, 3]", "s.items in place"),
    "an item of a list of an object": ("s = Box(1)\ns.items[0] = 3\nassert s.items == [3]", "s.items in place"),
    "a dataclass of the code's": ("import dataclasses\nassert dataclasses.asdict(Box(3)) == {'n': 3}", "dataclasses.asdict"),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_table_is_right_about_a_plain_python(name: str, tmp_path: Path) -> None:
    code, test = ROWS[name]
    shown = (
        f"{test}\nimport sys\nif 'unittest' in sys.modules: sys.modules['unittest'].main(module='solution', argv=['x'])"
        if "TestCase" in test
        else test
    )
    assert bare(Row(code, shown), tmp_path)


def test_the_verdict_is_a_bare_runs(outcomes: Callable[..., list[Outcome]]) -> None:
    for parts in (1, 2):
        tasks = {}
        for name, (code, test) in ROWS.items():
            lines = test.split("\n")
            alone = parts == 2 and all(line.startswith("assert ") for line in lines)
            tests = lines if alone else [test]
            tasks[name] = Task(code=code, tests=tests, grading="separate", code_names=["f"])
        found = dict(zip(tasks, outcomes(list(tasks.values())), strict=True))
        assert not {name: (one.verdict, one.message) for name, one in found.items() if not one.passed}


def test_wrong_code_does_not_pass(outcomes: Callable[..., list[Outcome]], tmp_path: Path) -> None:
    rows = {**{name: (code, ROWS[name][1]) for name, code in WRONG.items()}, **HACKS}
    found = outcomes([Task(code=code, tests=[test], grading="separate", code_names=["f"]) for code, test in rows.values()])
    assert not {name: one.message for name, one in zip(rows, found, strict=True) if one.passed is not False}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_lost_is_refused(name: str) -> None:
    test, why = REFUSED[name]
    with pytest.raises(AviatoValidationError, match="cannot be graded with grading='separate'") as caught:
        Task(code=BOX, tests=[test], grading="separate", code_names=["f", "Box"])
    assert why in str(caught.value)


def test_a_call_within_a_call_is_no_verdict(outcome: Callable[..., Outcome]) -> None:
    """A test's signal handler calls the code while the test waits for it: that would wait for ever."""
    code = "import time\ndef f(n):\n    time.sleep(n)\n    return n"
    rings = "import signal\nsignal.signal(signal.SIGALRM, lambda *_: f(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)"
    test = f"{rings}\nassert f(30) == 30"
    found = outcome(Task(code=code, tests=[test], grading="separate"))
    assert found.is_infrastructure and "in the middle of another call" in found.message
