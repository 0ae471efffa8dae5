"""Tests that name exception classes of the code's own: in `separate` as in one process, and as in a plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.rl import Outcome, Task
from tests.verdicts.test_as_a_module import Row, bare

CODE = """
class Base(Exception):
    pass
class Missing(Base, KeyError):
    def __init__(self, name, have=0):
        super().__init__(f"no {name}")
        self.name, self.have = name, have
    def __str__(self):
        return f"no {self.name}"
class Skipped(Base):
    pass
Alias = Missing
Builtin = ValueError
class Box:
    def get(self, name):
        raise Missing(name, 3)
def f(n):
    if n == 1: raise Missing("one", 2)
    if n == 2: raise Builtin("two")
    if n == 3: raise Base("three")
    if n == 4: raise OSError(2, "four")
    if n == 5: raise Skipped("five")
    if n == 6:
        try:
            raise Base("inner")
        except Base as error:
            raise Missing("outer") from error
    return n
class Lower(Exception): pass
own_error = Lower
def g(): raise own_error()
async def h(n): return f(n)
"""
USED = ["Alias", "Base", "Box", "Builtin", "Missing", "Skipped", "f", "g", "h", "own_error"]
CAUGHT = "try:\n    f({})\nexcept {} as e:\n    {}\nelse:\n    assert False"
RIGHT = {
    "by its class": CAUGHT.format(1, "Missing", "assert str(e) == 'no one' and (e.name, e.have) == ('one', 2)"),
    "by the class above": CAUGHT.format(1, "Base", "assert type(e).__name__ == 'Missing' and e.args == ('no one',)"),
    "by another name of it": CAUGHT.format(1, "Alias", "pass"),
    "by a name of a built-in class": CAUGHT.format(2, "Builtin", "assert str(e) == 'two'"),
    "a built-in class that has a name": CAUGHT.format(2, "ValueError", "assert type(e).__name__ == 'ValueError'"),
    "one of several": CAUGHT.format(3, "(OSError, Missing, Base)", "assert str(e) == 'three'"),
    "which of several": CAUGHT.format(1, "Base", "assert isinstance(e, Missing) and not isinstance(e, Skipped)"),
    "which of several as a tuple": CAUGHT.format(3, "Base", "assert not isinstance(e, (Missing, ValueError))"),
    "in an order": "try:\n    f(3)\nexcept Missing:\n    assert False\nexcept Base:\n    pass",
    "a built-in class that it is, too": CAUGHT.format(1, "KeyError", "assert isinstance(e, Missing)"),
    "one with a layout of its own": CAUGHT.format(4, "OSError", "assert e.errno == 2 and not isinstance(e, Base)"),
    "by a name of frameworks": CAUGHT.format(5, "Skipped", "assert str(e) == 'five'"),
    "its cause": CAUGHT.format(6, "Missing", "assert isinstance(e.__cause__, Base) and not isinstance(e.__cause__, Missing)"),
    "a method's": "b = Box()\ntry:\n    b.get('x')\nexcept Missing as e:\n    assert e.have == 3\nelse:\n    assert False",
    "a coroutine's": "import asyncio\n" + CAUGHT.format(1, "Missing", "pass").replace("f(1)", "asyncio.run(h(1))"),
    "one that is written small": "try:\n    g()\nexcept own_error:\n    pass\nelse:\n    assert False",
    "again and again": "for n in (1, 3, 1):\n    try:\n        f(n)\n        assert False\n    except Base:\n        pass",
    "by contextlib": "from contextlib import suppress\nx = 1\nwith suppress(Base):\n    f(3)\n    x = 2\nassert x == 1",
    "by unittest": "import unittest\nt = unittest.TestCase()\nt.assertRaises(Missing, f, 1)\n"
    "with t.assertRaisesRegex(Base, 'no o.e') as c: f(1)\nassert c.exception.have == 2",
    "of a table": "for n, kind in [(1, Missing), (2, Builtin), (3, Base)]:\n    try:\n        f(n)\n    except kind:\n"
    "        continue\n"
    "    assert False",
    "made and looked at": "assert Missing('x').have == 0",
    "raised anew": "try:\n    try:\n        f(1)\n    except Base:\n        raise\nexcept Missing as e:\n"
    "    assert e.have == 2",
    "by a helper of the test": "def raises(kind, function, *args):\n    try:\n        function(*args)\n"
    "    except kind:\n        return True\n"
    "    return False\nassert raises(Missing, f, 1) and not raises(Missing, f, 9)",
}
WRONG = {
    "another class": CAUGHT.format(3, "Missing", "pass"),
    "none": CAUGHT.format(9, "Missing", "pass"),
    "what it says": CAUGHT.format(1, "Missing", "assert e.have == 9"),
    "a failure of the test's own": "try:\n    assert f(9) == 8\nexcept (Base, Missing, Builtin):\n    pass",
    "an error of the test's own": "try:\n    f(9)\n    {}['x']\nexcept Missing:\n    pass",
    "the wrong one of two": "try:\n    f(1)\nexcept Skipped:\n    pass",
}


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_exceptions_of_named_classes(name: str, tmp_path: Path, outcomes: Callable[..., list[Outcome]]) -> None:
    test, passes = (RIGHT.get(name) or WRONG[name]), name in RIGHT
    assert bare(Row(CODE, test), tmp_path) is passes, "the table is wrong about a plain Python"
    tasks = [Task(code=CODE, tests=[test], code_names=USED, grading=mode) for mode in ("in_process", "separate")]
    found = outcomes(tasks)
    assert [one.reward() for one in found] == [float(passes)] * 2, found


HOSTILE = {
    "it is what a test fails with": "Own = AssertionError\ndef f(n): return 1",
    "it is all that there is": "Own = BaseException\ndef f(n): return 1",
    "it is every class": "class Every(type):\n    def __instancecheck__(cls, one): return True\n"
    "    __subclasscheck__ = __instancecheck__\n"
    "class Own(Exception, metaclass=Every): pass\ndef f(n): return 1",
    "it is a skip": "import unittest\nOwn = unittest.SkipTest\ndef f(n): raise Own('x')",
    "it has the name of a skip": "Own = type('SkipTest', (Exception,), {})\ndef f(n): raise Own('x')",
    "it ends the program": "class Own(SystemExit): pass\ndef f(n): raise Own(0)",
    "it ends a loop": "class Own(StopIteration): pass\ndef f(n): raise Own()",
    "it breaks off": "import os\nclass Own(Exception): pass\ndef f(n): os._exit(0)",
    "its attributes are names of classes": "class Own(Exception): pass\n"
    "def f(n):\n    e = Own('x')\n    vars(e).update(_aviato=1, need=1, mro=2, args2=3)\n    raise e",
    "it has no name": "Own = type('a b', (Exception,), {'__module__': ''})\ndef f(n): raise Own('x')",
    "it is not there": "def f(n): return 1",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_class_passes_for_a_value(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    """What the test itself fails with is of no class of the code, whatever the code says; nor is that no verdict."""
    test = "import unittest\nfrom solution import f, Own\ntry:\n    assert f(1) == 2\nexcept Own:\n    assert f(1) == 3"
    loop = "from solution import f, Own\nfor n in [1, 2]:\n    " + test.partition("Own\n")[2].replace("\n", "\n    ")
    found = outcomes([Task(code=HOSTILE[name], tests=[each], grading="separate") for each in (test, loop)])
    assert [one.reward() for one in found] == [0.0] * 2, found


PACKAGE = {
    "shop/__init__.py": b"from .errors import Sold\nfrom .core import buy\n",
    "shop/errors.py": b"class ShopError(Exception):\n    pass\nclass Sold(ShopError):\n    def __init__(self, n):\n"
    b"        super().__init__(n)\n        self.n = n\n",
    "shop/core.py": b"from shop.errors import Sold\ndef buy(n):\n    if n > 1:\n        raise Sold(n)\n    return n\n",
}
GRADERS = {
    "of another module": "from shop.core import buy\nfrom shop.errors import ShopError\ndef test_it():\n    try:\n"
    "        buy(2)\n"
    "    except ShopError as e:\n        assert e.n == 2\n    else:\n        assert False\n",
    "of the package": "import shop\nfrom shop.core import buy\ndef test_it():\n    try:\n        buy(2)\n"
    "    except shop.Sold:\n"
    "        return\n    assert False\n",
    "as the module of both": "from shop import buy, Sold\ndef test_it():\n    try:\n        buy(3)\n    except Sold as e:\n"
    "        assert e.args == (3,)\n    else:\n        assert False\n",
}


@pytest.fixture(scope="module")
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


@pytest.mark.parametrize("mode", ["in_process", "separate"])
@pytest.mark.parametrize("name", GRADERS)
def test_a_grader_expects_them_of_a_package(name: str, mode: str, session: aviato.Session) -> None:
    """What runs the tests and what was written lie in two sandboxes."""
    sandbox = session.sandbox()
    for path, content in PACKAGE.items():
        sandbox.write_file(path, content).result()
    case = "import unittest\nclass T(unittest.TestCase):\n    def test_of_case(self):\n        test_it()\n"
    files = {"test_shop.py": (GRADERS[name] + case).encode()}
    command = ["python", "-m", "unittest", "test_shop"]
    graded = sandbox.grade(files, command, result_paths=sorted(PACKAGE), mode=mode).result(50)
    assert graded.passed, graded
