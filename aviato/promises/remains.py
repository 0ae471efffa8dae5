"""What is left once sandboxes have ended: nothing."""

from __future__ import annotations

import signal
from contextlib import suppress

import aviato
from aviato.promises.serving import Server


def _ended_in_every_way() -> None:
    with aviato.Session() as session:
        ended = session.sandbox(command="sh", args=["-c", "exit 1"])
        ended.wait_until_complete(raise_on_termination=False).result()
        stopped, given_up, deleted = session.sandbox(), session.sandbox(), session.sandbox()
        stopped.exec(["sh", "-c", "sleep 70 & mkdir -p d; chmod 0 d"]).result()
        stopped.stop(graceful_shutdown_seconds=0).result()
        given_up.stop(graceful_shutdown_seconds=0).result()
        deleted.exec(["true"]).result()
        aviato.Sandbox.delete(deleted.sandbox_id).result()
        aged = session.sandbox(max_lifetime_seconds=0.5)
        with suppress(aviato.AviatoError):
            aged.wait()
        aged.wait_until_complete(raise_on_termination=False).result()
        session.sandbox().exec(["true"]).result()
        again = session.sandbox()
        again.exec(["true"]).result()
        again.reset().result()


def test_no_place_is_left(own_server: Server) -> None:
    """However a sandbox ended, its place is gone with it; there is nothing to list and nothing to take up."""
    _ended_in_every_way()
    assert aviato.Sandbox.list().result() == []
    # Handed over and not ended, so that nothing is taken away by the end of the server.
    own_server.stop(signal.SIGTERM)
    assert own_server.places() == []


def test_a_place_is_there_as_long_as_its_sandbox(own_server: Server) -> None:
    """A sandbox that outlives its server has a place, of which nobody else's is taken away; a stop ends it."""
    kept, other = aviato.Sandbox.run(detached=True).wait(), aviato.Sandbox.run(detached=True).wait()
    own_server.stop(signal.SIGKILL)
    assert len(own_server.places()) == 2
    own_server.start()
    other.stop(graceful_shutdown_seconds=0).result()
    assert kept.exec(["echo", "on"]).result().stdout == "on\n"
    own_server.stop(signal.SIGTERM)
    assert len(own_server.places()) == 1
    own_server.start()
    kept.stop(graceful_shutdown_seconds=0).result()
    own_server.stop(signal.SIGTERM)
    assert own_server.places() == []
