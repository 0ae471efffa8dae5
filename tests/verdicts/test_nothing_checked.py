"""Nothing that was not checked passes: what a test source can check, beside what plain Python says of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aviato.rl.test_source import look
from tests.verdicts.oracles import RIGHT, WRONG, here, plain

NOTHING = {
    # A source that checks nothing → what is said of it. Plain Python passes the right and the wrong code with each.
    "": "it is empty",
    "  \n\n": "it is empty",
    "# assert f(2) == 4": "it is a comment",
    '"""assert f(2) == 4"""': "it is a constant",
    "pass": "nothing in it can fail",
    "x = 1": "nothing in it can fail",
    "import math": "nothing in it can fail",
    "[1, 2]": "it is JSON",
    '{"input": [2], "output": 4}': "it is JSON",
    "[[2, 4],\n [3, 6]]": "it is JSON",
    "4": "it is a constant",
    "...": "it is a constant",
    "f(2) == 4": "write `assert` in front",
    'f(2) == 4, "wrong"': "write `assert` in front",
    "f(2) == 4 or True": "write `assert` in front",
    "f(2) == 4 and f(3) == 6": "write `assert` in front",
    "not f(2) == 4": "can fail",
    "f(2) == 4 if f else None": "write `assert` in front",
    "f": "can fail",
    'assert (f(2) == 4, "wrong")': "true whatever the code does",
    "assert True": "true whatever the code does",
    "assert 1": "true whatever the code does",
    'assert "f(2) == 4"': "true whatever the code does",
    "assert f(2) == 4 or True": "true whatever the code does",
    "assert not False": "true whatever the code does",
    "assert [f(2) == 4]": "true whatever the code does",
    "assert (f(x) == 2 * x for x in [2])": "true whatever the code does",
    "assert [f(x) == 2 * x for x in [2, 3]]": "true whatever the code does",
    "assert lambda: f(2) == 4": "true whatever the code does",
    "assert 1 == 1": "true whatever the code does",
    "assert 2 < 3, f(2)": "true whatever the code does",
    'assert f"{f(2)} is 4"': "true whatever the code does",
    "import sys\nassert sys.version_info >= (3, 8)": "nothing of the code",
    "def check(c):\n    assert c(2) == 4\nassert check": "true whatever the code does",
    "print(f(2))": "checks nothing",
    "print(f(2) == 4)": "checks nothing",
    "str(f(2))": "checks nothing",
    "import time\ntime.sleep(0)\nprint(f(2))": "checks nothing",
    "import random\nrandom.seed(0)\nx = f(2)": "checks nothing",
    "found = []\nfound.append(f(2))": "checks nothing",
    "import doctest\ndoctest.testmod()": "checks nothing",
    "x = f(2)\nx == 4": "write `assert` in front",
    "import math\nmath.isclose(f(2), 4)": "checks nothing",
    "from math import isclose\nisclose(f(2), 4)": "checks nothing",
    "isinstance(f(2), str)": "checks nothing",
    "str(f(2)).startswith('4')": "checks nothing",
    "eval('f(2) == 4')": "checks nothing",
    "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'exit(1)'])": "checks nothing",
    "import unittest\nunittest.TestCase().assertRaises(ValueError)": "checks nothing",
    "assert f(2) == 4 or True if f else 1": "true whatever the code does",
    "assert all([])": "true whatever the code does",
    "assert all(f(x) == 4 for x in [])": "true whatever the code does",
    "assert iter([f(2) == 4])": "true whatever the code does",
    "assert map(lambda x: f(x) == 4, [2])": "true whatever the code does",
    "assert filter(None, [f(2) == 4])": "true whatever the code does",
    "assert zip([f(2)], [4])": "true whatever the code does",
    "assert bool([f(2) == 4])": "true whatever the code does",
    "assert str(f(2) == 4)": "true whatever the code does",
    "assert len([f(2) == 4])": "true whatever the code does",
    "assert any([f(2) == 4, True])": "true whatever the code does",
    "assert f(2) == 4 if False else True": "true whatever the code does",
    "assert (f(2) == 4) is not None": "true whatever the code does",
    "assert (f(2) == 4) in (True, False)": "true whatever the code does",
    "import os\nassert os, f(2)": "true whatever the code does",
    "assert f\nx = f(2)": "true whatever the code does",
    "def g():\n    yield f(2) == 4\nassert g()": "true whatever the code does",
    "async def g():\n    return f(2) == 4\nassert g()": "true whatever the code does",
    "def g(f):\n    assert f(2) == 4\ng(lambda x: 4)": "nothing of the code",
    "def a(f):\n    def b():\n        assert f(2) == 4\n    b()\na(lambda x: 4)": "nothing of the code",
    "def g():\n    global f\n    f = lambda x: 4\ng()\nassert f(2) == 4": "nothing of the code",
    "h = [f := lambda x: 4 for y in [1]]\nassert f(2) == 4": "nothing of the code",
    "def g():\n    from math import sqrt as f\n    assert f(16) == 4\ng()": "nothing of the code",
    "x = 4\nassert x == 4": "nothing of the code",
    "f = lambda x: 4\nassert f(2) == 4": "nothing of the code",
    "def f(x):\n    return 4\nassert f(2) == 4": "nothing of the code",
    "from math import sqrt as f\nassert f(16) == 4": "nothing of the code",
    "import math\nassert math.pi > 3": "nothing of the code",
    "assert (f := lambda x: 4)(2) == 4": "nothing of the code",
    "exec('f(2) == 4')": "checks nothing",
    "exec('')": "checks nothing",
    "exec(compile('f(2) == 4', 'x', 'exec'))": "checks nothing",
    "compile('assert f(2) == 4', 'x', 'exec')": "checks nothing",
    "import ast\nast.parse('assert f(2) == 4')": "checks nothing",
    "import subprocess\nsubprocess.run(['false'], check=False)": "checks nothing",
    "import asyncio\nasync def g():\n    assert f(2) == 4\nasyncio.run(asyncio.sleep(0))": "checks nothing",
    "from unittest import TestCase\nTestCase().assertEqual(4, 4)\nx = f(2)": "true whatever the code does",
    "from unittest import TestCase\nTestCase().assertTrue((f(2) == 4, 'x'))": "true whatever the code does",
    "from unittest import TestCase\nTestCase().assertTrue(lambda: f(2) == 4)": "true whatever the code does",
    "from unittest import TestCase\nTestCase().assertRaises(ValueError, int, 'x')\nx = f(2)": "checks nothing",
    "from unittest import TestCase as T\nwith T().assertRaises(ValueError):\n    int('x')\nx = f(2)": "call the code there",
}
UNREACHED = {
    # It asserts, and what it asserts is never reached, or swallowed. Plain Python passes both codes.
    "if False:\n    assert f(2) == 4": "never reached",
    "if 0:\n    assert f(2) == 4": "never reached",
    "if not True: assert f(2) == 4": "never reached",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    assert f(2) == 4": "never reached",
    "if True:\n    pass\nelse:\n    assert f(2) == 4": "never reached",
    "while False:\n    assert f(2) == 4": "never reached",
    "while 0: assert f(2) == 4": "never reached",
    "def check(candidate):\n    assert candidate(2) == 4": "end it with check(",
    "def check():\n    assert f(2) == 4": "end it with check()",
    "def check():\n    assert f(2) == 4\ncheck": "does not call it",
    "def check():\n    return f(2) == 4\ncheck()": "asserts nothing",
    "check = lambda: f(2) == 4\ncheck()": "asserts nothing",
    "class Checks:\n    def run(self):\n        assert f(2) == 4": "nobody calls it",
    "class Checks:\n    def run(self):\n        return f(2) == 4\nChecks().run()": "asserts nothing",
    "async def check():\n    assert f(2) == 4\ncheck()": "does not await it",
    "async def check():\n    assert f(2) == 4": "asyncio.run(check())",
    "def check():\n    assert f(2) == 4\n    yield\ncheck()": "a generator",
    "lambda: check(f)": "nobody runs",
    "(check(x) for x in [f])": "nobody runs",
    "def check():\n    return\n    assert f(2) == 4\ncheck()": "asserts nothing",
    "def a():\n    assert f(2) == 4\ndef b():\n    a()": "nobody calls it",
    "try:\n    assert f(2) == 4\nexcept:\n    pass": "swallowed",
    "try:\n    assert f(2) == 4\nexcept Exception as e:\n    print(e)": "swallowed",
    "try:\n    assert f(2) == 4\nexcept AssertionError:\n    print('wrong')": "swallowed",
    "try:\n    assert f(2) == 4\nexcept (ValueError, AssertionError):\n    ok = False": "swallowed",
    "try:\n    try:\n        assert f(2) == 4\n    except ValueError:\n        pass\nexcept Exception:\n    pass": "swallowed",
    "try:\n    f(-1)\n    assert False\nexcept Exception:\n    pass": "swallow",
    "try:\n    f(-1)\n    raise AssertionError('no error')\nexcept BaseException:\n    pass": "swallow",
    "for x in [2, 3]:\n    try:\n        assert f(x) == 2 * x\n    except Exception:\n        continue": "swallowed",
    "def check():\n    assert f(2) == 4\ntry:\n    check()\nexcept Exception:\n    pass": "asserts nothing",
    "from contextlib import suppress\nwith suppress(Exception):\n    assert f(2) == 4": "swallows",
    "import contextlib\nwith contextlib.suppress(AssertionError): assert f(2) == 4": "swallows",
    "import threading\ndef check():\n    assert f(2) == 4\nthreading.Thread(target=check).start()": "nobody hears of it",
    "from threading import Thread\ndef check():\n    assert f(2) == 4\nt = Thread(target=check)\nt.start()": "nobody hears",
    "import atexit\ndef check():\n    assert f(2) == 4\natexit.register(check)": "nobody hears of it",
    "from contextlib import suppress as quiet\nwith quiet(Exception):\n    assert f(2) == 4": "swallows",
    "import contextlib as c\nwith c.suppress(Exception):\n    assert f(2) == 4": "swallows",
    "import traceback\ntry:\n    assert f(2) == 4\nexcept Exception:\n    traceback.print_exc()": "swallowed",
    "import logging\ntry:\n    assert f(2) == 4\nexcept Exception as e:\n    logging.error(e)": "swallowed",
    "import warnings\ntry:\n    assert f(2) == 4\nexcept Exception as e:\n    warnings.warn('wrong')": "swallowed",
    "from threading import Thread as T\ndef check():\n    assert f(2) == 4\nT(target=check).start()": "nobody hears of it",
    "from os import _exit as leave\nleave(0)\nassert f(2) == 4": "ends the program",
    "import sys\nsys.exit()\nassert f(2) == 4": "ends the program",
    "import sys\ndef main(): print(f(2))\nsys.exit(main())": "calls main(), which asserts nothing",
    "raise SystemExit\nassert f(2) == 4": "ends the program",
    "import os\nos._exit(0)\nassert f(2) == 4": "ends the program",
    "import sys\nsys.exit(0)\nassert f(2) == 4": "ends the program",
    "for x in []:\n    assert f(x) == 4": "has nothing to go over",
}
MAIN_ONLY = {
    'if __name__ == "__main__":\n    assert f(2) == 4': "__main__",
    'if "__main__" == __name__:\n    assert f(2) == 4': "__main__",
    'def check():\n    assert f(2) == 4\nif __name__ == "__main__":\n    check()': "__main__",
}
NO_PYTHON = {
    "assert f(2) = 4": "line 1: 'assert f(2) = 4'",
    "x = 1\nassert f(2 == 4": "line 2: 'assert f(2 == 4'",
    "Input: 2\nExpected output: 4": "it is no Python",
    '{"a": true}\n{"a": false}\n{': "it is no Python",
    "return f(2) == 4": "'return' outside function",
    "assert f(2) == 4\n  assert f(3) == 6": "unexpected indent",
    "assert f(2) == 4\0": "null bytes",
    "assert f('\ud800') == 4": "lone surrogate",
    "break": "outside loop",
    "(" * 3000: "nested",
}
CHECKS = {
    # A source that checks → whether it may check nothing, so that it is marked. Plain Python passes the right code alone.
    "assert f(2) == 4": False,
    'assert f(2) == 4, "wrong"': False,
    "assert (f(2) == 4), 'wrong'": False,
    "def check(candidate):\n    assert candidate(2) == 4\ncheck(f)": False,
    "def check(c):\n    for a, b in [(2, 4), (3, 6)]:\n        assert c(a) == b\ncheck(f)": False,
    "def check(c):\n    for a, b in CASES:\n        assert c(a) == b\nCASES = [(2, 4)]\ncheck(f)": True,
    "for x in range(2, 4):\n    assert f(x) == 2 * x": True,
    "for x in [2, 3]: assert f(x) == 2 * x": False,
    "if f(2) != 4:\n    raise ValueError('wrong')": False,
    "if f(2) != 4:\n    exit(1)": False,
    "import sys\nif f(2) == 4:\n    pass\nelse:\n    sys.exit('wrong')": False,
    "f(2) == 4 or 1 / 0\nassert f(3) == 6": False,
    "f(2) == 4 or exit(1)": False,
    "def fail(text):\n    raise AssertionError(text)\nif f(2) != 4: fail('wrong')": False,
    "for x in (2, 3):\n    if f(x) != 2 * x:\n        raise AssertionError(x)": False,
    "for x in sorted({2, 3}):\n    if x > 1:\n        assert f(x) == 2 * x": True,
    "if callable(f):\n    assert f(2) == 4": True,
    "if False:\n    pass\nelif True:\n    assert f(2) == 4": False,
    "try:\n    assert f(2) == 4\nexcept AssertionError:\n    raise": True,
    "try:\n    assert f(2) == 4\nexcept Exception as e:\n    exit(1)": True,
    "try:\n    ok = f(2) == 4\nexcept Exception:\n    ok = False\nassert ok": False,
    "try:\n    pass\nfinally:\n    assert f(2) == 4": False,
    "try:\n    x = f(2)\nexcept ValueError:\n    pass\nelse:\n    assert x == 4": True,
    "try:\n    f(-1)\n    assert False, 'no error'\nexcept ValueError:\n    pass": False,
    "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError('no error')": False,
    "while True:\n    assert f(2) == 4\n    break": True,
    "with open('/dev/null'):\n    assert f(2) == 4": False,
    "def checks():\n    yield f(2) == 4\nassert all(checks())": False,
    "def check(x):\n    assert f(x) == 2 * x\nlist(map(check, [2, 3]))": True,
    "def check(x):\n    assert f(x) == 2 * x\n[check(x) for x in [2, 3]]": True,
    "def check(x):\n    assert f(x) == 2 * x\nx = check(2)": True,
    "async def check():\n    assert f(2) == 4\nimport asyncio\nasyncio.run(check())": True,
    "class Checks:\n    def run(self):\n        assert f(2) == 4\nChecks().run()": True,
    "class Checks:\n    assert f(2) == 4": False,
    "def check():\n    assert f(2) == 4\nfor name in list(globals()):\n    if name == 'check': globals()[name]()": True,
    "match f(2):\n    case 4: pass\n    case _: raise AssertionError": False,
    "from unittest import TestCase\nTestCase().assertEqual(f(2), 4)": False,
    "import unittest\nunittest.TestCase().assertRaises(ValueError, f, -1)": False,
    "import unittest\nwith unittest.TestCase().assertRaises(ValueError):\n    f(-1)": False,
    "exec('assert f(2) == 4')": False,
    "def raises(g):\n    try:\n        g(-1)\n    except ValueError:\n        return\n    raise AssertionError\n"
    "raises(f)": False,
    "def raises(g):\n    'doc'\n    try:\n        g(-1)\n    except ValueError:\n        return\n    assert False\n"
    "for g in list([f])[:1]:\n    raises(g)": True,
    "def check(g):\n    for x in (2, 3):\n        if g(x) == 2 * x:\n            return\n    raise AssertionError\n"
    "check(f)": False,
    "hash_of = lambda g: 1 / (g(2) == 4)\nassert hash_of(f)": False,
    "assert f(2) == 4\nexit()": False,
    "import sys\nassert f(2) == 4; sys.exit(0)\nassert False": False,
    "\ufeffassert f(2) == 4": False,
    # A name that a scope gives is no name of another's.
    "def same(f):\n    return f\nassert f(2) == 4": False,
    "def g():\n    f = 1\n    return f\nassert f(2) == 4": False,
    "class A:\n    f = 4\nassert f(2) == 4": False,
    "class A:\n    f = 4\n    def g(self):\n        return f(2)\nassert A().g() == 4": False,
    "h = lambda f: f\nassert f(2) == 4": False,
    "h = [f for f in [1]]\nassert f(2) == 4": False,
    "def g():\n    for f in []: pass\n    else: return 1\nassert f(2) == 4": False,
    "def g():\n    try: pass\n    except ValueError as f: pass\nassert f(2) == 4": False,
    "def g():\n    from math import sqrt as f\n    return f\nassert f(2) == 4": False,
    "def g():\n    def f(): pass\n    class f: pass\nassert f(2) == 4": False,
    "def g():\n    match 1:\n        case f: return f\nassert f(2) == 4": False,
}
EMPTY = [
    # What checks is there, and no run of it comes there: `not_run`. Plain Python passes both codes.
    "for x in list():\n    assert f(x) == 4",
    "import json\nfor x in json.loads('[]'):\n    if f(x) != 4:\n        raise ValueError(x)",
    "if len('abc') == 2:\n    assert f(2) == 4",
    "def check(cases):\n    for x in cases:\n        assert f(x) == 4\ncheck([])",
    "def check(x):\n    assert f(x) == 4\nlist(map(check, []))",
    "def check(x):\n    assert f(x) == 4\nchecks = [check]",
    "def check(x):\n    assert f(x) == 4\nmap(check, [2])",
    "def check(x):\n    if x: return\n    assert f(x) == 4\ncheck(1)",
    "import random\nrandom.seed(0)\nfor x in dict():\n    assert f(x) == 4",
    "class Checks:\n    def run(self):\n        assert f(2) == 4\nChecks()",
    "try:\n    int('x')\n    assert f(2) == 4\nexcept ValueError:\n    pass",
    "while len('') > 1:\n    assert f(2) == 4",
    "async def check():\n    assert f(2) == 4\nfound = check()\nfound.close()",
]
SWALLOWED = [
    # Something that this source defines or keeps swallows what is asserted: only the right code comes past it.
    "class Quiet:\n    def __enter__(self): pass\n    def __exit__(self, *error): return True\n"
    "with Quiet():\n    assert f(2) == 4",
    "from contextlib import contextmanager\n@contextmanager\ndef quiet():\n    try: yield\n    except AssertionError: pass\n"
    "with quiet():\n    assert f(2) == 4",
    "from contextlib import ExitStack, suppress\nwith ExitStack() as stack:\n    stack.enter_context(suppress(Exception))\n"
    "    assert f(2) == 4",
    "from contextlib import suppress\nquiet = suppress(AssertionError)\nwith quiet:\n    assert f(2) == 4",
    "try:\n    assert f(2) == 4\nexcept AssertionError as e:\n    if not e: raise",
]


DATA_SETS = {
    # The forms of tests that data sets have → kind, and whether they are marked.
    "METADATA = {}\n\ndef check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 6\n\ncheck(f)": False,
    "from math import isclose\nassert isclose(f(2), 4)": False,
    "import numpy as np\nnp.testing.assert_allclose(f(2), 4)": False,
    "def is_floats(x):\n    if isinstance(x, float):\n        return True\n    return False\n\n"
    "def assertion(out, exp, atol):\n    exact_match = out == exp\n    if atol == 0 and is_floats(exp):\n"
    "        atol = 1e-6\n    if not exact_match and atol != 0:\n        assert abs(out - exp) < atol\n    else:\n"
    "        assert exact_match, f'{out} {exp}'\n\ninputs = [[2], [3]]\nresults = [4, 6]\n"
    "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion(f(*inp), exp, 0)\n": True,
}


def sources(*tables: object) -> list[str]:
    return [source for table in tables for source in table]  # type: ignore[attr-defined]


def test_an_end_that_cannot_be_left_out_is_refused() -> None:
    told = look("import sys\nassert f(2) == 4\ntry:\n    sys.exit(0)\nfinally:\n    print()")
    assert (told.kind, "inside a `try`" in told.why_nothing) == ("nothing", True)


@pytest.mark.parametrize("source", sources(NOTHING, UNREACHED))
def test_what_checks_nothing_is_refused_with_the_reason(source: str, tmp_path: Path) -> None:
    told = look(source)
    assert told.kind == "nothing"
    assert (NOTHING | UNREACHED)[source] in told.why_nothing
    code = "def check(x): pass\n" + WRONG if "lambda: check" in source else WRONG
    assert plain("python", code, source, tmp_path) == "passed"


@pytest.mark.parametrize("source", MAIN_ONLY)
def test_what_only_a_main_program_would_check_is_refused(source: str, tmp_path: Path) -> None:
    told = look(source)
    assert told.kind == "nothing" and MAIN_ONLY[source] in told.why_nothing
    assert [plain("python", code, source, tmp_path) for code in (RIGHT, WRONG)] == ["passed", "failed"]


@pytest.mark.parametrize("source", NO_PYTHON, ids=range(len(NO_PYTHON)))
def test_what_is_no_python_is_refused_with_its_line(source: str, tmp_path: Path) -> None:
    told = look(source)
    assert told.kind == "nothing"
    assert NO_PYTHON[source] in told.why_nothing
    if "\0" in source and sys.version_info < (3, 11, 4):
        return  # An older Python takes a NUL in a file for its end.
    assert [plain("python", code, source, tmp_path) for code in (RIGHT, WRONG)] == ["failed", "failed"]


@pytest.mark.parametrize("source", CHECKS)
def test_what_checks_gives_the_verdict_of_plain_python(source: str, tmp_path: Path) -> None:
    told = look(source)
    assert (told.kind, told.counts_checks) == ("statements", CHECKS[source]), told
    if "import" not in source and "exit" not in source:
        assert [plain("python", code, source.lstrip("\ufeff"), tmp_path) for code in (RIGHT, WRONG)] == ["passed", "failed"]
    right, wrong = (here(code, source, tmp_path) for code in (RIGHT, WRONG))
    assert right == "passed"
    assert wrong.startswith(("failed", "ended_early"))


@pytest.mark.parametrize("source", DATA_SETS)
def test_forms_of_data_sets(source: str, tmp_path: Path) -> None:
    told = look(source)
    assert (told.kind, told.counts_checks) == ("statements", DATA_SETS[source]), told
    right, wrong = (here(code, source, tmp_path) for code in (RIGHT, WRONG))
    assert (right, wrong.partition(":")[0]) == ("passed", "failed")


def test_what_fails_with_any_code_is_no_matter_of_this(tmp_path: Path) -> None:
    """It lets nothing pass."""
    for source in ("raise KeyError('k')", "assert False, 'because'", "def fail():\n    raise ValueError\nfail()"):
        assert [here(code, source, tmp_path).partition(":")[0] for code in (RIGHT, WRONG)] == ["failed", "failed"]


def test_names_of_the_code_count_whatever_they_are_called() -> None:
    assert look("print(2)").kind == "nothing"
    assert look("print(2)", code_names=["print"]).kind == "statements"
    assert look("def check(c):\n    assert c(2) == 4", code_names=["double"]).why_nothing.endswith("end it with check(double)")


@pytest.mark.parametrize("source", EMPTY)
def test_a_run_that_reaches_no_check_has_not_run(source: str, tmp_path: Path) -> None:
    assert [plain("python", code, source, tmp_path) for code in (RIGHT, WRONG)] == ["passed", "passed"]
    assert [here(code, source, tmp_path) for code in (RIGHT, WRONG)] == ["not_run", "not_run"]


@pytest.mark.parametrize("source", SWALLOWED)
def test_an_assertion_that_may_be_swallowed_counts_where_it_holds(source: str, tmp_path: Path) -> None:
    assert [plain("python", code, source, tmp_path) for code in (RIGHT, WRONG)] == ["passed", "passed"]
    assert [here(code, source, tmp_path) for code in (RIGHT, WRONG)] == ["passed", "not_run"]
