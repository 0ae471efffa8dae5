"""Applies a judge, and tells an answer that it cannot read from a judge that does not work."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from aviato.rl import judges
from aviato.text import shown
from aviato.threads import in_thread

if TYPE_CHECKING:
    from aviato.rl.task import CallCase, ProgramCase

logger = logging.getLogger("aviato")

AT_ONCE_BYTES = 64 << 10
"""So much is compared on the loop's own thread."""
OURS = (judges.exact, judges.text, judges.tokens, judges.unordered)


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
    ours = case.judge in OURS or isinstance(case.judge, (judges.Floats, judges.Value))
    if ours and size_bytes + _size(case) <= AT_ONCE_BYTES:
        return judged_now(case, actual)
    return await in_thread(judged_now, case, actual)


def judged_now(case: ProgramCase | CallCase, actual: Any) -> tuple[bool, str]:
    """See `judged`; on this thread."""
    try:
        answer = case.judge(case, actual)  # type: ignore[operator]
    except Exception as error:
        return False, _unreadable(case, error)
    if answer is None:
        raise JudgeFailed("the judge of a case returned None; it has to return True, False, or the reason as a text")
    if isinstance(answer, str):
        return False, shown(answer)
    return bool(answer), "" if answer else judges.differs(case, actual)


def _unreadable(case: ProgramCase | CallCase, error: Exception) -> str:
    """What a judge raises that takes what is expected is a matter of the answer."""
    expected = judges.expected_of(case)
    raised = f"{type(error).__name__}: {error}"
    if expected is None:
        logger.warning("a judge raised %s, for a case that expects nothing; that counts as a wrong answer", shown(raised))
        return f"the judge could not read the answer: {shown(raised)}"
    try:
        case.judge(case, judges.as_bytes(expected) if judges.is_printed(case) else expected)  # type: ignore[operator]
    except Exception:
        raise JudgeFailed(f"the judge does not work: for the expected answer too it raised {shown(raised)}") from error
    return f"the judge could not read the answer: {shown(raised)}"


def _size(case: ProgramCase | CallCase) -> int:
    expected = judges.expected_of(case)
    return len(expected) if isinstance(expected, (str, bytes, list, tuple, dict)) else 0
