"""What a test sets, watches or makes for its whole process: a bare run's verdict in mode `separate`, or none, and why."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import aviato
from aviato import AviatoValidationError
from aviato.rl import Outcome, Task
from tests.environments import interpreter
from tests.verdicts.test_as_a_module import Row, bare

DRAWS = "import random\ndef f(n): return [random.randint(0, 99) for _ in range(n)]"
DRAWS_OF_ITS_OWN = "import os\ndef f(n): return list(os.urandom(n))"
DRAWS_OF_NUMPY = "import numpy as np\ndef f(n): return np.random.rand(n).tolist()"
DIVIDES = "from decimal import Decimal\ndef f(n): return Decimal(1) / n"
DEEP = "def f(n): return 0 if n == 0 else 1 + f(n - 1)"
WAITS = "import time\ndef f(n):\n    time.sleep(n)\n    return n"
READS = "def f(n): return open('in.txt').read()"
WRITES = "def f(n):\n    with open('out.txt', 'w') as file: file.write('q')"
OF_ENVIRONMENT = "import os\ndef f(n): return os.environ.get('A')"
PRINTS = "def f(n): print(n)"
RINGS = (
    "import signal, time\nclass Over({}): pass\ndef over(*_): raise Over\nsignal.signal(signal.SIGALRM, over)\n"
    "try:\n    signal.setitimer(signal.ITIMER_REAL, 0.2)\n    f(40)\nexcept Over: pass\nelse: assert False\n"
    "assert [f(n) for n in (0, 0.01, 0)] == [0, 0.01, 0]"
)


class Case(NamedTuple):
    """Code that is right, a test of it, and wrong code."""

    code: str
    test: str
    wrong: str = "def f(n): return 'wrong'"


JUDGED = {
    "a seed": Case(DRAWS, "import random\nrandom.seed(5)\nassert f(3) == [79, 32, 94]"),
    "a seed that is set again": Case(
        DRAWS, "import random\nrandom.seed(5)\na = f(4)\nrandom.seed(5)\nassert f(4) == a != f(4)"
    ),
    "a seed, and what the test draws": Case(
        DRAWS,
        "from random import randint, seed\nseed('x')\na = f(4)\nseed('x')\nassert a == [randint(0, 99) for _ in range(4)]",
    ),
    "a state that is set again": Case(
        DRAWS,
        "import random\nstate = random.getstate()\na = f(4)\nrandom.setstate(state)\nassert f(4) == a",
        DRAWS_OF_ITS_OWN,
    ),
    "a draw between a seed and a call": Case(
        DRAWS,
        "import random\nrandom.seed(5)\nrandom.random()\na = f(9)\nrandom.seed(5)\nrandom.random()\nassert f(9) == a",
        DRAWS_OF_ITS_OWN,
    ),
    "a seed in a child": Case(
        DRAWS,
        "import os, random\nif os.fork() == 0:\n    random.seed(5)\n    os._exit(f(3) != [79, 32, 94])\n"
        "assert os.wait()[1] == 0\nassert f(0) == []",
    ),
    "inputs that are drawn": Case(
        "def f(n): return sorted(n)",
        "import random\nrandom.seed(1)\nfor _ in range(50):\n    a = [random.random() for _ in range(5)]\n"
        "    assert f(a) == sorted(a)",
    ),
    "numbers that the code draws in order": Case(
        DRAWS, "import random\nrandom.seed(5)\na = f(1) + f(1) + f(1)\nrandom.seed(5)\nassert a == f(3) and len(set(a)) == 3"
    ),
    "the precision of decimals": Case(DIVIDES, "import decimal\ndecimal.getcontext().prec = 5\nassert str(f(3)) == '0.33333'"),
    "a context of decimals": Case(
        DIVIDES,
        "import decimal\nwith decimal.localcontext() as c:\n    c.prec = 5\n    assert str(f(3)) == '0.33333'\n"
        "assert len(str(f(3))) == 30",
    ),
    "another context of decimals": Case(
        DIVIDES,
        "from decimal import ROUND_UP, Context, setcontext\nsetcontext(Context(prec=3, rounding=ROUND_UP))\n"
        "assert str(f(3)) == '0.334'",
    ),
    "a trap of decimals": Case(
        DIVIDES,
        "import decimal\ndecimal.getcontext().traps[decimal.Inexact] = True\ntry: f(3)\n"
        "except ArithmeticError: pass\nelse: assert False\n"
        "assert f(4) == decimal.Decimal('0.25')",
    ),
    "the depth": Case(DEEP, "import sys\nsys.setrecursionlimit(5000)\nassert f(4000) == 4000"),
    "the depth, by another name": Case(
        DEEP, "from sys import setrecursionlimit as deepen\ndeepen(5000)\nassert f(4000) == 4000"
    ),
    "less depth": Case(
        DEEP,
        "import sys\nsys.setrecursionlimit(150)\ntry: f(400)\nexcept RecursionError: pass\nelse: assert False\n"
        "assert f(3) == 3",
    ),
    "the depth that the code sets": Case(
        f"import sys\nsys.setrecursionlimit(6000)\n{DEEP}", "import sys\nassert sys.getrecursionlimit() > 0 and f(5000) == 5000"
    ),
    "long numbers": Case(
        "def f(n): return len(str(10 ** n))",
        "import sys\nif hasattr(sys, 'set_int_max_str_digits'): sys.set_int_max_str_digits(0)\nassert f(9999) == 10000",
    ),
    "a clock that interrupts a call": Case(WAITS, RINGS.format("Exception"), "def f(n): return n + 1"),
    "a clock that raises an OSError": Case(WAITS, RINGS.format("TimeoutError"), "def f(n): return n + 1"),
    "a clock that is in time": Case(WAITS, "import signal\nsignal.alarm(50)\nassert f(0) == 0\nsignal.alarm(0)"),
    "a pool of processes": Case(
        "def f(n): return n + 1",
        "from multiprocessing import get_context\nwith get_context('fork').Pool(2) as p:\n"
        "    assert p.map(f, [1, 2]) == [2, 3]",
    ),
    "a pool of threads": Case(
        "def f(n): return n + 1",
        "from concurrent.futures import ThreadPoolExecutor as Pool\nwith Pool(3) as p:\n"
        "    assert list(p.map(f, range(9))) == [*range(1, 10)]",
    ),
    "a copy of the function": Case("def f(n): return n + 1", "import copy\nassert copy.deepcopy(f)(1) == copy.copy(f)(1) == 2"),
    "a file that is there for both": Case(
        "def f(n): return open(n).read()", "assert f('given.txt') == open('given.txt').read() == 'text'"
    ),
    "a folder of files for both": Case(
        "import os\ndef f(n): return os.listdir(n)", "import os\nassert os.path.isdir('d') and f('d') == os.listdir('d')"
    ),
    "what the test's own interpreter is told": Case(
        "def f(n): return n + 1", "import sys, os\nsys.dont_write_bytecode = True\nsys.path.append(os.curdir)\nassert f(1) == 2"
    ),
    "a database in memory": Case(
        "def f(n): return n + 1",
        "import sqlite3\nc = sqlite3.connect(':memory:')\nassert c.execute('select 2').fetchone()[0] == f(1)",
    ),
    "what is written nowhere": Case("def f(n): return n + 1", "import os\nopen(os.devnull, 'w').write('x')\nassert f(1) == 2"),
    "variables that are called as functions are": Case(
        "def f(n): return sum(n)", "input = [1, 2]\nprint = 3\nassert f(input) == print"
    ),
}
OF_NUMPY = {
    "numpy's seed": Case(
        DRAWS_OF_NUMPY,
        "import numpy as np\nnp.random.seed(1)\na = f(3)\nnp.random.seed(1)\nassert a == np.random.rand(3).tolist()",
    ),
    "numpy's state": Case(
        DRAWS_OF_NUMPY,
        "import numpy as np\ns = np.random.get_state()\na = f(3)\nnp.random.set_state(s)\nassert a == f(3) != f(3)",
    ),
    "numpy's seed of a random of its own": Case(
        "import numpy as np\ndef f(n): return np.random.RandomState(n).rand()",
        "import numpy\nnumpy.random.seed(1)\nassert f(3) == f(3)",
        "import numpy as np\ndef f(n): return np.random.rand()",
    ),
}
FILES = {"given.txt": b"text", "d/e": b""}
REFUSED = {
    "the environment": (OF_ENVIRONMENT, "import os\nos.environ.update(A='1')\nassert f(1) == '1'", "os.environ.update"),
    "a default of the environment": (
        OF_ENVIRONMENT,
        "import os\nos.environ.setdefault('A', '1')\nassert f(1) == '1'",
        "setdefault",
    ),
    "less environment": (
        "import os\ndef f(n): return 'PATH' in os.environ",
        "import os\nos.environ.pop('PATH')\nassert not f(1)",
        "pop",
    ),
    "the environment, by its name": (
        OF_ENVIRONMENT,
        "from os import environ as e\ne['A'] = '1'\nassert f(1) == '1'",
        "process (e)",
    ),
    "the zone": (
        "import time\ndef f(n): return time.localtime(0).tm_hour",
        "import os, time\nos.environ['TZ'] = 'UTC+3'\ntime.tzset()\nassert f(1) == 21",
        "os.environ",
    ),
    "input": (
        "def f(n): return int(input()) + n",
        "import builtins\nbuiltins.input = lambda *_: '4'\nassert f(1) == 5",
        "builtins.input",
    ),
    "input, as the test's function": (
        "def f(n): return int(input()) + n",
        "def input(*_): return '4'\nassert f(1) == 5",
        "input",
    ),
    "input, as a mock": (
        "def f(n): return int(input()) + n",
        "from unittest.mock import MagicMock\ninput = MagicMock(return_value='4')\nassert f(1) == 5",
        "input",
    ),
    "print": (
        PRINTS,
        "import builtins\nout = []\nbuiltins.print = lambda *a: out.append(a)\nf(1)\nassert out == [(1,)]",
        "builtins.print",
    ),
    "print, as the test's function": (
        PRINTS,
        "out = []\nprint = lambda *a: out.append(a)\nf(1)\nassert out == [(1,)]",
        "print",
    ),
    "what is printed": (
        PRINTS,
        "import sys, io\nsys.stdout = out = io.StringIO()\nf(1)\nassert out.getvalue() == '1\\n'",
        "sys.stdout",
    ),
    "what is printed, by another name": (
        PRINTS,
        "import contextlib as c, io\nwith c.redirect_stdout(io.StringIO()) as out: f(1)\nassert out.getvalue() == '1\\n'",
        "redirect",
    ),
    "a function of a module": (
        "import random\ndef f(n): return random.random()",
        "import random\nrandom.random = lambda: .5\nassert f(1) == .5",
        "random.random",
    ),
    "a clock": (
        "import time\ndef f(n): return time.time()",
        "import time as t\nt.time = lambda: 5\nassert f(1) == 5",
        "t.time",
    ),
    "a clock, by setattr": (
        "import time\ndef f(n): return time.time()",
        "import time\nsetattr(time, 'time', lambda: 5)\nassert f(1) == 5",
        "setattr",
    ),
    "a module": (
        "def f(n):\n    import helper\n    return helper.x",
        "import sys, types\nsys.modules['helper'] = types.SimpleNamespace(x=3)\nassert f(1) == 3",
        "sys.modules",
    ),
    "the arguments": (
        "import sys\ndef f(n): return sys.argv[-1]",
        "import sys\nsys.argv.append('a')\nassert f(1) == 'a'",
        "sys.argv",
    ),
    "the arguments, in place": (
        "import sys\ndef f(n): return sys.argv[1]",
        "import sys\nsys.argv[:] = ['p', 'a']\nassert f(1) == 'a'",
        "sys.argv",
    ),
    "the mask": ("import os\ndef f(n): return os.umask(0)", "import os\nos.umask(0o77)\nassert f(1) == 0o77", "umask"),
    "the directory": ("import os\ndef f(n): return os.getcwd()", "import os\nos.chdir('/')\nassert f(1) == '/'", "chdir"),
    "warnings that are errors": (
        "import warnings\ndef f(n): warnings.warn('x')",
        "import warnings\nwarnings.simplefilter('error')\ntry: f(1)\nexcept UserWarning: pass\nelse: assert False",
        "simplefilter",
    ),
    "the log": (
        "import logging\ndef f(n): logging.error('x')",
        "import logging, io\nlogging.basicConfig(stream=(out := io.StringIO()))\nf(1)\nassert 'x' in out.getvalue()",
        "basicConfig",
    ),
    "a handler of the log": (
        "import logging\ndef f(n): logging.error('x')",
        "import logging, io\nlogging.getLogger().addHandler(logging.StreamHandler(out := io.StringIO()))\nf(1)\n"
        "assert 'x' in out.getvalue()",
        "addHandler",
    ),
    "a file that is written": (READS, "with open('in.txt', 'w') as file: file.write('q')\nassert f(1) == 'q'", "open"),
    "a file that is written, by its path": (
        READS,
        "from pathlib import Path\nPath('in.txt').write_text('q')\nassert f(1) == 'q'",
        "write_text",
    ),
    "a path that is opened": (
        READS,
        "import pathlib\np = pathlib.Path('in.txt')\nwith p.open('w') as file: file.write('q')\nassert f(1) == 'q'",
        "p.open",
    ),
    "a folder": ("import os\ndef f(n): return os.path.isdir('x')", "import os\nos.mkdir('x')\nassert f(1)", "mkdir"),
    "a folder, by its path": (
        "import os\ndef f(n): return os.path.isdir('x')",
        "from pathlib import Path\nPath('x').mkdir()\nassert f(1)",
        "mkdir",
    ),
    "a database": (
        "import sqlite3\ndef f(n): return sqlite3.connect(n).execute('select a from t').fetchone()[0]",
        "import sqlite3\nwith sqlite3.connect('x.db') as c:\n    c.execute('create table t(a)')\n"
        "    c.execute('insert into t values(2)')\nassert f('x.db') == 2",
        "sqlite3.connect",
    ),
    "a file that the code writes": (WRITES, "f(1)\nassert open('out.txt').read() == 'q'", "'out.txt'"),
    "a file that the code writes, by its name": (
        "def f(n):\n    with open(n, 'w') as file: file.write('q')",
        "name = 'out.txt'\nf(name)\nwith open(name) as file: assert file.read() == 'q'",
        "'out.txt'",
    ),
    "whether the code wrote a file": (
        WRITES,
        "import os\nf(1)\nassert os.path.exists('out.txt')\nos.remove('out.txt')",
        "'out.txt'",
    ),
    "whether the code wrote a file, by its path": (
        WRITES,
        "from pathlib import Path\nf(1)\nassert Path('out.txt').exists()",
        "'out.txt'",
    ),
    "a server of the test's": (
        "import socket\ndef f(n): return socket.create_connection(('127.0.0.1', n)).recv(1)",
        "import socket, threading\ns = socket.create_server(('127.0.0.1', 0))\n"
        "threading.Thread(target=lambda: s.accept()[0].send(b'x')).start()\nassert f(s.getsockname()[1]) == b'x'",
        "create_server",
    ),
}


def rows_of(cases: dict[str, Case]) -> dict[str, tuple[Task, Row]]:
    """Each with its right and its wrong code, here and for a plain Python."""
    rows = {
        f"{name}: {which}": (case.test, getattr(case, which)) for name, case in cases.items() for which in ("code", "wrong")
    }
    return {
        name: (Task(code=code, tests=[test], grading="separate", code_names=["f"], files=FILES), Row(code, test, files=FILES))
        for name, (test, code) in rows.items()
    }


@pytest.mark.parametrize("name", [f"{name}: {which}" for name in (*JUDGED, *OF_NUMPY) for which in ("code", "wrong")])
def test_the_table_is_right_about_a_plain_python(name: str, tmp_path: Path) -> None:
    if name.startswith("numpy"):
        pytest.importorskip("numpy")
    assert bare(rows_of({**JUDGED, **OF_NUMPY})[name][1], tmp_path) is name.endswith("code")


def test_the_verdict_is_a_bare_runs(outcomes: Callable[..., list[Outcome]]) -> None:
    rows = rows_of(JUDGED)
    found = dict(zip(rows, outcomes([task for task, _ in rows.values()]), strict=True))
    assert not {name: one.message for name, one in found.items() if one.is_infrastructure}
    assert not {name: one.message for name, one in found.items() if one.passed is not name.endswith("code")}


def test_so_it_is_with_numpy(outcomes: Callable[..., list[Outcome]]) -> None:
    pytest.importorskip("numpy")
    if sys.version_info[1] != interpreter().minor:
        pytest.skip("the Python of sandboxes is another than that of these tests, which has numpy")
    rows = rows_of(OF_NUMPY)
    found = outcomes([task for task, _ in rows.values()], packages=sys.prefix)
    assert [one.passed for one in found] == [name.endswith("code") for name in rows], [one.message for one in found]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_cross_is_refused_whatever_the_code_is(name: str, tmp_path: Path) -> None:
    """It was right in a plain Python: what is refused has no verdict that could be wrong."""
    code, test, why = REFUSED[name]
    assert bare(Row(code, test), tmp_path), "the table is wrong about a plain Python"
    for given in (code, "def f(n): return n"):
        with pytest.raises(AviatoValidationError, match=re.escape(why)):
            Task(code=given, tests=[test], grading="separate", code_names=["f"])


GRADED = {
    "a script": (["python3", "check.py"], "import random\nfrom solution import f\n{}"),
    "a seed before the code is loaded": (["python3", "check.py"], "import random\nfrom random import seed\n{}"),
    "pytest": (["python3", "-m", "pytest", "check.py"], "import random\nfrom solution import f\ndef test_it():\n    {}"),
    "unittest": (
        ["python3", "-m", "unittest", "check"],
        "import random, unittest\nfrom solution import f\nclass T(unittest.TestCase):\n    def test_it(self):\n        {}",
    ),
}


@pytest.mark.parametrize("kind", GRADED)
def test_a_graders_seeds_are_heard(kind: str, session: aviato.Session) -> None:
    command, test = GRADED[kind]
    lines = "random.seed(5); assert f(3) == [79, 32, 94]; random.seed(5); assert f(1) == [79]"
    if kind == "a seed before the code is loaded":
        lines = "seed(5)\nfrom solution import f\nassert f(3) == [79, 32, 94]"
    sandbox = session.sandbox()
    for code, passes in ((DRAWS, True), (DRAWS.replace("99", "9"), False)):
        sandbox.write_file("solution.py", code.encode()).result()
        given = {"check.py": test.format(lines).encode()}
        try:
            graded = sandbox.grade(given, command, result_paths=["solution.py"], timeout_seconds=30).result(50)
        except aviato.SandboxExecutionError as error:
            assert "pytest" in str(error) and kind == "pytest"
            pytest.skip("no pytest inside")
        assert graded.passed is passes, graded
