"""What a grader's framework has reported of its tests, as cases: see `inside/runs.py`."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from aviato.grading.remedies import with_remedy
from aviato.results import CaseStatus, GradeCase
from aviato.values.text import shown

if TYPE_CHECKING:
    from aviato.results import ProcessResult

_UNREADABLE = ("ended", "unreadable", "error", 0.0, "a report that cannot be read", False, "run")


class Told(NamedTuple):
    """One test.

    Attributes:
        case: what became of it.
        ok: whether it lets the whole pass.
        collected: whether it is a test, and not what was to be searched for tests.
    """

    case: GradeCase
    ok: bool
    collected: bool = True


@dataclass
class Reports:
    """All tests of a command.

    Attributes:
        tests: in the order in which they were found.
        code: which the framework would have exited with; None where it did not come to its end.
    """

    tests: list[Told] = field(default_factory=list)
    code: int | None = None

    @property
    def cases(self) -> list[GradeCase]:
        """Of the result."""
        return [told.case for told in self.tests]

    @property
    def uncollected(self) -> list[GradeCase]:
        """Errors from before any test ran: a module that cannot be loaded."""
        return [told.case for told in self.tests if not told.collected and told.case.status is CaseStatus.ERROR]


def read(record: dict[str, Any], result: ProcessResult) -> Reports:
    """What was reported.

    Args:
        record: process 1's, of the whole command.
        result: how its process ended.
    """
    found: list[str] = []
    ended: dict[str, list[Told]] = {}
    begun: dict[str, int] = {}
    code: int | None = None
    for line in str(record.get("reports", "")).splitlines():
        kind, what, *rest = _event(line)
        if kind == "found":
            found += map(str, what)
        elif kind == "code":
            code = what if type(what) is int else None
        else:
            name = found[what] if type(what) is int and 0 <= what < len(found) else str(what)
            if kind == "began":
                begun[name] = begun.get(name, 0) + 1
            else:
                ended.setdefault(name, []).append(_ended(name, *rest))
    for name, times in begun.items():
        if times > len(ended.get(name, [])):
            ended.setdefault(name, []).append(Told(_left(name, record, result), ok=False))
    return Reports(_ordered(found, ended), code)


def _ordered(found: list[str], ended: dict[str, list[Told]]) -> list[Told]:
    """Each test that was found, and what was none of those."""
    tests = []
    for name in found:
        told = ended.get(name)
        not_run = Told(GradeCase(name=name, passed=False, status=CaseStatus.NOT_RUN, message="not run"), ok=False)
        tests.append(told.pop(0) if told else not_run)
    return tests + [told for rest in ended.values() for told in rest]


def _event(line: str) -> tuple[Any, ...]:
    """One report; what cannot be read is a test that has not passed."""
    try:
        event = ast.literal_eval(line)
        if type(event) is tuple and len(event) == {"found": 2, "began": 2, "code": 2, "ended": 7}[event[0]]:
            return event if event[0] != "found" or type(event[1]) is list else _UNREADABLE
    except (ValueError, SyntaxError, TypeError, KeyError, IndexError, MemoryError, RecursionError):
        pass
    return _UNREADABLE


def _ended(name: str, status: Any, seconds: Any, message: Any, ok: Any, phase: Any) -> Told:
    known = CaseStatus(status) if status in tuple(CaseStatus) else CaseStatus.ERROR
    good = ok is True and known in (CaseStatus.PASSED, CaseStatus.XPASSED)
    case = GradeCase(
        name=name,
        passed=good,
        status=known,
        message=with_remedy(shown(str(message))),
        duration_seconds=float(seconds) if type(seconds) is float else 0.0,
    )
    return Told(case, ok is True and known in _OK, phase != "collect")


_OK = frozenset((CaseStatus.PASSED, CaseStatus.XPASSED, CaseStatus.SKIPPED, CaseStatus.XFAILED))


def _left(name: str, record: dict[str, Any], result: ProcessResult) -> GradeCase:
    """The test that was under way at the end of the process."""
    reason = str(record.get("reason", ""))
    status = CaseStatus.FAILED
    if result.timed_out or reason == "timed_out":
        status = CaseStatus.TIMED_OUT
    elif result.oom_killed or reason == "out_of_memory":
        status = CaseStatus.OUT_OF_MEMORY
    message = with_remedy(shown(str(record.get("message", "")) or "its process ended"))
    seconds = float(record.get("duration_seconds", 0.0))
    return GradeCase(name=name, passed=False, status=status, message=message, duration_seconds=seconds)
