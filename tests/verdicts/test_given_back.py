"""What calls do to what tests have given them: in `separate` as in one process, and as in a plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.rl import Outcome, Task
from tests.verdicts.test_as_a_module import Row, bare

CODE = """
def sort(nums): nums.sort()
def rotate(nums, k):
    k %= len(nums)
    nums[:] = nums[-k:] + nums[:-k]
def transpose(m):
    for i in range(len(m)):
        for j in range(i):
            m[i][j], m[j][i] = m[j][i], m[i][j]
def count(words, into):
    for word in words: into[word] = into.get(word, 0) + 1
def remove(nums, value):
    k = 0
    for each in nums:
        if each != value:
            nums[k] = each
            k += 1
    return k
def group(pairs, out):
    for key, value in pairs: out.setdefault(key, []).append(value)
def fill(seen, n): seen.update(range(n))
def flip(data):
    for at, byte in enumerate(data): data[at] = byte ^ 255
def both(a, b): a.append(1); b.append(2)
def tie(a): a.append(a)
def nest(out, item): out.append(item); item.append(9)
def fail(nums): nums.append(1); raise ValueError("x")
def leave(nums): return sorted(nums)
def default(*nums, key=None): key["x"] = nums
def clear(d): d.clear()
def first(pair, other=None):
    pair[0].sort()
    if other is not None: other.append(7)
class Sorter:
    def __init__(self): self.n = 0
    def sort(self, nums): self.n += 1; nums.sort()
class Solution:
    def moveZeroes(self, nums):
        nums.sort(key=lambda n: n == 0)
def numbers(out): out[:] = [1.5, None, "x", b"y", (1, [2]), {3: {4}}]
"""
NAMES = ["Solution", "Sorter", "both", "clear", "count", "default", "fail", "fill", "flip", "group", "leave", "nest", "numbers"]
NAMES += ["first", "remove", "rotate", "sort", "tie", "transpose"]
RIGHT = {
    "a list": "nums = [3, 1, 2]\nsort(nums)\nassert nums == [1, 2, 3]",
    "by a slice": "nums = [1, 2, 3, 4]\nrotate(nums, 1)\nassert nums == [4, 1, 2, 3]",
    "again and again": "nums = [1, 2, 3]\nfor _ in range(3):\n    rotate(nums, 1)\nassert nums == [1, 2, 3]",
    "a list in a list": "m = [[1, 2], [3, 4]]\ntranspose(m)\nassert m == [[1, 3], [2, 4]]",
    "a list in a list that has another name": "row = [1, 2]\nm = [row, [3, 4]]\ntranspose(m)\n"
    "assert row == [1, 3] and m[0] is row",
    "a dict": "into = {}\ncount(['a', 'b', 'a'], into)\nassert into == {'a': 2, 'b': 1}",
    "the order of a dict": "d = {'z': 1}\ncount(['a', 'z'], d)\nassert list(d.items()) == [('z', 2), ('a', 1)]",
    "lists in a dict": "out = {'a': [0]}\nkept = out['a']\ngroup([('a', 1), ('b', 2)], out)\n"
    "assert out == {'a': [0, 1], 'b': [2]} and kept == [0, 1]",
    "a set": "seen = set()\nfill(seen, 3)\nassert seen == {0, 1, 2}",
    "a bytearray": "data = bytearray(b'ab')\nflip(data)\nassert data == bytearray([158, 157])",
    "two": "a, b = [], []\nboth(a, b)\nassert (a, b) == ([1], [2])",
    "by a keyword": "d = dict()\ndefault(1, 2, key=d)\nassert d == {'x': (1, 2)}",
    "a list that is in another from then on": "out, item = [], [8]\nnest(out, item)\nassert out == [[8, 9]] and out[0] is item",
    "with what it gives": "nums = [3, 2, 2, 3]\nk = remove(nums, 3)\nassert k == 2 and sorted(nums[:k]) == [2, 2]",
    "with what it gives in an assertion": "nums = [3, 2, 2, 3]\nassert remove(nums, 3) == 2\nassert nums[:2] == [2, 2]",
    "and a failure": "nums = []\ntry:\n    fail(nums)\nexcept ValueError:\n    pass\nassert nums == [1]",
    "nothing": "nums = [3, 1]\nassert leave(nums) == [1, 3]\nassert nums == [3, 1]",
    "nothing is left": "d = {1: 2}\nclear(d)\nassert d == {}",
    "a method's": "s = Sorter()\nnums = [2, 1]\ns.sort(nums)\nassert nums == [1, 2]\nassert s.n == 1",
    "a method's of what is made for it": "nums = [0, 1, 0, 3]\nSolution().moveZeroes(nums)\nassert nums == [1, 3, 0, 0]",
    "a table of cases": "for nums, want in [([2, 1], [1, 2]), ([], []), ([5], [5])]:\n    sort(nums)\n    assert nums == want",
    "an attribute of the test's": "class Holder:\n    pass\nh = Holder()\nh.nums = [2, 1]\nsort(h.nums)\n"
    "assert h.nums == [1, 2]",
    "an item": "rows = [[2, 1], [4, 3]]\nsort(rows[1])\nassert rows == [[2, 1], [3, 4]]",
    "all kinds of values": "out = [0]\nnumbers(out)\nassert out == [1.5, None, 'x', b'y', (1, [2]), {3: {4}}]",
    "a list in a tuple": "nums = [2, 1]\npair = (nums, 5)\nfirst(pair)\nassert nums == [1, 2]",
    "lists in a named tuple": "from collections import namedtuple\nPair = namedtuple('Pair', 'a b')\npair = Pair([2, 1], [0])\n"
    "other = [3]\nfirst(pair, other)\nassert pair.a == [1, 2] and pair.b == [0] and other == [3, 7]",
    "a list of a class of the test's": "class Mine(list):\n    pass\nnums, other = Mine([2, 1]), [4]\nfirst([nums], other)\n"
    "assert nums == [1, 2] and type(nums) is Mine and other == [4, 7]",
    "beside what is counted": "from collections import Counter, OrderedDict\n"
    "c, o, nums = Counter('ab'), OrderedDict(x=[1]), [2, 1]\n"
    "first([nums], [c, o])\nassert nums == [1, 2]",
    "beside an object of the code's": "s = Sorter()\nnums = [2, 1]\nfirst([nums, s], [])\nassert nums == [1, 2]",
    "what it was given in its place": "nums = [2, 1]\nassert (sort(nums) or nums) == [1, 2]",
    "what it was given in its place, kept": "nums = [2, 1]\nfound = sort(nums) or nums\nassert found == [1, 2]",
    "what it was given beside it": "nums = [2, 1]\nassert (sort(nums), nums)[1] == [1, 2]",
    "the same twice": "nums = [2, 1]\nboth(nums, [])\nassert nums == [2, 1, 1]",
    "in itself": "a = []\ntie(a)\nassert a[0] is a and len(a) == 1",
    "a copy that is kept": "nums = [3, 1]\nbefore = list(nums)\nsort(nums)\nassert before == [3, 1] and nums != before",
    "unittest's": "import unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        self.nums = [2, 1]\n"
    "    def test_it(self):\n        sort(self.nums)\n        self.assertEqual(self.nums, [1, 2])\n"
    "        nums = [0, 4]\n        Solution().moveZeroes(nums)\n        self.assertListEqual(nums, [4, 0])",
}
WRONG = {
    "the wrong order": "nums = [3, 1, 2]\nsort(nums)\nassert nums == [3, 2, 1]",
    "it was to be left alone": "nums = [3, 1]\nsort(nums)\nassert nums == [3, 1]",
    "it was left alone": "nums = [3, 1]\nleave(nums)\nassert nums == [1, 3]",
    "a dict that has more": "into = {}\ncount(['a', 'b'], into)\nassert into == {'a': 1}",
}


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_what_becomes_of_arguments(name: str, tmp_path: Path, outcomes: Callable[..., list[Outcome]]) -> None:
    test, passes = (RIGHT.get(name) or WRONG[name]), name in RIGHT
    if name != "unittest's":
        assert bare(Row(CODE, test), tmp_path) is passes, "the table is wrong about a plain Python"
    tasks = [Task(code=CODE, tests=[test], code_names=NAMES, grading=mode) for mode in ("in_process", "separate")]
    found = outcomes(tasks)
    assert [one.reward() for one in found] == [float(passes)] * 2, found


EQUAL = "class Equal(list):\n    def __eq__(self, other): return True\n    __ne__ = lambda *_: False\n"
EQUAL += "    __len__ = lambda _: 3\n"
HOSTILE = {
    "an object that equals everything": EQUAL + "def f(nums): nums[:] = Equal()\ndef g(d): d['x'] = Equal()",
    "items that equal everything": EQUAL + "def f(nums): nums[:] = [Equal()] * 3\ndef g(d): d['x'] = Equal()",
    "what is no data": "def f(nums): nums[:] = [object()] * 3\ndef g(d): d['x'] = open('/dev/null')",
    "too much": "def f(nums): nums[:] = ['x' * (1 << 20)] * 9\ndef g(d): d['x'] = 'x' * (9 << 20)",
    "too deep": "def f(nums):\n    for _ in range(5000): nums[:] = [list(nums)]\ndef g(d): f(d.setdefault('x', []))",
    "an end": "import os\ndef f(nums): os._exit(0)\ng = f",
    "an exit": "def f(nums): raise SystemExit(0)\ng = f",
    "nothing": "def f(nums): pass\ng = f",
    "what the test expects, elsewhere": "import gc\ndef f(nums):\n    for each in gc.get_objects():\n"
    "        if type(each) is list and each == [1, 2, 3]: nums[:] = each; return\n"
    "def g(d): d['x'] = d",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_that_comes_back_passes_for_a_value(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    tests = [
        "from solution import f\nnums = [3, 1, 2]\nf(nums)\nassert nums == sorted([2, 1, 3])",
        "from solution import g\nd = {'x': [1]}\ng(d)\nassert d == {'x': list(range(1, 4))}",
    ]
    found = outcomes([Task(code=HOSTILE[name], tests=[test], grading="separate") for test in tests])
    assert [one.reward() for one in found] == [0.0] * 2, found


def test_what_a_test_does_not_look_at_stays_as_it_was(outcomes: Callable[..., list[Outcome]]) -> None:
    """An answer is not made right by changing what the test reckons it with: in one process that passes."""
    code = "def f(nums):\n    nums.clear()\n    return []\ndef g(nums):\n    nums[:] = [0]\n    return 0"
    tests = [
        "from solution import f\nnums = [3, 1, 2]\nassert f(nums) == sorted(nums)",
        "from solution import f\nnums = [3, 1, 2]\nfound = f(nums)\nassert found == sorted(nums)",
        "from solution import g\nfor nums in ([3, 1, 2], [5]):\n    assert g(nums) == max(nums)",
    ]
    found = outcomes([Task(code=code, tests=[test], grading=mode) for test in tests for mode in ("in_process", "separate")])
    assert [one.reward() for one in found] == [1.0, 0.0] * 3, found


@pytest.mark.parametrize("forged", ["[[0, ['d']]]", "[[9, ['l', 1]]]", "[[0, ['l', ['m', 7]]]]", "'x'", "[[0, ['q']]]", "{}"])
def test_what_is_forged_is_no_data(forged: str, outcomes: Callable[..., list[Outcome]]) -> None:
    """Whatever its process says in the place of what became of the arguments."""
    code = "import sys\nhost = sys.modules['__main__']\ndef f(nums):\n    import gc\n    for each in gc.get_objects():\n"
    code += "        if type(each).__name__ == 'Process' or hasattr(type(each), 'changes_of'):\n"
    code += f"            type(each).changes_of = lambda *_: {forged}\n    nums.sort()"
    test = "from solution import f\nnums = [3, 1, 2]\nf(nums)\nassert nums == [1, 2, 3]"
    (found,) = outcomes([Task(code=code, tests=[test], grading="separate")])
    assert found.reward() in (0.0, 1.0), found


@pytest.fixture(scope="module")
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


@pytest.mark.parametrize("mode", ["in_process", "separate"])
def test_a_grader_of_files(mode: str, session: aviato.Session) -> None:
    sandbox = session.sandbox()
    sandbox.write_file("pkg/__init__.py", b"").result()
    sandbox.write_file("pkg/work.py", CODE.encode()).result()
    test = (
        "import unittest\nfrom pkg import work\nfrom pkg.work import sort as order\nclass T(unittest.TestCase):\n"
        "    def test_it(self):\n        nums = [2, 1]\n        order(nums)\n        self.assertEqual(nums, [1, 2])\n"
        "        nums = [1, 2, 3]\n        work.rotate(nums, 1)\n        self.assertEqual(nums, [3, 1, 2])\n"
    )
    command = ["python", "-m", "unittest", "test_work"]
    files = {"test_work.py": test.encode()}
    graded = sandbox.grade(files, command, result_paths=["pkg/__init__.py", "pkg/work.py"], mode=mode).result(50)
    assert graded.passed, graded
