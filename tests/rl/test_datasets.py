"""Rows of data sets: what they become, which of them are refused, and how each harness compares, without a sandbox."""

from __future__ import annotations

import base64
import json
import pickle
import textwrap
import zlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aviato.exceptions import AviatoValidationError
from aviato.rl import CallCase, ProgramCase, TestCase, datasets
from aviato.rl.datasets import apps_family, live_code_bench, printed, returned, synthetic_1
from aviato.rl.datasets.open_r1_codeforces import same_answers
from aviato.rl.datasets.sources import as_body, completed, defines, with_prelude
from aviato.rl.judges import Checker
from tests.rl import dataset_rows as rows


def test_each_row_is_told_by_its_fields_and_by_its_names() -> None:
    for name, example in rows.EXAMPLES.items():
        assert datasets.recognise(example.row) == example.dataset, name
        assert datasets.fields_missing(example.dataset, example.row) == []
        assert datasets.recognise({**example.row, "extra": 1}) == example.dataset
    assert datasets.recognise({"question": "1 + 1?", "answer": "2"}) is None
    assert datasets.recognise({}) is None
    hub = {
        "google-research-datasets/mbpp": "mbpp",
        "evalplus/mbppplus": "mbpp",
        "openai/openai_humaneval": "humaneval",
        "evalplus/humanevalplus": "humaneval",
        "codeparrot/apps": "apps",
        "BAAI/TACO": "taco",
        "deepmind/code_contests": "code_contests",
        "livecodebench/code_generation_lite": "livecodebench",
        "PrimeIntellect/SYNTHETIC-1": "synthetic1",
        "KodCode/KodCode-V1": "kodcode",
        "bigcode/bigcodebench": "bigcodebench",
        "open-r1/codeforces": "codeforces",
        "PRIME-RL/Eurus-2-RL-Data": "prime",
        "princeton-nlp/SWE-bench_Lite": "swe",
        "openai/gsm8k": None,
        "": None,
    }
    assert {name: datasets.named(name) for name in hub} == hub


def test_a_row_without_code_is_a_task_that_is_skipped() -> None:
    for example in rows.EXAMPLES.values():
        assert datasets.task_of(example.dataset, example.row).is_empty
        assert datasets.task_of(example.dataset, example.row, " \n").is_empty
        assert not datasets.task_of(example.dataset, example.row, "x = 1").is_empty
    assert datasets.mbpp(rows.MBPP.row, "x = 1") == datasets.task_of("mbpp", rows.MBPP.row, "x = 1")
    with pytest.raises(AviatoValidationError, match=r"dataset must be one of .*mbpp.*, got 'mpbb'"):
        datasets.task_of("mpbb", rows.MBPP.row)


def test_tests_that_assert() -> None:
    task = datasets.mbpp(rows.MBPP.row, rows.DOUBLE)
    assert [case.source for case in task.tests] == rows.MBPP.row["test_list"]  # type: ignore[union-attr]
    assert task.code_names == ("double",) and task.code == rows.DOUBLE
    sanitized, setup = datasets.mbpp(rows.MBPP_SANITIZED.row), datasets.mbpp(rows.MBPP_SETUP.row)
    assert [case.source.split("\n")[0] for case in sanitized.tests] == ["import math"] * 2  # type: ignore[union-attr]
    assert setup.tests[0].source.split("\r\n")[0].strip() == "root = Node(1)"  # type: ignore[union-attr]
    plus = datasets.mbpp(rows.MBPP_PLUS.row)
    assert len(plus.tests) == 1 and plus.timeout_seconds == 60.0
    kod = datasets.kodcode(rows.KODCODE.row)
    assert (kod.code_names, kod.timeout_seconds) == (("double",), 30.0)
    bench = datasets.bigcodebench(rows.BIGCODEBENCH.row, "    return 1\n")
    assert bench.code == rows.BIGCODEBENCH.row["complete_prompt"] + "    return 1\n"
    assert bench.tests == (TestCase(source=rows.BIGCODEBENCH.row["test"]),)
    human = datasets.humaneval(rows.HUMANEVAL.row)
    assert human.tests[0].source.endswith("\ncheck(total)\n") and human.code_names == ("total",)  # type: ignore[union-attr]


def test_programs_and_calls() -> None:
    task = datasets.apps(rows.APPS.row, "print(np.sum(1))")
    assert isinstance(task.tests[0], ProgramCase) and task.code is not None
    assert task.code.startswith(f"{apps_family.NUMPY.strip()}; import sys; import time;") and task.code.endswith(
        "\nprint(np.sum(1))"
    )
    assert "numpy" not in (datasets.apps(rows.APPS.row, "print(1)").code or "")
    assert (task.case_timeout_seconds, task.timeout_seconds) == (4.0, 17.0)
    joined = datasets.apps(rows.APPS_LINES.row).tests
    assert (joined[0].stdin, joined[0].expected_stdout) == ("3\n1 5 9", "YES\nNO\nYES")  # type: ignore[union-attr]
    keys = datasets.apps(rows.APPS_KEYS.row, "x = np").tests[0]
    assert isinstance(keys, CallCase) and keys.args == ({1: "a", 2: "b"},)
    assert datasets.apps(rows.APPS_KEYS.row, "x = np").prelude == apps_family.NUMPY + apps_family.APPS_PRELUDE
    lcb = datasets.livecodebench(rows.LIVECODEBENCH.row)
    assert [case.stdin for case in lcb.tests] == rows.STDIN[0]  # type: ignore[union-attr]
    assert (lcb.case_timeout_seconds, lcb.timeout_seconds, lcb.stop_at_first_failure) == (6.0, 26.0, True)
    call = datasets.livecodebench(rows.LIVECODEBENCH_CALLS.row)
    assert call.tests[0].args == ([1, 4], 2) and call.prelude == live_code_bench.PRELUDE  # type: ignore[union-attr]
    contest = datasets.code_contests(rows.CODE_CONTESTS.row, "x", language="C++")
    assert (contest.language, contest.case_timeout_seconds) == ("cpp", 5.5)
    assert {case.returncode for case in contest.tests} == {None}  # type: ignore[union-attr]
    assert {case.memory_limit_bytes for case in contest.tests} == {256000000}  # type: ignore[union-attr]
    assert datasets.code_contests({**rows.CODE_CONTESTS.row, "time_limit": None}).case_timeout_seconds == 10.0
    synthetic = datasets.synthetic1(rows.SYNTHETIC1_CALLS.row)
    assert synthetic.prelude == synthetic_1.PRELUDE and synthetic.tests[1].args == ([1],)  # type: ignore[union-attr]


def test_codeforces() -> None:
    plain = datasets.codeforces(rows.CODEFORCES.row)
    first = plain.tests[0]
    assert isinstance(first, ProgramCase) and (first.stdin, first.memory_limit_bytes) == ("3\n1 2 3\n", 256 << 20)
    assert (plain.language, plain.case_timeout_seconds) == ("python", 5.0)
    assert datasets.codeforces({**rows.CODEFORCES.row, "language": "cpp"}).language == "cpp"
    assert datasets.codeforces({**rows.CODEFORCES.row, "language": "cpp"}, language="rust").language == "rust"
    judge = datasets.codeforces(rows.CODEFORCES_CHECKER.row).tests[0].judge  # type: ignore[union-attr]
    assert isinstance(judge, Checker) and judge.source.endswith("\n" + rows.CHECKER) and judge.convention == "open-r1"
    more = {**rows.CODEFORCES.row, "official_tests_complete": False, "generated_tests": [{"input": "1\n2", "output": "2\n\n"}]}
    assert [case.expected_stdout for case in datasets.codeforces(more).tests] == ["6\n", "10\n", "7\n", "2\n"]  # type: ignore[union-attr]
    problem = datasets.problem_of("codeforces", rows.CODEFORCES_FILES.row)
    task = problem.with_code("open('output.txt', 'w')")
    assert (problem.code_language, task.language, task.files) == ("python", "bash", {"answer.py": b"open('output.txt', 'w')"})
    assert task.tests[0].files == {"input.txt": b"3\n1 2 3\n"}  # type: ignore[union-attr]


def changed(example: rows.Example, **fields: Any) -> tuple[str, dict[str, Any]]:
    return example.dataset, {**example.row, **fields}


def info(**fields: Any) -> tuple[str, dict[str, Any]]:
    return changed(rows.SYNTHETIC1, verification_info=fields)


class Runs:
    def __reduce__(self) -> Any:
        return print, ("it runs",)


def pickled(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


REFUSED = {
    "mbpp, no tests": (changed(rows.MBPP, test_list=[]), "no tests in 'test_list'"),
    "mbpp, blank tests": (changed(rows.MBPP, test_list=[" ", ""]), "no tests in 'test_list'"),
    "mbpp, text for tests": (changed(rows.MBPP, test_list="assert double(2) == 4"), "'test_list' is no list but str"),
    "mbpp, tests that check nothing": (changed(rows.MBPP, test_list=["double(2) == 4"]), "can check nothing"),
    "humaneval, no prompt": (changed(rows.HUMANEVAL, prompt=None), "trainers keep that name for messages"),
    "humaneval, messages": (changed(rows.HUMANEVAL, prompt=[{"role": "user"}]), "trainers keep that name for messages"),
    "humaneval, no test": (changed(rows.HUMANEVAL, test=None), "'test' is missing"),
    "humaneval, no check": (changed(rows.HUMANEVAL, test="assert True"), "no function 'check'"),
    "humaneval, an entry point": (changed(rows.HUMANEVAL, entry_point="a b"), "must be a name"),
    "apps, nothing": (changed(rows.APPS, input_output=""), "no tests in 'input_output'"),
    "apps, no JSON": (changed(rows.APPS, input_output="{"), "'input_output' is no JSON"),
    "apps, a list": (changed(rows.APPS, input_output="[]"), "'input_output' is no dict but list"),
    "apps, no inputs": (changed(rows.APPS, input_output='{"inputs": [], "outputs": []}'), "it has no tests"),
    "apps, other numbers": (changed(rows.APPS, input_output='{"inputs": [1], "outputs": []}'), "1 inputs and 0 outputs"),
    "apps, no arguments": (
        changed(rows.APPS, input_output='{"fn_name": "f", "inputs": [3], "outputs": [3]}'),
        "no list of arguments but int",
    ),
    "taco, nothing": (changed(rows.TACO, input_output=None), "no tests in 'input_output'"),
    "code_contests, nothing": (
        changed(rows.CODE_CONTESTS, public_tests=None, private_tests={"input": [], "output": []}, generated_tests=None),
        "it has no tests",
    ),
    "code_contests, other numbers": (
        changed(rows.CODE_CONTESTS, public_tests={"input": ["1"], "output": []}),
        "1 inputs and 0",
    ),
    "livecodebench, nothing": (changed(rows.LIVECODEBENCH, public_test_cases="[]", private_test_cases="[]"), "it has no tests"),
    "livecodebench, other text": (changed(rows.LIVECODEBENCH, private_test_cases="what?"), "neither JSON nor text"),
    "livecodebench, cut off": (
        changed(rows.LIVECODEBENCH, private_test_cases=rows.LIVECODEBENCH.row["private_test_cases"][:40]),
        "neither JSON nor text",
    ),
    "livecodebench, a pickle that runs": (
        changed(rows.LIVECODEBENCH, private_test_cases=pickled(Runs())),
        "names builtins.print",
    ),
    "livecodebench, a pickle of a list": (changed(rows.LIVECODEBENCH, private_test_cases=pickled([1])), "no text but list"),
    "livecodebench, no output": (changed(rows.LIVECODEBENCH, public_test_cases='[{"input": "1"}]'), "no text as 'input'"),
    "livecodebench, no JSON in a call": (
        changed(rows.LIVECODEBENCH_CALLS, public_test_cases='[{"input": "a b", "output": "1"}]'),
        "'input' is no JSON",
    ),
    "synthetic1, another task": (changed(rows.SYNTHETIC1, task_type="verifiable_math"), "only 'verifiable_code'"),
    "synthetic1, nothing": (info(language="python", test_cases=[]), "no tests in 'verification_info'"),
    "synthetic1, a language": (info(language="haskell", test_cases=[{"input": "", "output": ""}]), "its language is 'haskell'"),
    "synthetic1, calls of another language": (
        info(language="javascript", test_cases=[{"type": "function_call", "fn_name": "f", "input": [], "output": 1}]),
        "for Python, and its language is 'nodejs'",
    ),
    "synthetic1, mixed": (
        info(language="python", test_cases=[{"type": "function_call"}, {"type": "stdin_stdout"}]),
        "of the types function_call, stdin_stdout",
    ),
    "synthetic1, no name": (info(test_cases=[{"type": "function_call", "input": [], "output": 1}]), "no 'fn_name'"),
    "kodcode, no tests": (changed(rows.KODCODE, test="from solution import double\n"), "no function or class of tests"),
    "bigcodebench, no class": (changed(rows.BIGCODEBENCH, test="assert task_func() == 2"), "no class 'TestCases'"),
    "bigcodebench, no code_prompt": (changed(rows.BIGCODEBENCH, code_prompt=None), "'code_prompt' is missing"),
    "codeforces, interactive": (changed(rows.CODEFORCES, interaction_format="Ask."), "it is interactive"),
    "codeforces, nothing": (changed(rows.CODEFORCES, official_tests=[]), "it has no tests"),
    "codeforces, not complete": (changed(rows.CODEFORCES, official_tests_complete=False), "are not complete"),
    "codeforces, a mode": (changed(rows.CODEFORCES, input_mode="socket"), "'socket', and neither 'stdio' nor 'file'"),
    "codeforces, a language": (changed(rows.CODEFORCES, language="kotlin"), "the language is 'kotlin'"),
    "codeforces, files in C++": (changed(rows.CODEFORCES_FILES, language="cpp"), "judged for Python alone"),
    "prime, nothing": (changed(rows.PRIME, inputs=[], outputs=[]), "it has no tests"),
    "prime, other numbers": (changed(rows.PRIME, outputs=["1"]), "3 inputs and 1 outputs"),
    "prime, no JSON in a call": (changed(rows.PRIME_CALLS, inputs=["a b", "c"]), "'inputs' is no JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_that_cannot_be_judged_is_refused_with_what_is_missing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (dataset, row), why = REFUSED[name]
    with pytest.raises(AviatoValidationError) as caught:
        datasets.task_of(dataset, row, rows.DOUBLE)
    assert why in str(caught.value), caught.value
    assert caught.value.field_violations
    assert capsys.readouterr().out == ""


def test_arrays_are_lists_and_json_is_read() -> None:
    array = SimpleNamespace(tolist=lambda: ["assert double(2) == 4"])
    assert len(datasets.mbpp({**rows.MBPP.row, "test_list": array}).tests) == 1
    raw = json.loads(rows.APPS.row["input_output"])
    assert datasets.apps({**rows.APPS.row, "input_output": raw}) == datasets.apps(rows.APPS.row)
    assert datasets.row_of("mbpp", json.dumps(rows.MBPP.row)) == rows.MBPP.row
    with pytest.raises(AviatoValidationError, match="'row' is no dict but list"):
        datasets.row_of("mbpp", "[]")


PRELUDES = {
    # A program → how it is with `import a` before it.
    "x = 1": "import a\nx = 1",
    "": "import a\n",
    '"""Doc."""\nx = 1': '"""Doc."""\nimport a\nx = 1',
    '"""Doc\nof 2"""\nfrom __future__ import division\nx': '"""Doc\nof 2"""\nfrom __future__ import division\nimport a\nx',
    "#!/usr/bin/python\n# coding: utf-8\nx = 1": "#!/usr/bin/python\n# coding: utf-8\nimport a\nx = 1",
    "from __future__ import (\n    division,\n)\n\nx": "from __future__ import (\n    division,\n)\n\nimport a\nx",
    "\ufefffrom __future__ import division\nx = 1": "from __future__ import division\nimport a\nx = 1",
    "'a'.join([])": "import a\n'a'.join([])",
    "'a'\n'b'": "'a'\nimport a\n'b'",
    "f'{1}'\nx = 1": "import a\nf'{1}'\nx = 1",
    "x = (": "import a\nx = (",
    "x = '": "import a\nx = '",
    "  indented": "import a\n  indented",
    "\0": "import a\n\0",
    "x = '\ud800'": "import a\nx = '\ud800'",
}


@pytest.mark.parametrize("code", PRELUDES)
def test_a_prelude_stands_behind_what_has_to_be_first(code: str) -> None:
    assert with_prelude("import a\n", code) == PRELUDES[code]


def test_a_prelude_is_one_line_before_code_of_any_size() -> None:
    code = "x = 1\n" * 100_000
    assert with_prelude(live_code_bench.PRELUDE, code).split("\n", 1)[1] == code
    assert with_prelude("import a\n", "(" * 1_000_000) == "import a\n" + "(" * 1_000_000


def test_a_function_goes_behind_its_prompt_and_a_body_into_it() -> None:
    prompt = 'import math\n\ndef area(r):\n    """ Area. """\n'
    body = "    return math.pi * r * r"
    assert completed(prompt, prompt, body, "area") == prompt + body
    assert completed(prompt, prompt, body.strip(), "area") == prompt + body
    assert completed(prompt, prompt, "a = r\nreturn a", "area") == prompt + "    a = r\n    return a"
    assert completed(prompt, prompt, "def area(r):\n    return 0", "area") == prompt + "def area(r):\n    return 0"
    future = "from __future__ import division\n"
    assert completed(prompt, prompt, f"{future}area = abs", "area") == f"{future}{prompt}area = abs"
    compound = "    for a in b:\n        if a:\n            return a"
    assert as_body(compound) == as_body(compound.strip()) == as_body(textwrap.dedent(compound)) == compound
    assert as_body("for a in b:\n  if a:\n    return a") == "    for a in b:\n      if a:\n        return a"
    assert as_body("with a:\n\tpass") == "    with a:\n    \tpass"
    found = {code: defines(code, "f") for code in ("def f(): 0", "async def f(): 0", "class f: 0", "f = 1", "f: int = 1")}
    assert all(found.values())
    for code in ("def ff(): 0", "    def f(): 0", "f == 1", "# def f(): 0", "x = f = 1", "f(1)"):
        assert not defines(code, "f"), code


PRINTED = [
    # judge, expected, printed, verdict of the harness
    (printed.decimal_lines, "1 2\n3", "1 2 \n 3\n\n", True),
    (printed.decimal_lines, "1.0", "1", True),
    (printed.decimal_lines, "0.3", "0.30000000000000004", False),
    (printed.decimal_lines, "50000000000000000", "50000000000000001", False),
    (printed.decimal_lines, "1  2", "1 2", True),
    (printed.decimal_lines, "a  b", "a b", False),
    (printed.decimal_lines, "1\n2", "1\n\n2", False),
    (printed.decimal_lines, "YES", "yes", False),
    (printed.decimal_lines, "1\n2", "1\r\n2\r\n", True),
    (printed.stripped, "1 2\n3\n", "  1 2\n3", True),
    (printed.stripped, "12 20\n30", "12 20 \n30", False),
    (printed.stripped, "1.25", "1.250", False),
    (printed.close_lines, "1 2\n3", "1 2\n\n3", True),
    (printed.close_lines, "0.3", "0.30000000000000004", True),
    (printed.close_lines, "1000000", "1000001", False),
    (printed.close_lines, "1000000.5", "1000001.5", True),
    (printed.close_lines, "YES\nNO", "NO\nYES", False),
    (printed.loose_lines, "1 2\n3", "1 2 \n\n3", True),
    (printed.loose_lines, "0.3", "0.30000000000000004", True),
    (printed.loose_lines, "0.1 0.2", "0.10001 0.2", True),
    (printed.loose_lines, "a  b", "a b", True),
    (printed.loose_lines, "5", "6", False),
    (printed.loose_lines, "1000000", "1000001", True),
]
PRINTED_BY_SOURCE = [
    # The same, where the harness was read and not run.
    (printed.stripped_lines, "1 2\n3", " 1 2 \n3 \n", True),
    (printed.stripped_lines, "1\n2", "1\n\n2", False),
    (printed.stripped_lines, "1.0", "1", False),
    (same_answers, "YES\n1 2", "yes 1\n2", True),
    (same_answers, "YES", "YESS", False),
    (same_answers, "1.0", "1", False),
    # The harness takes off blanks, or empty lines, and not both.
    (printed.close_lines, "1 2\n3", "1 2 \n\n3", True),
    # APPS passes these, which is not followed.
    (printed.loose_lines, "YES\nNO\nYES", "NO\nYES", False),
    (printed.loose_lines, "1 2", "2 1", False),
]


@pytest.mark.parametrize(("judge", "expected", "output", "verdict"), [*PRINTED, *PRINTED_BY_SOURCE])
def test_what_is_printed_is_compared_as_the_harness_does(judge: Any, expected: str, output: str, verdict: bool) -> None:
    assert (judge(ProgramCase("", expected), output.encode()) is True) is verdict
    assert pickle.loads(pickle.dumps(judge)) is judge


RETURNED = [
    (returned.same_but_tuple, [1, 2], (1, 2), True),
    (returned.same_but_tuple, [[1, 2]], [(1, 2)], False),
    (returned.same_but_tuple, 1, True, True),
    (returned.same_but_tuple, 0.3, 0.1 + 0.2, False),
    (returned.same_but_tuple, [3], 3, False),
    (returned.same_or_wrapped, [3], 3, True),
    (returned.same_or_wrapped, [3], [3], True),
    (returned.same_or_wrapped, [[[1, 2]]], [(1, 2)], True),
    (returned.same_or_wrapped, [[1, 2]], [(1, 2)], False),
    (returned.same_or_wrapped, [3, 4], 3, True),
    (returned.same_or_wrapped, [], None, False),
    (returned.same_printed, [1, 2], [1, 2], True),
    (returned.same_printed, [1, 2], (1, 2), False),
    (returned.same_printed, "a ", "a", True),
    (returned.same_printed, 4, 5, False),
]
WRAPPED = (returned.same_printed, [4], 4, True)
"""Rows of SYNTHETIC-1 come from APPS, where what is expected stands in a list of one; its verifier passes nobody there."""


@pytest.mark.parametrize(("judge", "expected", "value", "verdict"), [*RETURNED, WRAPPED])
def test_what_is_returned_is_compared_as_the_harness_does(judge: Any, expected: Any, value: Any, verdict: bool) -> None:
    assert (judge(CallCase("f", [], expected), value) is True) is verdict
    assert pickle.loads(pickle.dumps(judge)) is judge


def test_a_value_that_deep_or_long_is_an_answer_that_is_wrong() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for judge in (returned.same_but_tuple, returned.same_or_wrapped, returned.same_printed):
        assert judge(CallCase("f", [], [1]), deep) is not True
        assert judge(CallCase("f", [], 1), 10**10_000) is not True


def test_a_problem_takes_many_answers() -> None:
    problem = datasets.problem_of("livecodebench", rows.LIVECODEBENCH.row)
    first, second = problem.with_code("print(1)"), problem.with_code("print(2)")
    assert replace(first, code=second.code) == second and first.code != second.code
