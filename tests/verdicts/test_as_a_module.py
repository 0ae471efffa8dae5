"""Code and tests as one module: what a bare `python solution.py` of both says, and the verdict here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aviato.rl import Outcome, Task, Verdict


@dataclass(frozen=True)
class Row:
    """Code with a test after it; whether both pass in a plain Python."""

    code: str
    test: str
    passes: bool = True
    files: dict[str, bytes] = field(default_factory=dict)


MAIN = "if __name__ == '__main__':\n    raise SystemExit('it is the program')\n"
MODULE = {
    "dataclass": Row(
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 2", "assert P(1) == P(1, 2)"
    ),
    "dataclass under the code's own future": Row(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass, fields\n"
        "@dataclass\n"
        "class P:\n"
        "    x: 'int'\n"
        "    n: P | None = None",
        "assert P(1).n is None and [f.type for f in fields(P)] == [\"'int'\", 'P | None']",
    ),
    "dataclass with a default factory": Row(
        "from dataclasses import dataclass, field\n"
        "@dataclass(order=True, slots=True)\n"
        "class P:\n"
        "    x: list = field(default_factory=list)",
        "assert P() == P([]) and P([1]) > P()",
    ),
    "dataclass with ClassVar and InitVar": Row(
        "from dataclasses import dataclass, InitVar\n"
        "from typing import ClassVar\n"
        "@dataclass\n"
        "class P:\n"
        "    k: ClassVar[int] = 3\n"
        "    x: InitVar[int] = 1\n"
        "    def __post_init__(self, x):\n"
        "        self.y = x",
        "assert P(5).y == 5 and P.k == 3",
    ),
    "namedtuple": Row("from typing import NamedTuple\nclass P(NamedTuple):\n    x: int", "assert P(1)._asdict() == {'x': 1}"),
    "enum": Row("import enum\nclass C(enum.Enum):\n    A = 1", "assert C.A.value == 1 and repr(C.A) == '<C.A: 1>'"),
    "typed dict": Row("from typing import TypedDict\nclass D(TypedDict):\n    x: int", "assert D(x=1) == {'x': 1}"),
    "get_type_hints of a function": Row(
        "from typing import get_type_hints, Optional\nclass A: pass\ndef f(a: 'A', b: Optional['A'] = None) -> 'A': return a",
        "assert get_type_hints(f)['a'] is A",
    ),
    "get_type_hints of a class": Row(
        "from typing import get_type_hints\nclass Node:\n    next: 'Node'", "assert get_type_hints(Node) == {'next': Node}"
    ),
    "get_type_hints under the code's own future": Row(
        "from __future__ import annotations\n"
        "from typing import get_type_hints\n"
        "def f(a: list[int]) -> Node: ...\n"
        "class Node: ...",
        "assert get_type_hints(f)['return'] is Node",
    ),
    "annotation without its import": Row("def f(x: List[int]):\n    return x", "assert f([1]) == [1]", passes=False),
    "annotation of a class body without its import": Row(
        "class A:\n    x: Optional[int] = None", "assert A().x is None", passes=False
    ),
    "annotation of a variable": Row("x: Dict[str, int] = {}", "assert x == {}", passes=False),
    "annotation that is executed": Row("seen = []\ndef f(x: seen.append(1)): ...", "assert seen == [1]"),
    "forward annotation": Row("def f(x: Later): ...\nclass Later: ...", "assert f", passes=False),
    "module in sys.modules": Row(
        "import sys\nhere = sys.modules[__name__]", "assert here.here is here and here.__dict__ is globals()"
    ),
    "__file__": Row("import os\nhere = os.path.abspath(__file__)", "assert open(here).read().startswith('import os')"),
    "files beside __file__": Row(
        "import os\ndef f(): return open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'd.txt')).read()",
        "assert f() == 'data'",
        files={"d.txt": b"data"},
    ),
    "__spec__ and __loader__": Row("name = __name__", "assert globals().get('__builtins__') and '__loader__' in globals()"),
    "getsource of a function": Row(
        "import inspect\ndef f(x):\n    return x + 1", "assert inspect.getsource(f) == 'def f(x):\\n    return x + 1\\n'"
    ),
    "getsource of a class": Row("import inspect\nclass A:\n    y = 1", "assert 'y = 1' in inspect.getsource(A)"),
    "getsource of the module": Row("import inspect, sys\nX = 5", "assert 'X = 5' in inspect.getsource(sys.modules[__name__])"),
    "getsource in a decorator": Row(
        "import inspect\ndef d(f):\n    f.source = inspect.getsource(f)\n    return f\n@d\ndef g(): return 1",
        "assert 'return 1' in g.source",
    ),
    "pickle of an object": Row(
        "import pickle\nclass A:\n    def __init__(self, x): self.x = x", "assert pickle.loads(pickle.dumps(A(3))).x == 3"
    ),
    "pickle of a function": Row("import pickle\ndef f(): return 7", "assert pickle.loads(pickle.dumps(f))() == 7"),
    "pickle of an enum": Row(
        "import enum, pickle\nclass C(enum.Enum):\n    A = 1", "assert pickle.loads(pickle.dumps(C.A)) is C.A"
    ),
    "deepcopy": Row(
        "import copy\nclass A:\n    def __init__(self): self.x = [1]",
        "a = A(); assert copy.deepcopy(a).x == [1] and copy.copy(a).x is a.x",
    ),
    "multiprocessing by fork": Row(
        "import multiprocessing\n"
        "def sq(n): return n * n\n"
        "def f(ns):\n"
        "    with multiprocessing.get_context('fork').Pool(2) as p: return p.map(sq, ns)",
        "assert f([1, 2, 3]) == [1, 4, 9]",
    ),
    "executor of threads": Row(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def f(ns):\n"
        "    with ThreadPoolExecutor(2) as p: return list(p.map(lambda n: n * n, ns))",
        "assert f([1, 2, 3]) == [1, 4, 9]",
    ),
    "asyncio": Row(
        "import asyncio\nasync def g(n):\n    await asyncio.sleep(0)\n    return n\ndef f(n): return asyncio.run(g(n))",
        "assert f(3) == 3",
    ),
    "BOM": Row("\ufeffdef f(): return 1", "assert f() == 1"),
    "coding cookie utf-8": Row("# -*- coding: utf-8 -*-\ndef f(): return 'é'", "assert f() == '\\xe9'"),
    "coding cookie latin-1": Row("# -*- coding: latin-1 -*-\ndef f(): return 'é'", "assert f() == '\\xc3\\xa9'"),
    "coding cookie that is none": Row("# -*- coding: no-such -*-\ndef f(): return 1", "assert f() == 1", passes=False),
    "CRLF": Row("def f():\r\n    return 1\r\n", "assert f() == 1"),
    "form feed": Row("\x0cdef f():\n    return 1", "assert f() == 1"),
    "tabs": Row("def f():\n\tif True:\n\t\treturn 1", "assert f() == 1"),
    "no last newline, a comment": Row("def f(): return 1 # end", "assert f() == 1"),
    "a main block": Row("def f(): return 1\n" + MAIN, "assert f() == 1"),
    "future in the middle": Row("x = 1\nfrom __future__ import annotations", "assert x == 1", passes=False),
    "future of the code is not the test's": Row(
        "from __future__ import annotations\nx = 1", "def g(a: NoSuch): ...\nassert x == 1", passes=False
    ),
    "global in a function": Row("n = 0\ndef f():\n    global n\n    n += 1\n    return n", "assert f() == 1 and n == 1"),
    "the test redefines": Row("def g(): return 1\ndef f(): return g()", "def g(): return 2\nassert f() == 2"),
    "import of the code": Row("def f(): return 3", "from solution import f as g\nassert g() == 3"),
    "import of the code as a module": Row("def f(): return 3", "import solution\nassert solution.f() == 3"),
    "import of the code with a star": Row("def f(): return 3", "from solution import *\nassert f() == 3"),
    "reload of the code": Row(
        "import importlib\ndef f(): return 3", "import solution\nassert importlib.reload(solution).f() == 3"
    ),
    "a helper file": Row("import helper\ndef f(): return helper.x", "assert f() == 5", files={"helper.py": b"x = 5"}),
    "a helper of the test": Row("def f(): return 5", "from helper import x\nassert f() == x", files={"helper.py": b"x = 5"}),
    "a helper package": Row(
        "from pack.mod import x\ndef f(): return x", "assert f() == 5", files={"pack/__init__.py": b"", "pack/mod.py": b"x = 5"}
    ),
    "a namespace package": Row("from pack.mod import x\ndef f(): return x", "assert f() == 5", files={"pack/mod.py": b"x = 5"}),
    "a helper that hides a library": Row(
        "import calendar\ndef f(): return calendar.x", "assert f() == 5", files={"calendar.py": b"x = 5"}
    ),
    "a data file": Row("def f(): return open('d.txt').read()", "assert f() == 'data'", files={"d.txt": b"data"}),
    "a helper that is not there": Row("import helper", "assert helper", passes=False),
    "sys.path begins with the directory": Row(
        "import sys, os", "assert os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd())"
    ),
    "sys.argv": Row("import sys", "assert sys.argv[0].endswith('solution.py') and len(sys.argv) == 1"),
    "flags are a plain Python's": Row(
        "import sys", "assert not (sys.flags.isolated or sys.flags.no_site or sys.flags.optimize or sys.flags.no_user_site)"
    ),
    "a Python of its own": Row(
        "import subprocess, sys\nask = 'import site, sys; print(sys.flags.isolated)'\n"
        "def f(): return subprocess.run([sys.executable, '-c', ask], capture_output=True, text=True).stdout",
        "assert f() == '0\\n'",
    ),
    "exit and quit are there": Row("import builtins", "assert callable(exit) and callable(quit) and builtins.help"),
    "__doc__": Row('"""Docs."""\ndef f(): return __doc__', "assert f() == 'Docs.'"),
    "__name__ in a class": Row("class A: ...", "assert A.__module__ == __name__"),
    "warnings": Row("import warnings\ndef f():\n    warnings.warn('x')\n    return 1", "assert f() == 1"),
    "lambda in a default": Row("def f(k=lambda n: n + 1): return k(1)", "assert f() == 2"),
    "walrus and match": Row(
        "def f(n):\n    match n:\n        case [x, *_] if (y := x): return y\n    return 0", "assert f([3, 4]) == 3"
    ),
    "unraisable at exit": Row("class A:\n    def __del__(self): raise ValueError\nx = A()", "assert x"),
    "a signal handler": Row(
        "import signal\nhit = []\nsignal.signal(signal.SIGALRM, lambda *_: hit.append(1))",
        "signal.raise_signal(signal.SIGALRM); assert hit",
    ),
    "stdin is empty": Row("import sys\ntext = sys.stdin.read()", "assert text == ''"),
    "input() of nothing": Row("def f():\n    try: input()\n    except EOFError: return 'eof'", "assert f() == 'eof'"),
}


def bare(row: Row, folder: Path) -> bool:
    """Whether a plain Python that loads the code and then runs the test ends with 0."""
    for path, content in row.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / "solution.py").write_bytes(row.code.encode("utf-8", "surrogatepass"))
    (folder / "test.txt").write_bytes(row.test.encode("utf-8", "surrogatepass"))
    run = (
        "import sys; sys.argv = ['solution.py']; import solution\n"
        "exec(compile(open('test.txt', 'rb').read(), 'test', 'exec', dont_inherit=True), vars(solution))"
    )
    done = subprocess.run([sys.executable, "-c", run], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=250)
    return done.returncode == 0


@pytest.mark.parametrize("name", MODULE)
def test_the_verdict_is_a_bare_runs(name: str, outcome: Callable[..., Outcome], tmp_path: Path) -> None:
    row = MODULE[name]
    assert bare(row, tmp_path) is row.passes, "the table is wrong about a plain Python"
    found = outcome(Task(code=row.code, tests=[row.test], files=row.files))
    assert found.verdict is (Verdict.PASSED if row.passes else Verdict.FAILED), found


MAINS = {
    "from __main__ import f\nassert f(2) == 4": True,
    "from __main__ import f\nassert f(2) == 5": False,
    "import timeit\nassert timeit.timeit('f(2)', setup='from __main__ import f', number=3) >= 0": True,
    "import unittest.mock\nwith unittest.mock.patch('__main__.f', lambda n: 7): assert f(2) == 7": True,
    "import doctest\nassert doctest.testmod().failed == 0": False,
    "import doctest\nfound = doctest.testmod()\nassert (found.attempted, found.failed) == (1, 1)": True,
}


def test_the_main_module_is_the_code(outcomes: Callable[..., list[Outcome]]) -> None:
    code = 'def f(n):\n    """\n    >>> f(3)\n    7\n    """\n    return 2 * n\n'
    found = outcomes([Task(code=code, tests=[test]) for test in MAINS])
    assert [one.passed for one in found] == list(MAINS.values()), found


def test_getsource_knows_a_function_of_the_test(outcome: Callable[..., Outcome]) -> None:
    """As where code and tests are one file."""
    code = "import inspect\ndef lines(f): return len(inspect.getsource(f).splitlines())"
    test = "def three(x):\n    y = x\n    return y\nassert lines(three) == 3"
    assert outcome(Task(code=code, tests=[test])).passed


UNIT_EXIT = (
    "import sys, unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
    "        self.assertEqual([f(n) for n in range(3)], [0, 2, 4])\n"
    "result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))\n"
)
EXITS = {
    UNIT_EXIT + "sys.exit(not result.wasSuccessful())": (1.0, 0.0),
    UNIT_EXIT + "sys.exit(0 if result.wasSuccessful() else 1)": (1.0, 0.0),
    UNIT_EXIT + "raise SystemExit(not result.wasSuccessful())": (1.0, 0.0),
    "import sys\ndef main():\n    for n in range(3): assert f(n) == 2 * n\nsys.exit(main())": (1.0, 0.0),
    "import sys\ndef main():\n    return int(any(f(n) != 2 * n for n in range(3)))\nsys.exit(main())": (1.0, 0.0),
    "import sys\nwrong = [n for n in range(3) if f(n) != 2 * n]\nsys.exit(len(wrong))\nassert False": (1.0, 0.0),
    "import sys\nsys.exit(\n    f(2) != 4\n    or f(0) != 0\n)": (1.0, 0.0),
    "def main():\n    return None if f(0) == 0 else 'wrong'\nexit(main())": (1.0, 0.0),
    "import os\nassert f(0) == 0\nwith open(os.devnull):\n    exit()\n": (1.0, 0.0),
    "import sys\nok = all(f(n) == 2 * n for n in range(3))\nif not ok: sys.exit(1)": (1.0, 0.0),
}


def test_a_test_may_end_itself(outcomes: Callable[..., list[Outcome]]) -> None:
    for test, rewards in EXITS.items():
        tasks = [Task(code=f"def f(n): return {body}", tests=[test]) for body in ("2 * n", "n * n + 1")]
        assert tuple(one.reward() for one in outcomes(tasks)) == rewards, test
    code = "import sys\ndef f(n): sys.exit(0)"
    assert outcomes([Task(code=code, tests=[test]) for test in EXITS])[0].reward() == 0.0


SPAWN = (
    "import multiprocessing\n"
    "def sq(n): return n * n\n"
    "def f(ns):\n"
    "    with multiprocessing.get_context('spawn').Pool(1) as p: return p.map(sq, ns)"
)


def test_spawned_processes_import_the_code(outcome: Callable[..., Outcome]) -> None:
    """A plain program would need a main block for it, an imported module does not."""
    assert outcome(Task(code=SPAWN, tests=["assert f([1, 2, 3]) == [1, 4, 9]"])).passed


DEPTH = "def depth(n=0):\n    try: return depth(n + 1)\n    except RecursionError: return n\nfound = depth()\n"


def test_recursion_goes_as_deep_as_in_a_plain_program(outcome: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(DEPTH + "print(found)")
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=True)
    plain = int(done.stdout)
    assert outcome(Task(code=DEPTH, tests=[f"assert found in ({plain}, {plain} + 1), found"])).passed
    assert outcome(
        Task(code="import sys; sys.setrecursionlimit(20000)\n" + DEPTH, tests=["assert found > 15000", "assert found > 15000"])
    ).passed
