from __future__ import annotations

import pytest

from aviato.exceptions import SandboxFailedError, SandboxNotRunningError, SandboxTerminatedError
from aviato.options import SandboxStatus as S
from aviato.server.states import (
    LIVING,
    TABLE,
    Event,
    State,
    after,
    ending_of,
    error_of,
    lost,
    start_failed,
    status_of,
    terminated,
)

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


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_only_the_listed_transitions_are_legal(state, event):
    if (state, event) in TABLE:
        assert after(state, event) > state or event is Event.RESET, "a life only goes forward"
    else:
        with pytest.raises(ValueError, match=state.name):
            after(state, event)


def test_every_state_leads_to_the_end_and_only_that_is_final():
    for state in set(State) - {State.GONE}:
        ways = {after(state, event) for event in Event if (state, event) in TABLE}
        assert State.ENDED in ways or (state is State.ENDED and ways == {State.GONE})
    assert not any(state is State.GONE for state, _ in TABLE)
    assert set(TABLE.values()) | {State.QUEUED} == set(State)


@pytest.mark.parametrize("before", LIVING)
@pytest.mark.parametrize("state", sorted(set(State) - {State.GONE}))
def test_what_clients_are_told_never_goes_back(before, state):
    told = status_of(state, before)
    assert LIVING.index(told) >= LIVING.index(before)
    running = {State.RUNNING: S.RUNNING, State.STOPPING: S.TERMINATING, State.ENDED: S.TERMINATING}
    assert status_of(state, S.PENDING) is running.get(state, S.PENDING)
