from __future__ import annotations

import pytest

from aviato.exceptions import SandboxFailedError, SandboxNotRunningError, SandboxTerminatedError
from aviato.options import SandboxStatus as S
from aviato.server.states import TRANSITIONS, check_transition, ending_of, error_of, lost, start_failed, terminated

ENDS = [
    # said, asked, left, returncode → status, reason, infrastructure, error
    ("exited", None, None, 0, S.COMPLETED, "exited", False, SandboxNotRunningError),
    ("exited", None, None, 3, S.FAILED, "exited", False, SandboxFailedError),
    ("exited", "stopped", None, 143, S.TERMINATED, "stopped", False, SandboxNotRunningError),
    ("oom", None, None, 137, S.FAILED, "oom", False, SandboxFailedError),
    ("stopped", None, None, None, S.TERMINATED, "stopped", False, SandboxNotRunningError),
    ("stopped", "stopped", None, None, S.TERMINATED, "stopped", False, SandboxNotRunningError),
    ("stopped", "lease_expired", None, None, S.TERMINATED, "lease_expired", True, SandboxTerminatedError),
    ("stopped", "released", None, None, S.TERMINATED, "released", True, SandboxTerminatedError),
    ("stopped", "shutdown", None, None, S.TERMINATED, "shutdown", True, SandboxTerminatedError),
    ("stopped", "idle", None, None, S.TERMINATED, "idle", False, SandboxTerminatedError),
    ("lifetime", None, None, None, S.TERMINATED, "lifetime", False, SandboxTerminatedError),
    ("orphaned", None, None, None, S.TERMINATED, "orphaned", True, SandboxTerminatedError),
    ("lost", None, None, None, S.FAILED, "lost", True, SandboxFailedError),
    ("lost", None, "lifetime", None, S.TERMINATED, "lifetime", False, SandboxTerminatedError),
    ("lost", None, "orphaned", None, S.TERMINATED, "orphaned", True, SandboxTerminatedError),
    ("lost", "stopped", "orphaned", None, S.TERMINATED, "stopped", False, SandboxNotRunningError),
    ("nonsense", None, None, None, S.FAILED, "lost", True, SandboxFailedError),
]


@pytest.mark.parametrize(("said", "asked", "left", "returncode", "status", "reason", "infrastructure", "error"), ENDS)
def test_every_row_of_the_table_of_endings(said, asked, left, returncode, status, reason, infrastructure, error):
    ending = ending_of(said, asked=asked, left=left, returncode=returncode)
    assert (ending.status, ending.reason, ending.is_infrastructure) == (status, reason, infrastructure)
    assert ending.returncode == returncode
    raised = error_of("sb-x", ending, started=True)
    assert type(raised) is error
    assert (raised.reason, raised.is_infrastructure, raised.started) == (reason, infrastructure, True)
    assert "sb-x" in str(raised) and reason in str(raised)


def test_a_start_that_failed_and_a_loss_are_failures():
    assert isinstance(error_of("sb-x", start_failed("no namespaces")), SandboxFailedError)
    assert start_failed("image", is_infrastructure=False).is_infrastructure is False
    assert lost("gone").is_infrastructure is True


def test_terminated_has_only_its_own_reasons():
    with pytest.raises(ValueError, match="exited"):
        terminated("exited")


@pytest.mark.parametrize("old", list(S))
@pytest.mark.parametrize("new", list(S))
def test_only_the_listed_transitions_are_legal(old, new):
    if new in TRANSITIONS.get(old, frozenset()):
        check_transition(old, new)
    else:
        with pytest.raises(ValueError, match=str(new)):
            check_transition(old, new)


def test_terminal_states_are_final_and_reachable_from_every_other():
    terminal = {status for status in S if status.is_terminal}
    for status in (S.PENDING, S.RUNNING, S.TERMINATING):
        assert terminal <= TRANSITIONS[status]
    for status in terminal:
        assert not TRANSITIONS[status]
