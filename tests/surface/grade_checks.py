"""Section 2: hidden grading."""

from __future__ import annotations

import aviato
from tests.surface.harness import Place, acheck, check

SOLUTION = b"def double(n):\n    return n * n\n"
TESTS = b"""import unittest
from solution import double

class TestDouble(unittest.TestCase):
    def test_two(self): self.assertEqual(double(2), 4)
    def test_three(self): self.assertEqual(double(3), 6)
"""
_FIELDS = [f"GradeResult.{name}" for name in ("passed", "cases", "exec_result", "mode", "message", "left_out", "statuses")]
_FIELDS += [f"GradeCase.{name}" for name in ("name", "passed", "status", "message", "duration_seconds")]


def _look(graded: aviato.GradeResult, mode: str) -> None:
    assert isinstance(graded, aviato.GradeResult)
    assert (graded.passed, graded.mode, graded.exec_result.returncode) == (False, mode, 1)
    assert "test_three" in graded.message
    assert [(case.name.rpartition(".")[2], case.passed) for case in graded.cases] == [("test_three", False), ("test_two", True)]
    assert all(isinstance(case, aviato.GradeCase) and case.duration_seconds > 0 for case in graded.cases)
    assert [case.message for case in graded.cases] == ["AssertionError: 9 != 6", ""]
    assert [str(case.status) for case in graded.cases] == ["failed", "passed"]
    assert graded.statuses == {case.name: case.status for case in graded.cases}
    assert graded.left_out == ()


@check("Sandbox.grade", *_FIELDS)
def grade(place: Place) -> None:
    box = place.box()
    box.write_file("solution.py", SOLUTION).result()
    files, command = {"test_double.py": TESTS}, ["python3", "-m", "unittest"]
    _look(box.grade(files, command, result_paths=["solution.py"], timeout_seconds=20).result(), "separate")


@acheck("Sandbox.grade")
async def grade_async(place: Place) -> None:
    box = await place.box()
    await box.write_file("solution.py", SOLUTION)
    files, command = {"test_double.py": TESTS}, ["python3", "-m", "unittest"]
    _look(await box.grade(files, command, result_paths=["solution.py"], mode="in_process"), "in_process")
