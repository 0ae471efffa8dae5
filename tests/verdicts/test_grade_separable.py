"""What mode `separate` cannot judge is refused before anything runs; what it can judge is not."""

from __future__ import annotations

from typing import Any

import pytest

import aviato

REFUSED = {
    "a constant": ("from solution import LIMIT\nassert LIMIT == 3\n", "value of LIMIT"),
    "a constant of the module": ("import solution\nassert solution.LIMIT == 3\n", "value of solution.LIMIT"),
    "a constant by another name": ("import solution as s\nassert 3 < s.LIMIT\n", "value of s.LIMIT"),
    "a table": ("from solution import TABLE\nassert TABLE['a'] == 1\n", "value of TABLE"),
    "a loop over a constant": ("from solution import NAMES\nfor name in NAMES: assert name\n", "value of NAMES"),
    "an attribute of a function": ("from solution import f\nassert f.__doc__\n", "f.__doc__"),
    "an enumeration": ("from solution import Color\nassert Color.RED\n", "Color.RED"),
    "a class method": ("from solution import Box\nassert Box.of(3).get() == 3\n", "Box.of"),
    "isinstance": ("from solution import Box, make\nassert isinstance(make(), Box)\n", "isinstance"),
    "isinstance of several": ("from solution import Box, make\nassert isinstance(make(), (Box, int))\n", "isinstance"),
    "a base class": ("from solution import Base\nclass Mine(Base):\n    pass\n", "derives"),
    "a warning that is expected": (
        "import pytest\nfrom solution import f, Old\nwith pytest.warns(Old):\n    f()\n",
        "expects Old",
    ),
    "which class an answer is of": ("from solution import f, Wrong\nassert isinstance(f(1), Wrong)\n", "isinstance"),
    "what a class is derived from": ("from solution import Wrong\nassert issubclass(Wrong, ValueError)\n", "issubclass"),
    "an exception of its own that is raised": ("from solution import Wrong\nraise Wrong\n", "value of Wrong"),
    "a lambda": ("from solution import f\nassert f(lambda n: n) == 1\n", "function"),
    "a lambda by a keyword": ("import solution\nassert solution.f([1], key=lambda n: n) == 1\n", "function"),
    "a function of its own": ("from solution import f\ndef g(n): return n\nassert f(g) == 1\n", "g of its own"),
    "a generator": ("from solution import f\nassert f(n for n in range(3)) == 1\n", "generator"),
    "an object of its own": ("from solution import f\nclass Node:\n    pass\nassert f(Node()) == 1\n", "Node of its own"),
    "objects of its own in a list": (
        "from solution import f\nclass Node:\n    pass\nassert f([Node()]) == 1\n",
        "Node of its own",
    ),
    "a frame": ("import pandas as pd\nfrom solution import f\nassert f(pd.DataFrame([1])) == 1\n", "pd.DataFrame"),
    "a function given to what a call gives": ("from solution import f\nassert f(1)(lambda n: n) == 1\n", "function"),
    "a function given to a method": ("from solution import Box\nassert Box(1).apply(lambda n: n) == 1\n", "function"),
    "a decorator": ("from solution import cached\n@cached\ndef f(): return 1\n", "gives a function"),
    "a mutation that is awaited": (
        "import asyncio\nfrom solution import f\nnums = [2, 1]\nasyncio.run(f(nums))\nassert nums == [1, 2]\n",
        "only a copy",
    ),
    "a mutation by a function that a helper has": (
        "from solution import f\ndef check(g):\n    nums = [2, 1]\n    g(nums)\n    assert nums == [1, 2]\ncheck(f)\n",
        "only a copy",
    ),
    "a mutation by items": ("from solution import f\nnums = [2, 1]\nlist(f(nums))\nassert nums == [1, 2]\n", "only a copy"),
    "a star": ("from solution import *\nassert f(1) == 1\n", "imports *"),
    "the module itself": (
        "import inspect, solution\nassert 'eval' not in inspect.getsource(solution)\n",
        "module solution itself",
    ),
    "the source of a function": ("import inspect\nfrom solution import f\nassert inspect.getsource(f)\n", "getsource"),
    "a name that is there": ("import solution\nassert hasattr(solution, 'f')\n", "module solution itself"),
    "a patch": (
        "from unittest import mock\nimport solution\nwith mock.patch('solution.g'):\n    solution.f()\n",
        "replaces solution.g",
    ),
    "a patch of an object": (
        "from unittest import mock\nimport solution\nwith mock.patch.object(solution, 'g'): pass\n",
        "itself",
    ),
    "a monkeypatch": ("import solution\ndef test_it(monkeypatch):\n    monkeypatch.setattr(solution, 'g', 1)\n", "itself"),
    "a global that is set": ("import solution\nsolution.LIMIT = 3\n", "sets solution.LIMIT"),
    "a context": ("from solution import Lock\nwith Lock(): pass\n", "enters"),
    "an object that is compared with a value": ("from solution import P\np = P(1)\nassert p == 1\n", "compares p"),
    "an object that is reckoned with": ("from solution import V\nv = V(1)\nassert (v * 2).x == 2\n", "value of v"),
    "a value that is looked for in an object": ("from solution import Trie\nt = Trie()\nassert 'a' in t\n", "compares t"),
    "an object of the fixture that is compared": (
        "import unittest\nfrom solution import Stack\nclass T(unittest.TestCase):\n    def setUp(self):\n"
        "        self.s = Stack()\n    def test_it(self):\n        self.assertEqual(self.s, [])\n",
        "assertEqual",
    ),
    "a module of a package": ("from pkg import inner\nassert inner.X == 1\n", "inner.X"),
    "a dotted module": ("import pkg.inner\nassert pkg.inner.X == 1\n", "pkg.inner.X"),
}
TAKEN = {
    "calls": "from solution import f, g as h\nassert f(1) == 1 and h([1, 2]) == [2, 1]\n",
    "of the module": "import solution\nassert solution.f(1) == 1\n",
    "of a dotted module": "import pkg.inner\nassert pkg.inner.f(1) == 1\n",
    "a function passed on": "from solution import f, apply\nassert list(map(f, [1])) == [1] and apply(f, 1) == 1\n",
    "a key": "from solution import f\nassert sorted([2, 1], key=f) == [1, 2]\n",
    "parameters": "import pytest\nfrom solution import f, g\n"
    "@pytest.mark.parametrize('each', [f, g])\ndef test_it(each): assert each(1) == 1\n",
    "built-in exceptions": "import pytest\nfrom solution import f\n"
    "def test_it():\n    with pytest.raises(ValueError):\n        f(-1)\n",
    "an exception of a call": "import pytest\nfrom solution import f\ndef test_it(): pytest.raises(ValueError, f, -1)\n",
    "methods": "from solution import Stack\ns = Stack()\ns.push(1)\nassert s.pop() == 1\n",
    "a list given to a method": "from solution import S\nnums = [1, 2]\ns = S()\ns.add(nums)\nassert s.size() == len(nums)\n",
    "an argument that is used again": "from solution import f\nnums = [3, 1]\nfound = f(nums)\nassert found == sorted(nums)\n",
    "an argument of the same line": "from solution import f\nfor n in range(9):\n    assert f(n) == n * n\n",
    "a statement of numbers": "from solution import f\nfor n in range(3):\n    f(n)\n    assert f(n) == n\n",
    "a new list each time": "from solution import f\nnums = [1]\nf(nums)\nnums = [2]\nassert nums == [2]\n",
    "a variable of the same name": "from solution import f\ndef test_it():\n    f = 3\n    assert f == 3\n",
    "a parameter of the same name": "from solution import f\ndef g(f): return f + 1\nassert g(1) == 2\n",
    "other modules": "import os, solution\nassert os.sep == '/' and solution.f(os.sep)\n",
    "a Decimal": "from decimal import Decimal\nfrom solution import f\nassert f(Decimal('1')) == 1\n",
    "an array": "import numpy as np\nfrom solution import f\nassert f(np.array([1])) == 1\n",
    "a coroutine": "import asyncio\nfrom solution import f\nasync def main(): return await f()\nasyncio.run(main())\n",
    "the length of an object": "from solution import Stack\ns = Stack()\nassert len(s) == 0\n",
    "the truth of an object": "from solution import Stack\ns = Stack()\nif s: pass\n",
    "a property of an object": "from solution import Stack\ns = Stack()\nassert s.size == 0\n",
    "an item of an object": "from solution import Grid\ng = Grid()\nassert g[0] == 0\n",
    "an attribute that is set": "from solution import Box\nb = Box()\nb.n = 3\n",
    "objects that are compared": "from solution import P\np, q = P(1), 2\np = P(2)\nassert p == P(1)\n",
    "an object that is None": "from solution import Node\nn = Node()\nassert n is not None\n",
    "a list sorted by a function": "from solution import f\nf(3).sort(key=lambda n: n)\n",
    "an object of the fixture": "import unittest\nfrom solution import Stack\nclass T(unittest.TestCase):\n"
    "    def setUp(self):\n"
    "        self.s = Stack()\n    def test_it(self):\n        self.assertEqual(len(self.s), 0)\n",
    "no Python": "assert (\n",
    "another language": "$x = 1;\n",
    "a value that was given": "from solution import f\nvalue = f(1)\nassert value.count == 3 and len(value) == value[0]\n",
    "a file that is read, and warnings that are silenced": "import warnings\nimport solution\nwith warnings.catch_warnings():\n"
    "    warnings.simplefilter('ignore')\n    assert solution.f(open('given.txt').read()) == 1\n",
    "a file that is given, and may be there": "import solution\nsolution.f('a')\nassert open('a').read()\n",
    "what crosses with calls": "import decimal, random, sys, solution\nrandom.seed(1)\ndecimal.getcontext().prec = 5\n"
    "sys.setrecursionlimit(9999)\nassert solution.f() == 1\n",
    "functions of its own names": "import solution\ndef print(each): return each\nassert print(solution.f()) == 1\n",
    "what has a process of its own, and nothing of the solution": "import sys\nsys.argv = ['a']\nassert sys.argv\n",
    "whether nothing comes": "import solution\nx = [1]\nassert solution.f(x) is None\n",
}
OF_ITS_OWN = (
    "@mock.patch('builtins.input', return_value='1')\ndef test_it(given):\n    assert solution.f() == 1\n",
    "def test_it():\n    with mock.patch.object(os, 'getcwd'):\n        assert solution.f() == 1\n",
    "def test_it():\n    with redirect_stdout(io.StringIO()) as out:\n        solution.f()\n    assert out.getvalue()\n",
    "def test_it(capsys):\n    solution.f()\n    assert capsys.readouterr().out == 'x'\n",
    "def test_it(tmp_path):\n    assert solution.f(str(tmp_path)) == 1\n",
    "def test_it():\n    with tempfile.TemporaryDirectory() as folder:\n        assert solution.f(folder) == 1\n",
    "def test_it():\n    open('a', 'w').write('b')\n    assert solution.f('a') == 'b'\n",
    "def test_it():\n    with warnings.catch_warnings(record=True) as told:\n        solution.f()\n    assert told\n",
    "def test_it():\n    with pytest.warns(UserWarning):\n        solution.f()\n",
    "def test_it():\n    sys.argv = ['a']\n    assert solution.f() == 1\n",
    "def test_it():\n    os.environ['A'] = 'b'\n    assert solution.f() == 'b'\n",
    "def test_it():\n    open('log', 'w').write('a')\n    assert solution.f('a') == 1\n",
)
REFUSED |= {f"its own process, {number}": (f"import solution\n{test}", "own") for number, test in enumerate(OF_ITS_OWN)}
REFUSED["what is given back"] = ("from solution import f\ndef test_it(x):\n    assert f(x) is x\n", "only a copy")
RESULTS = ["solution.py", "pkg/__init__.py", "pkg/inner.py"]


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_judged_apart_is_refused_at_once(kind: str) -> None:
    test, why = REFUSED[kind]
    with pytest.raises(aviato.AviatoValidationError) as caught:
        aviato.Sandbox().grade({"check.py": test.encode()}, ["python3", "check.py"], result_paths=RESULTS)
    assert why in str(caught.value) and "mode='in_process'" in str(caught.value) and "check.py" in str(caught.value)


@pytest.mark.parametrize("kind", TAKEN)
def test_what_can_is_taken(kind: str) -> None:
    from aviato.grading.separable import check_separable

    check_separable({"check.py": TAKEN[kind].encode()}, RESULTS)


def test_in_process_takes_all_of_it() -> None:
    from aviato.grading.arguments import grade_request

    for test, _ in REFUSED.values():
        grade_request({"check.py": test.encode()}, ["python3", "check.py"], RESULTS, "in_process", 1, None, None, False, 1)


RUNTIME = {
    "a function that was found by its name": "import solution\ndef test_it():\n    assert solution.__getattr__('f') == 3\n",
    "a value of another kind": "from solution import f\nvalue = object()\ndef test_it():\n    assert f(value) == 3\n",
}


@pytest.mark.parametrize("kind", RUNTIME)
def test_what_is_only_seen_as_it_runs_is_no_verdict_either(kind: str, server: Any) -> None:
    with aviato.Sandbox(base_url=server.url) as sandbox:
        for solution in ("def f(n): return 3\n", "def f(n): return 4\n"):
            sandbox.write_file("solution.py", solution.encode()).result()
            for command in (["python3", "check.py"], ["python3", "-m", "unittest", "check"]):
                test = f"{RUNTIME[kind]}test_it()\n"
                with pytest.raises(aviato.SandboxExecutionError) as caught:
                    sandbox.grade(
                        {"check.py": test.encode()}, command, result_paths=["solution.py"], timeout_seconds=20
                    ).result(50)
                assert caught.value.reason == "grader_failed" and caught.value.is_infrastructure


OF_ANSWERS = {
    "a view": (
        "from solution import f, g\ndef test_it():\n    assert g(f(1).items()) == 1\n",
        "from collections import OrderedDict as D\ndef f(n): return D(a=7)\ndef g(items): return sum(v for _, v in items)\n",
    ),
    "a number": (
        "from solution import f, g\ndef test_it():\n    assert g(f(1) + 1) == 1\n",
        "from fractions import Fraction\ndef f(n): return Fraction(16 ** 4300 - 1)\ndef g(n): return n\n",
    ),
    "another number": (
        "from solution import f, g\ndef test_it():\n    assert g(f(1) / 3) == 1\n",
        "from decimal import Decimal\ndef f(n): return Decimal('1e-4300')\ndef g(n): return n\n",
    ),
}


@pytest.mark.parametrize("kind", OF_ANSWERS)
def test_what_an_answer_is_cannot_keep_its_test_from_being_graded(kind: str, server: Any) -> None:
    """What the test makes of it, and gives back, may be no data that crosses, and that is the solution's own fault."""
    test, code = OF_ANSWERS[kind]
    with aviato.Sandbox(base_url=server.url) as sandbox:
        sandbox.write_file("solution.py", code.encode()).result()
        given = {"check.py": f"{test}test_it()\n".encode()}
        graded = sandbox.grade(given, ["python3", "check.py"], result_paths=["solution.py"], timeout_seconds=20).result(50)
        assert graded.passed is False


def test_views_of_an_ordered_dict_cross(server: Any) -> None:
    code = "from collections import OrderedDict\ndef f(n): return OrderedDict(a=n)\ndef g(each): return sorted(each)\n"
    test = (
        "from solution import f, g\nd = f(1)\n"
        "assert g(d.items()) == [('a', 1)] and g(d.keys()) == ['a'] and g(d.values()) == [1]\n"
    )
    with aviato.Sandbox(base_url=server.url) as sandbox:
        sandbox.write_file("solution.py", code.encode()).result()
        given = {"check.py": test.encode()}
        graded = sandbox.grade(given, ["python3", "check.py"], result_paths=["solution.py"], timeout_seconds=20).result(50)
        assert graded.passed is True, graded.message


def test_a_solution_cannot_say_that_a_test_is_at_fault(server: Any) -> None:
    text = "x\naviato_solution.NotSeparable: the test uses f"
    code = f"class NotSeparable(Exception): pass\ndef f(n): raise NotSeparable({text!r})\n"
    test = b"from solution import f\nassert f(1) == 1\n"
    with aviato.Sandbox(base_url=server.url) as sandbox:
        sandbox.write_file("solution.py", code.encode()).result()
        for command in (["python3", "check.py"], ["python3", "-m", "unittest", "check"]):
            assert (
                not sandbox.grade({"check.py": test}, command, result_paths=["solution.py"], timeout_seconds=20)
                .result(50)
                .passed
            )
