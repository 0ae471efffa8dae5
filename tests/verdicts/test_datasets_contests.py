"""What contests have and a shell has not: `ONLINE_JUDGE`, a stack without a limit, checkers that never see an empty line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aviato.rl import CaseStatus, Outcome, ProgramCase, Task
from aviato.rl.datasets import apps, code_contests, codeforces, taco
from tests.rl.dataset_rows import CODE_CONTESTS, CODEFORCES, CODEFORCES_CHECKER

READS_A_FILE = """#include <cstdio>
#ifndef ONLINE_JUDGE
#define LOCAL
#endif
int main() {
#ifdef LOCAL
    freopen("input.txt", "r", stdin);
#endif
    long n, x, s = 0;
    if (scanf("%ld", &n) != 1) return 0;
    while (n-- && scanf("%ld", &x) == 1) s += x;
    printf("%ld\\n", s);
}
"""
DEEP = """#include <cstdio>
long down(long n) {
    volatile char room[64];
    room[n & 63] = 1;
    if (n == 0) return 0;
    long rest = down(n - 1);
    return rest + room[n & 63];
}
int main() { long n; scanf("%ld", &n); printf("%ld\\n", down(n)); }
"""
THREADS = """#include <cstdio>
#include <thread>
#include <vector>
int main() {
    int n; scanf("%d", &n);
    std::vector<std::thread> all; std::vector<int> got(n);
    for (int i = 0; i < n; i++) all.emplace_back([&got, i] { got[i] = 1; });
    int s = 0; for (int i = 0; i < n; i++) { all[i].join(); s += got[i]; }
    printf("%d\\n", s);
}
"""


@pytest.mark.parametrize("name", ["codeforces", "code_contests"])
def test_contests_define_online_judge(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    right, wrong = READS_A_FILE, READS_A_FILE.replace("s += x", "s -= x")
    if name == "codeforces":
        tasks = [codeforces(CODEFORCES.row, code, language="cpp") for code in (right, wrong, "int main() { return x; }")]
    else:
        tasks = [code_contests(CODE_CONTESTS.row, code, language="cpp") for code in (right, wrong, "int main() { return x; }")]
    found = outcomes(tasks)
    assert [one.passed for one in found] == [True, False, False]
    assert "main.cpp:1:" in found[2].cases[0].stderr, "its lines have other numbers"


def test_a_program_under_a_limit_has_a_stack_without_one(outcomes: Callable[..., list[Outcome]]) -> None:
    limit = 256 << 20
    deep = [ProgramCase(str(n), str(n), memory_limit_bytes=limit) for n in (10, 1_000_000)]
    endless = [ProgramCase("-1", "0", memory_limit_bytes=64 << 20, timeout_seconds=20)]
    heap = "#include <vector>\nint main() { std::vector<char> all(400 << 20, 1); return all[99] - 1; }"
    found = outcomes(
        [
            Task(code=DEEP, language="cpp", tests=deep),
            Task(code=DEEP, language="cpp", tests=endless),
            Task(code=heap, language="cpp", tests=[ProgramCase("", "", memory_limit_bytes=limit)]),
            Task(code=THREADS, language="cpp", tests=[ProgramCase("8", "8", memory_limit_bytes=limit)]),
        ]
    )
    assert found[0].passed, found[0].cases
    assert found[1].cases[0].reason == "killed", found[1]
    assert found[2].cases[0].status is CaseStatus.OUT_OF_MEMORY, found[2]
    assert found[3].passed, found[3]


LINES = """\"\"\"Reads line by line.\"\"\"
from __future__ import annotations
import sys

lines = open(sys.argv[3]).read().split("\\n")
wanted = open(sys.argv[2]).read().split("\\n")
print(int([line.strip() for line in lines if line] == [line.strip() for line in wanted if line] and lines[0] != ""))
"""
PRINTED: dict[str, tuple[str, bool]] = {
    "as it should": ("print(1)\nprint(4)", True),
    "an empty line at the top": ("print()\nprint(1)\nprint(4)", True),
    "empty lines everywhere": ("print('\\n\\n1\\n\\n\\n4\\n\\n')", True),
    "nothing at the end": ("print('1\\n4', end='')", True),
    "wrong": ("print(4)\nprint(1)", False),
    "nothing": ("pass", False),
    "blanks in a line are no empty line": ("print(' ')\nprint(1)\nprint(4)", False),
}


CALL = {"input_output": {"fn_name": "double", "inputs": [[2]], "outputs": [4]}}
PROGRAM = {"input_output": {"inputs": ["2\n"], "outputs": ["4\n"]}}


def test_an_answer_may_have_an_np_of_its_own(outcomes: Callable[..., list[Outcome]]) -> None:
    """APPS and TACO import numpy for code that names it; that this is missing is no way to lose a verdict."""
    answers = {
        (1.0, "called"): (apps(CALL, "def double(np):\n    return 2 * np\n"), taco(CALL, "def double(np): return np + np")),
        (0.0, "called"): (apps(CALL, "def double(n):  # np\n    return n\n"),),
        (1.0, "printed"): (apps(PROGRAM, "np = int(input())\nprint(2 * np)"), taco(PROGRAM, "np = input()\nprint(4)")),
        (0.0, "printed"): (apps(PROGRAM, "np = int(input())\nprint(np)"),),
    }
    for (reward, how), tasks in answers.items():
        assert [outcome.reward() for outcome in outcomes(list(tasks))] == [reward] * len(tasks), (reward, how)


def test_a_checker_sees_no_empty_lines(outcomes: Callable[..., list[Outcome]]) -> None:
    row: dict[str, Any] = {**CODEFORCES.row, "official_tests": [{"input": "5\r\n", "output": "1\r\n\r\n4\r\n"}]}
    found = outcomes([codeforces({**row, "generated_checker": LINES}, code) for code, _ in PRINTED.values()])
    assert dict(zip(PRINTED, [one.passed for one in found], strict=True)) == {
        name: passes for name, (_, passes) in PRINTED.items()
    }
    found = outcomes([codeforces(CODEFORCES_CHECKER.row, "n = int(input())\nprint()\nprint(1)\nprint()\nprint(n - 1)")])
    assert found[0].passed
