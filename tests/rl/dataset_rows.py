"""Rows of the schemas that the hub has, made for the tests, and answers to them.

Each answer has the verdict of the data set's own harness, which was run on it: `True` passes. Of CodeContests, whose harness
has to be built with Bazel, the comparison was built and run, and the rest is by its source.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def packed(tests: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


@dataclass(frozen=True)
class Example:
    """One row.

    Attributes:
        dataset: its name.
        row: of the hub's schema.
        answers: by what they are: code.
        harness: of each answer, the verdict of the data set's harness.
        here: of each answer whose verdict here is another one, that verdict.
        grading: in which the guide recommends to judge it.
        needs: a module that the sandbox needs beside the standard library.
    """

    dataset: str
    row: Mapping[str, Any]
    answers: Mapping[str, str]
    harness: Mapping[str, bool]
    here: Mapping[str, bool] = field(default_factory=dict)
    grading: str = "in_process"
    needs: str = ""


DOUBLE = "def double(n):\n    return 2 * n\n"
ALWAYS_EQUAL = (
    "class Anything:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
    "    def __hash__(self): return 0\n"
)
FUNCTIONS = {
    "right": DOUBLE,
    "wrong": "def double(n):\n    return n * n\n",
    "early exit": "def double(n):\n    import os\n    os._exit(0)\n",
    "exit while it loads": "def double(n):\n    return n * n\nraise SystemExit(0)\n",
    "exits 0 at an exception": "import os, sys\nsys.excepthook = lambda *_: os._exit(0)\ndef double(n): return n * n\n",
}
FUNCTIONS_FAIL = {name: name == "right" for name in FUNCTIONS}
SUMS = {
    "right": "n = int(input())\nprint(sum(map(int, input().split())))\n",
    "right, as main": "def main():\n    input()\n    print(sum(map(int, input().split())))\n"
    "if __name__ == '__main__':\n    main()\n",
    "right, and it exits": "import sys\ninput()\nprint(sum(map(int, input().split())))\nsys.exit(0)\n",
    "wrong": "input()\nprint(max(map(int, input().split())))\n",
    "early exit": "import sys\nsys.exit(0)\n",
    "crash after the answer": "input()\nprint(sum(map(int, input().split())))\nraise ValueError('late')\n",
    "prints the verdict": "print('passed')\nprint('True')\n",
}
SUMS_HARNESS = {name: name.startswith("right") for name in SUMS}
STDIN = (["3\n1 2 3\n", "2\n5 5\n", "1\n7\n"], ["6\n", "10\n", "7\n"])
TESTS = [{"input": given, "output": output} for given, output in zip(*STDIN, strict=True)]

MBPP = Example(
    "mbpp",
    {
        "task_id": 9001,
        "text": "Write a function to double a number.",
        "code": "def double(n):\r\n  return 2 * n",
        "test_list": ["assert double(2) == 4", "assert double(3) == 6", "assert double(-1) == -2"],
        "test_setup_code": "",
        "challenge_test_list": ["assert double(10**9) == 0"],
    },
    {**FUNCTIONS, "equals everything": ALWAYS_EQUAL + "def double(n):\n    return Anything()\n"},
    {**FUNCTIONS_FAIL, "equals everything": True},
    {"equals everything": False},
    grading="separate",
)
MBPP_SANITIZED = Example(
    "mbpp",
    {
        "source_file": "Benchmark Questions Verification V2.ipynb",
        "task_id": 9002,
        "prompt": "Write a function to find the area of a circle.",
        "code": "import math\ndef area(r):\n  return math.pi * r * r",
        "test_imports": ["import math"],
        "test_list": [
            "assert math.isclose(area(1), 3.14159, rel_tol=0.001)",
            "assert math.isclose(area(2), 12.566, rel_tol=0.001)",
        ],
    },
    {
        "right": "def area(r):\n    return 3.14159265 * r ** 2\n",
        "wrong": "def area(r):\n    return 2 * 3.14159 * r\n",
        "early exit": "def area(r):\n    raise SystemExit\n",
        "patches what the tests use": "import math\nmath.isclose = lambda *a, **k: True\ndef area(r):\n    return 0\n",
    },
    {"right": True, "wrong": False, "early exit": False, "patches what the tests use": True},
    {"patches what the tests use": False},
    grading="separate",
)
MBPP_SETUP = Example(
    "mbpp",
    {
        "task_id": 9003,
        "text": "Write a function to count the nodes of a tree.",
        "code": "class Node:\r\n  def __init__(self, x):\r\n    self.left = None\r\ndef count(root):\r\n  return 1",
        "test_list": ["assert count(root) == 2"],
        "test_setup_code": "root = Node(1) \r\nroot.left = Node(2) \r\n",
        "challenge_test_list": [],
    },
    {
        "right": "class Node:\n    def __init__(self, x): self.left = None\ndef count(n):\n"
        "    return 0 if n is None else 1 + count(n.left)\n",
        "wrong": "class Node:\n    def __init__(self, x): self.left = None\ndef count(n):\n    return 1\n",
        "early exit": "class Node:\n    def __init__(self, x): exit(0)\ndef count(n):\n    return 2\n",
        "no class": "def count(n):\n    return 2\n",
    },
    {"right": True, "wrong": False, "early exit": False, "no class": False},
)
EVALPLUS = """import numpy as np

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    if isinstance(x, np.ndarray):
        return x.dtype == np.float64 or x.dtype == np.float32
    return False


def assertion(out, exp, atol):
    exact_match = out == exp

    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact_match and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert exact_match

"""
MBPP_PLUS = Example(
    "mbpp",
    {
        "task_id": 9004,
        "code": "\ndef double(n):\n  return 2 * n\n",
        "prompt": "Write a function to double a number.",
        "source_file": "Benchmark Questions Verification V2.ipynb",
        "test_imports": [],
        "test_list": ["assert double(2) == 4"],
        "test": EVALPLUS + "inputs = [[2], [0.1], [-7]]\nresults = [4, 0.2, -14]\n"
        "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion(double(*inp), exp, 0)\n",
    },
    {**FUNCTIONS, "right on the first test alone": "def double(n):\n    return n + 2\n"},
    {**FUNCTIONS_FAIL, "right on the first test alone": False},
    needs="numpy",
)
_PROMPT = (
    "from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n"
    '    """ Add up.\n    >>> total([1, 2])\n    3\n    """\n'
)
_CHECK = (
    "\n\nMETADATA = {\n    'author': 'jt',\n    'dataset': 'test'\n}\n\n\ndef check(candidate):\n"
    "    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n    assert candidate([5]) == 5\n"
)
_TOTALS = {
    "right": "def total(numbers: List[int]) -> int:\n    return sum(numbers)\n",
    "right, its body": "    result = 0\n    for one in numbers:\n        result += one\n    return result\n",
    "right, its body without its first indentation": "result = 0\n    for one in numbers:\n        result += one\n"
    "    return result",
    "right, from the future": "from __future__ import annotations\ndef total(numbers: list[int] | None) -> int:\n"
    "    return sum(numbers)\n",
    "wrong": "def total(numbers):\n    return max(numbers)\n",
    "early exit": "def total(numbers):\n    raise SystemExit(0)\n",
    "defines check": "def total(numbers):\n    return 0\ndef check(candidate):\n    pass\n",
}
HUMANEVAL = Example(
    "humaneval",
    {
        "task_id": "HumanEval/900",
        "prompt": _PROMPT,
        "canonical_solution": "    return sum(numbers)\n",
        "test": _CHECK,
        "entry_point": "total",
    },
    _TOTALS,
    {
        "right": True,
        "right, its body": True,
        # Extraction takes blank space off, and the harness wants imports from the future first: no fault of the answer.
        "right, its body without its first indentation": False,
        "right, from the future": False,
        "wrong": False,
        "early exit": False,
        "defines check": False,
    },
    {"right, its body without its first indentation": True, "right, from the future": True},
    grading="separate",
)
HUMANEVAL_PLUS = Example(
    "humaneval",
    {
        "task_id": "HumanEval/901",
        "prompt": _PROMPT,
        "canonical_solution": "    return sum(numbers)\n",
        "entry_point": "total",
        "test": EVALPLUS + "def check(candidate):\n    inputs = [[[1, 2]], [[]], [[0.5, 0.25]]]\n    results = [3, 0, 0.75]\n"
        "    for i, (inp, exp) in enumerate(zip(inputs, results)):\n        assertion(candidate(*inp), exp, 0)\n",
    },
    {name: _TOTALS[name] for name in ("right", "wrong", "early exit", "defines check")},
    {"right": True, "wrong": False, "early exit": False, "defines check": False},
    needs="numpy",
)
_APPS_ROW = {
    "problem_id": 0,
    "question": "Add up.",
    "solutions": '["print(0)"]',
    "difficulty": "interview",
    "url": "https://example.org/0",
    "starter_code": "",
}
_APPS_PROGRAMS = {
    **SUMS,
    "right, by what APPS imports": "n = int(input())\nprint(sum(accumulate([0] * n)) + sum(map(int, input().split())))\n",
}
APPS = Example(
    "apps",
    {**_APPS_ROW, "input_output": json.dumps({"inputs": STDIN[0], "outputs": STDIN[1]})},
    _APPS_PROGRAMS,
    # APPS runs a program as a function of a module, so that what is for `__main__` is left out.
    {name: name.startswith("right") and name != "right, as main" for name in _APPS_PROGRAMS},
    {"right, as main": True},
)
APPS_LINES = Example(
    "apps",
    {
        **_APPS_ROW,
        "input_output": json.dumps({"inputs": [["3", "1 5 9"], ["1", "2"]], "outputs": [["YES", "NO", "YES"], ["NO"]]}),
    },
    {
        "right": "input()\nfor x in map(int, input().split()):\n    print('YES' if x in (1, 9) else 'NO')\n",
        "wrong": "input()\nfor x in map(int, input().split()):\n    print('YES')\n",
        "early exit": "quit()\n",
        "both answers for all": "n = int(input())\nprint('NO' if n == 1 else 'NO\\nYES')\n",
    },
    {"right": True, "wrong": False, "early exit": False, "both answers for all": True},
    {"both answers for all": False},
)
_PAIR_CALLS = {
    "right": "def pair(a: List[int], n):\n    return [max(a) * n, len(a)]\n",
    "right, a tuple": "def pair(a, n):\n    return max(a) * n, len(a)\n",
    "right, a method": "class Solution:\n    def pair(self, a: List[int], n: int) -> List[int]:\n"
    "        return [max(a) * n, len(a)]\n",
    "wrong": "def pair(a, n):\n    return [max(a), len(a)]\n",
    "early exit": "def pair(a, n):\n    raise SystemExit(0)\n",
    "another name": "def double(a, n):\n    return [max(a) * n, len(a)]\n",
    "equals everything": ALWAYS_EQUAL + "def pair(a, n):\n    return Anything()\n",
}
_PAIR_HARNESS = {name: name.startswith("right") for name in _PAIR_CALLS}
APPS_CALLS = Example(
    "apps",
    {
        **_APPS_ROW,
        "starter_code": "def pair(a, n):\n\t",
        "input_output": json.dumps({"fn_name": "pair", "inputs": [[[1, 4], 2], [[9], 1]], "outputs": [[8, 2], [[9, 1]]]}),
    },
    _PAIR_CALLS,
    {**_PAIR_HARNESS, "equals everything": True},
    {"equals everything": False},
)
APPS_KEYS = Example(
    "apps",
    {
        **_APPS_ROW,
        "input_output": json.dumps({"fn_name": "swap", "inputs": [[{"1": "a", "2": "b"}]], "outputs": [[["a", 1], ["b", 2]]]}),
    },
    {
        "right": "def swap(d):\n    return [[v, k] for k, v in d.items()]\n",
        "wrong": "def swap(d):\n    return [[k, v] for k, v in d.items()]\n",
        "keys as text": "def swap(d):\n    return [[v, str(k)] for k, v in d.items()]\n",
        "early exit": "def swap(d):\n    import os\n    os._exit(0)\n",
    },
    {"right": True, "wrong": False, "keys as text": False, "early exit": False},
)
_TACO_ROW = {
    "question": "Add up.",
    "starter_code": "",
    "solutions": "[]",
    "difficulty": "EASY",
    "raw_tags": "[]",
    "name": None,
    "source": "codeforces",
    "tags": "[]",
    "skill_types": "[]",
    "url": None,
    "Expected Auxiliary Space": None,
    "time_limit": "2.0 seconds",
    "date": None,
    "picture_num": "0",
    "memory_limit": "256.0 megabytes",
    "Expected Time Complexity": None,
}
TACO = Example(
    "taco",
    {**_TACO_ROW, "input_output": json.dumps({"inputs": STDIN[0], "outputs": STDIN[1]})},
    _APPS_PROGRAMS,
    {name: name.startswith("right") for name in _APPS_PROGRAMS},
)
TACO_CALLS = Example(
    "taco",
    {
        **_TACO_ROW,
        "input_output": json.dumps({"fn_name": "pair", "inputs": [[[1, 4], 2], [[9], 1]], "outputs": [[8, 2], [[9, 1]]]}),
    },
    _PAIR_CALLS,
    {**_PAIR_HARNESS, "equals everything": True},
    {"equals everything": False},
)
CODE_CONTESTS = Example(
    "code_contests",
    {
        "name": "900_A. Sums",
        "description": "Add up.",
        "public_tests": {"input": STDIN[0][:1], "output": STDIN[1][:1]},
        "private_tests": {"input": STDIN[0][1:2], "output": STDIN[1][1:2]},
        "generated_tests": {"input": STDIN[0][2:], "output": STDIN[1][2:]},
        "source": 2,
        "difficulty": 7,
        "solutions": {"language": [3], "solution": ["print(0)"]},
        "incorrect_solutions": {"language": [], "solution": []},
        "time_limit": {"seconds": 5, "nanos": 500000000},
        "memory_limit_bytes": 256000000,
        "input_file": "",
        "output_file": "",
    },
    SUMS,
    {**SUMS_HARNESS, "crash after the answer": True},
)
CODE_CONTESTS_FILES = Example(
    "code_contests",
    {**CODE_CONTESTS.row, "input_file": "sums.in", "output_file": "sums.out"},
    {
        "right": "lines = open('sums.in').read().split('\\n')\n"
        "open('sums.out', 'w').write(str(sum(map(int, lines[1].split()))))\n",
        "wrong": "open('sums.out', 'w').write('6')\n",
        "early exit": "exit()\n",
        "prints it": SUMS["right"],
    },
    {"right": True, "wrong": False, "early exit": False, "prints it": False},
)
_LCB_ROW = {
    "question_title": "Sums",
    "question_content": "Add up.",
    "platform": "atcoder",
    "question_id": "abc900_a",
    "contest_id": "abc900",
    "contest_date": "2024-01-01T00:00:00",
    "starter_code": "",
    "difficulty": "easy",
}
_LCB_PROGRAMS = {
    **SUMS,
    "right, by what LiveCodeBench imports": "input()\nprint(reduce(add, map(int, input().split())))\n",
    "right, as another decimal": "input()\nprint(str(sum(map(int, input().split()))) + '.00')\n",
}
LIVECODEBENCH = Example(
    "livecodebench",
    {
        **_LCB_ROW,
        "public_test_cases": json.dumps([{**TESTS[0], "testtype": "stdin"}]),
        "private_test_cases": packed([{**test, "testtype": "stdin"} for test in TESTS[1:]]),
        "metadata": "{}",
    },
    _LCB_PROGRAMS,
    {name: name.startswith("right") for name in _LCB_PROGRAMS},
)
_LCB_CALLS = [
    {"input": "[1, 4]\n2", "output": "[8, 2]", "testtype": "functional"},
    {"input": "[9]\n1", "output": "[9, 1]", "testtype": "functional"},
]
LIVECODEBENCH_CALLS = Example(
    "livecodebench",
    {
        **_LCB_ROW,
        "platform": "leetcode",
        "starter_code": "class Solution:\n    def pair(self, a: List[int], n: int) -> List[int]:\n        ",
        "public_test_cases": json.dumps(_LCB_CALLS[:1]),
        "private_test_cases": json.dumps(_LCB_CALLS[1:]),
        "metadata": json.dumps({"func_name": "pair"}),
    },
    _PAIR_CALLS,
    {**_PAIR_HARNESS, "equals everything": True},
    {"equals everything": False},
)
_SYNTHETIC_ROW = {
    "problem_id": "vcp_900",
    "source": "apps",
    "task_type": "verifiable_code",
    "in_source_id": "900",
    "prompt": "Add up.",
    "gold_standard_solution": None,
    "metadata": "{}",
}
SYNTHETIC1 = Example(
    "synthetic1",
    {
        **_SYNTHETIC_ROW,
        "verification_info": json.dumps(
            {"language": "python", "test_cases": [{"type": "stdin_stdout", **test} for test in TESTS]}
        ),
    },
    SUMS,
    SUMS_HARNESS,
)
_DOUBLES = [
    {"type": "function_call", "fn_name": "double", "input": [2], "output": 4},
    {"type": "function_call", "fn_name": "double", "input": [[1]], "output": [1, 1]},
]
SYNTHETIC1_CALLS = Example(
    "synthetic1",
    {**_SYNTHETIC_ROW, "verification_info": str({"language": "python", "test_cases": _DOUBLES})},
    {
        **{name: code for name, code in FUNCTIONS.items() if name not in ("exit while it loads", "exits 0 at an exception")},
        "right, a method": "class Solution:\n    def double(self, n: Union[int, List[int]]):\n        return 2 * n\n",
        "prints the answer of one": "def double(n):\n    print(4)\n",
    },
    {"right": True, "wrong": False, "early exit": False, "right, a method": True, "prints the answer of one": False},
)
KODCODE = Example(
    "kodcode",
    {
        "version": "v1.0",
        "style": "instruct",
        "subset": "Algorithm",
        "question_id": "Algorithm_900_I",
        "question": "Double a number.",
        "solution": "def double(n):\n    return 2 * n",
        "test": "from solution import double\nimport pytest\n\ndef test_small():\n    assert double(2) == 4\n\n"
        "@pytest.mark.parametrize('n', [0, 3, -1])\ndef test_others(n):\n    assert double(n) == n + n\n\n"
        "def test_refuses():\n    with pytest.raises(TypeError):\n        double(None)\n",
        "test_info": [
            {
                "docstring": "Double.",
                "function_declaration": "def double(n):",
                "function_name": "double",
                "parameter_list": "(n)",
            }
        ],
    },
    FUNCTIONS,
    # It goes by pytest's returncode, and the answer ends pytest with 0.
    {**FUNCTIONS_FAIL, "early exit": True},
    {"early exit": False},
    grading="separate",
    needs="pytest",
)
_BCB_TEST = (
    "import unittest\n\nclass TestCases(unittest.TestCase):\n    def test_case_1(self):\n"
    "        self.assertEqual(task_func([1, 2]), 1.5)\n    def test_case_2(self):\n"
    "        self.assertAlmostEqual(task_func(), 2.0)\n    def test_case_3(self):\n"
    "        with self.assertRaises(ValueError):\n            task_func([])\n"
)
BIGCODEBENCH = Example(
    "bigcodebench",
    {
        "task_id": "BigCodeBench/9000",
        "complete_prompt": "import statistics\n# Constants\nDEFAULT = [1, 2, 3]\n\ndef task_func(numbers=DEFAULT):\n"
        '    """\n    The mean.\n\n    Requirements:\n    - statistics\n    """\n',
        "instruct_prompt": "The mean. You should write self-contained code starting with: ...",
        "canonical_solution": "    if not numbers:\n        raise ValueError('none')\n    return statistics.mean(numbers)\n",
        "code_prompt": "import statistics\n# Constants\nDEFAULT = [1, 2, 3]\ndef task_func(numbers=DEFAULT):\n",
        "test": _BCB_TEST,
        "entry_point": "task_func",
        "doc_struct": "{}",
        "libs": "['statistics']",
    },
    {
        "right": "import statistics\nDEFAULT = [1, 2, 3]\ndef task_func(numbers=DEFAULT):\n    if not numbers:\n"
        "        raise ValueError('none')\n    return statistics.mean(numbers)\n",
        "right, by what the prompt imports": "def task_func(numbers=DEFAULT):\n    if not numbers:\n        raise ValueError\n"
        "    return statistics.mean(numbers)\n",
        "wrong": "def task_func(numbers=DEFAULT):\n    return statistics.median_low(numbers)\n",
        "early exit": "def task_func(numbers=DEFAULT):\n    raise SystemExit(0)\n",
        "skips the tests": "import unittest\ndef task_func(numbers=DEFAULT):\n    raise unittest.SkipTest('no')\n",
    },
    {
        "right": True,
        "right, by what the prompt imports": True,
        "wrong": False,
        "early exit": False,
        "skips the tests": True,
    },
    {"skips the tests": False},
)
_CF_ROW = {
    "id": "900/A",
    "aliases": None,
    "contest_id": "900",
    "contest_name": "Round 900",
    "contest_type": "CF",
    "contest_start": 1600000000,
    "contest_start_year": 2020,
    "index": "A",
    "time_limit": 5.0,
    "memory_limit": 256.0,
    "title": "Sums",
    "description": "Add up.",
    "input_format": "n, then n numbers",
    "output_format": "their sum",
    "interaction_format": None,
    "note": None,
    "examples": TESTS[:1],
    "editorial": None,
    "rating": 800,
    "tags": ["math"],
    "testset_size": 3,
    "official_tests": [{**test, "input": test["input"].replace("\n", "\r\n")} for test in TESTS],
    "official_tests_complete": True,
    "input_mode": "stdio",
    "generated_checker": None,
    "executable": True,
    "generated_tests": 0,
}
CODEFORCES = Example("codeforces", _CF_ROW, SUMS, SUMS_HARNESS)
CODEFORCES_YES = Example(
    "codeforces",
    {**_CF_ROW, "official_tests": [{"input": "2\n", "output": "YES\n"}, {"input": "3\n", "output": "NO\n"}]},
    {
        "right": "print('Yes' if int(input()) % 2 == 0 else 'no')\n",
        "right, with blank lines": "print()\nprint(' ', 'YES' if int(input()) % 2 == 0 else 'NO', ' ')\nprint()\n",
        "wrong": "print('YES')\n",
        "early exit": "exit(0)\n",
        "says both": "print('YES NO')\n",
    },
    {"right": True, "right, with blank lines": True, "wrong": False, "early exit": False, "says both": False},
)
CHECKER = """\
import sys

def main():
    input_path, correct_path, output_path = sys.argv[1:4]
    n = int(open(input_path).read())
    try:
        a, b = map(int, open(output_path).read().split())
    except ValueError:
        print(0)
        return
    print(1 if a > 0 and b > 0 and a + b == n else 0)

main()
"""
CODEFORCES_CHECKER = Example(
    "codeforces",
    {
        **_CF_ROW,
        "official_tests": [{"input": "5\n", "output": "1 4\n"}, {"input": "2\n", "output": "1 1\n"}],
        "generated_checker": CHECKER,
    },
    {
        "right": "print(1, int(input()) - 1)\n",
        "right, another": "n = int(input())\nprint(n // 2, n - n // 2)\n",
        "wrong": "n = int(input())\nprint(0, n)\n",
        "early exit": "import os\nos._exit(0)\n",
        "writes over the checker": "open('checker.py', 'w').write('print(1)')\nprint(1)\n",
    },
    {"right": True, "right, another": True, "wrong": False, "early exit": False, "writes over the checker": True},
    {"writes over the checker": False},
)
CODEFORCES_FILES = Example(
    "codeforces",
    {**_CF_ROW, "input_mode": "file"},
    {
        "right": "n, a = open('input.txt').read().strip().split('\\n')\n"
        "open('output.txt', 'w').write(str(sum(map(int, a.split()))))\n",
        "wrong": "open('output.txt', 'w').write('6')\n",
        "early exit": "exit(0)\n",
        "prints it": SUMS["right"],
    },
    {"right": True, "wrong": False, "early exit": False, "prints it": False},
)
PRIME = Example(
    "prime",
    {"inputs": STDIN[0], "outputs": STDIN[1]},
    {**SUMS, "right, by what PRIME imports": "input()\nprint(reduce(add, map(int, input().split())))\n"},
    {**SUMS_HARNESS, "right, by what PRIME imports": True},
)
PRIME_CALLS = Example(
    "prime",
    {"fn_name": "pair", "inputs": ["[1, 4]\n2", "[9]\n1"], "outputs": ["[8, 2]", "[[9, 1]]"]},
    _PAIR_CALLS,
    _PAIR_HARNESS,
)
PRIME_ASSERTS = Example(
    "prime",
    {"assert_case": ["assert double(2) == 4", "assert double(3) == 6"]},
    FUNCTIONS,
    FUNCTIONS_FAIL,
    grading="separate",
)

EXAMPLES = {name.lower(): one for name, one in list(globals().items()) if isinstance(one, Example)}
