"""What came of an operation, set by one thread while others wait for it."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest

from aviato.bridge.outcome import Outcome


def test_what_is_set_is_there_for_all() -> None:
    outcome: Outcome[int] = Outcome()
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(outcome.value if outcome.wait(30) else -1)) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert not outcome.wait(0.01) and not outcome.is_set
    outcome.value = 7
    outcome.set(None)
    for thread in threads:
        thread.join(30)
    assert seen == [7] * 8 and outcome.wait(0) and outcome.result() == 7


def test_each_callback_is_called_once_whoever_comes_first() -> None:
    for _ in range(300):
        outcome: Outcome[None] = Outcome()
        called: list[int] = []
        start = threading.Barrier(4)

        def add(
            number: int, outcome: Outcome[None] = outcome, called: list[int] = called, start: threading.Barrier = start
        ) -> None:
            start.wait()
            outcome.when_set(lambda: called.append(number))

        threads = [threading.Thread(target=add, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        start.wait()
        outcome.set(None)
        for thread in threads:
            thread.join(30)
        assert sorted(called) == [0, 1, 2]


def test_a_callback_that_fails_keeps_no_other_from_being_called(caplog: pytest.LogCaptureFixture) -> None:
    outcome: Outcome[None] = Outcome()
    called: list[str] = []
    outcome.when_set(lambda: 1 / 0)
    outcome.when_set(lambda: called.append("other"))
    with caplog.at_level(logging.ERROR):
        outcome.set(None)
    assert called == ["other"] and "ZeroDivisionError" in caplog.text


def test_a_callback_that_is_interrupted_keeps_no_other_from_being_called() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    outcome: Outcome[None] = Outcome()
    called: list[str] = []
    outcome.when_set(interrupted)
    outcome.when_set(lambda: called.append("other"))
    with pytest.raises(KeyboardInterrupt):
        outcome.set(None)
    assert called == ["other"] and outcome.is_set


def test_an_error_that_is_raised_keeps_nothing_alive() -> None:
    class Mine(Exception):
        pass

    outcome: Outcome[None] = Outcome()
    outcome.set(Mine("text"))
    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(Mine, match="text"):
                outcome.result()
        weak = weakref.ref(outcome.error)
        del outcome
        assert weak() is None
    finally:
        gc.enable()
