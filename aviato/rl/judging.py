"""Applies a judge, and tells an answer that it cannot read from a judge that does not work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.log import logger
from aviato.rl import judges
from aviato.system.threads import in_thread
from aviato.values.text import shown

if TYPE_CHECKING:
    from aviato.rl.cases import CallCase, ProgramCase

AT_ONCE_BYTES = 64 << 10
"""So much is compared on the loop's own thread."""
MOST_KNOWN = 4096
_works: set[Any] = set()
"""Judges of callers that have taken an answer: what they refuse they mean to refuse."""


class JudgeFailed(Exception):
    """A judge fails on what is expected too, so that it says nothing of the code."""


async def judged(case: ProgramCase | CallCase, actual: Any, size_bytes: int) -> tuple[bool, str]:
    """Whether a case has passed, and one line on why not.

    Args:
        case: with its judge, which is no checker.
        actual: what was printed or returned.
        size_bytes: about how much that is.

    Raises:
        JudgeFailed: the judge does not work.
    """
    if judges.is_ours(case.judge) and size_bytes + _size(case) <= AT_ONCE_BYTES:
        return judged_now(case, actual)
    return await in_thread(judged_now, case, actual)


def judged_now(case: ProgramCase | CallCase, actual: Any) -> tuple[bool, str]:
    """See `judged`; on this thread."""
    expected = judges.expected_of(case)
    answer, message = _asked(case, actual)
    if answer is True:
        _know(case.judge)
        return True, ""
    doubtful = answer is None or not (_is_aviatos(case.judge) or _is_known(case.judge))
    if doubtful and expected is None:
        if answer is None:
            logger.warning("a judge raised for a case that expects nothing; that counts as a wrong answer: %s", message)
    elif doubtful:
        again, why = _asked(case, judges.as_bytes(expected) if judges.is_printed(case) else expected)
        if again is not True:
            also = "" if why == message else f"; of the answer it said: {message}"
            raise JudgeFailed(f"the judge does not work: it does not take the expected answer either: {why}{also}")
        _know(case.judge)
    return False, message


def _asked(case: ProgramCase | CallCase, actual: Any) -> tuple[bool | None, str]:
    """What a judge answers, and one line on why not; None if it could not read the answer.

    Raises:
        JudgeFailed: it answers something else.
    """
    try:
        answer = case.judge(case, actual)  # type: ignore[operator]
    except (Exception, SystemExit) as error:
        return None, f"the judge could not read the answer: {type(error).__name__}: {shown(str(error))}"
    if isinstance(answer, str):
        return False, shown(answer)
    if answer is None or answer is False or answer is True:
        return bool(answer), "" if answer else judges.differs(case, actual)
    if type(answer).__module__ == "numpy" and type(answer).__name__.startswith("bool"):
        return bool(answer), "" if answer else judges.differs(case, actual)
    if hasattr(answer, "close") and hasattr(answer, "send"):
        answer.close()  # a coroutine, which nobody awaits
    raise JudgeFailed(f"a judge returns True, False, or the reason as a text; this one returned a {type(answer).__name__}")


def _is_aviatos(judge: Any) -> bool:
    """Whether it is a judge of this package, those of data sets included: what it refuses it means to refuse."""
    return str(getattr(judge, "__module__", "")).startswith("aviato.")


def _is_known(judge: Any) -> bool:
    try:
        return judge in _works
    except TypeError:  # cannot be hashed
        return False


def _know(judge: Any) -> None:
    if _is_aviatos(judge):
        return
    if len(_works) >= MOST_KNOWN:
        _works.clear()
    try:
        _works.add(judge)
    except TypeError:  # cannot be hashed
        return


def _size(case: ProgramCase | CallCase) -> int:
    """About how many bytes are expected."""
    expected = judges.expected_of(case)
    if isinstance(expected, (str, bytes)):
        return len(expected)
    return 64 * len(expected) if isinstance(expected, (list, tuple, dict, set, frozenset)) else 0
