"""The table of what `ref.result()` and `await ref` do, row by row."""

import asyncio
import contextlib
import contextvars
import copy
import gc
import logging
import sys
import threading
import time
import types
import warnings

import pytest
import uvloop

import aviato
from aviato.bridge.loop import loop_thread
from aviato.bridge.operation import OperationRef
from aviato.exceptions import (
    AsyncUsageWarning,
    OperationCancelledError,
    OperationTimeoutError,
    SandboxCommandTimeoutError,
)


def start(coroutine, name="work", **options):
    return OperationRef.start(coroutine, name=name, **options)


class Work:
    """Runs until it is cancelled, then cleans up for a while; tells the test how far it is."""

    def __init__(self, clean_up_seconds=0.2):
        self.begun = threading.Event()
        self.cleaned = False
        self.clean_up_seconds = clean_up_seconds

    async def __call__(self):
        try:
            self.begun.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(self.clean_up_seconds)
            self.cleaned = True

    def start(self, **options):
        ref = start(self(), **options)
        assert self.begun.wait(5)
        return ref


async def fail(error):
    raise error


async def giving(value):
    return value


@pytest.fixture(params=["asyncio", "asyncio debug", "uvloop"])
def run(request):
    """Runs a coroutine on each kind of loop that a caller may have."""
    if request.param == "uvloop":
        return lambda coroutine: asyncio.Runner(loop_factory=uvloop.new_event_loop).run(coroutine)
    return lambda coroutine: asyncio.run(coroutine, debug=request.param == "asyncio debug")


# -- the outcome


def test_the_value(run):
    async def main():
        return await start(asyncio.sleep(0.01, "value"))

    assert start(asyncio.sleep(0, "value")).result() == "value"
    assert run(main()) == "value"


def test_the_error_itself(run):
    async def main():
        await ref

    error = ValueError("itself")
    ref = start(fail(error))
    for ask in (ref.result, lambda: run(main())):
        with pytest.raises(ValueError, match="itself") as caught:
            ask()
        assert caught.value is error
    assert ref.exception() is error


def test_no_error():
    assert start(asyncio.sleep(0)).exception() is None


def test_two_loops_and_two_threads_get_the_same():
    value = object()
    ref = start(asyncio.sleep(0.2, value))
    outcomes = []

    async def main():
        outcomes.append(await ref)
        outcomes.append(await ref)

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(2)]
    threads += [threading.Thread(target=lambda: outcomes.append(ref.result())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [value] * 6
    assert ref.result() is ref.result() is value


def test_many_tasks_of_one_loop(run):
    async def main():
        ref = start(asyncio.sleep(0.05, "value"))

        async def wait():
            return await ref

        return await asyncio.gather(*(wait() for _ in range(50)))

    assert run(main()) == ["value"] * 50


def test_a_loop_that_has_closed_is_no_matter(caplog):
    ref = start(asyncio.sleep(0.3, "value"), shared=True)

    async def main():
        await asyncio.wait_for(ref, 0.05)

    for _ in range(3):
        with pytest.raises(TimeoutError):
            asyncio.run(main())
    assert ref.result() == "value"
    assert not caplog.records


def test_the_loop_of_the_caller_stays_free_while_it_waits(run):
    async def main():
        ticks = 0
        ref = start(asyncio.sleep(0.2))
        task = asyncio.ensure_future(ref)
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert run(main()) >= 5


def test_done_callbacks_come_once_with_the_ref():
    calls = []
    called = threading.Event()
    ref = start(asyncio.sleep(0.05))
    ref._when_done(lambda ended: (calls.append(ended), called.set()))
    assert called.wait(5)
    ref._when_done(calls.append)
    assert calls == [ref, ref]


def test_a_subclass_is_started_as_itself():
    class Process(OperationRef[str]):
        pass

    ref = Process.start(asyncio.sleep(0, "value"), name="process")
    assert type(ref) is Process
    assert ref.result() == "value"
    assert repr(ref) == "<Process process: done>"


# -- timeouts


def test_a_timeout_leaves_the_work_running():
    ref = start(asyncio.sleep(0.3, "value"), name="read_file '/x'")
    begin = time.monotonic()
    with pytest.raises(OperationTimeoutError, match=r"read_file '/x' has not ended after 0.05 s and goes on") as caught:
        ref.result(0.05)
    assert time.monotonic() - begin < 0.25
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(OperationTimeoutError):
        ref.exception(0)
    assert not ref.done()
    assert ref.result(5) == "value"
    assert ref.result(0) == "value"


def test_the_works_own_timeout_is_another_class(run):
    async def main():
        await ref

    ref = start(fail(SandboxCommandTimeoutError("too long")))
    for ask in (lambda: ref.result(5), lambda: run(main())):
        with pytest.raises(SandboxCommandTimeoutError):
            ask()
    assert not issubclass(SandboxCommandTimeoutError, OperationTimeoutError)


def test_wait_for_cancels_the_work_and_waits_for_its_clean_up(run):
    work = Work()

    async def main():
        ref = work.start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ref, 0.05)
        assert work.cleaned
        assert ref.done()

    run(main())


def test_asyncio_timeout_cancels_the_work_and_waits_for_its_clean_up(run):
    work = Work()

    async def main():
        ref = work.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ref
        assert work.cleaned
        with pytest.raises(OperationCancelledError):
            await ref

    run(main())


def test_shield_only_looks(run):
    async def main():
        ref = start(asyncio.sleep(0.2, "value"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ref), 0.05)
        assert not ref.done()
        return await ref

    assert run(main()) == "value"


# -- cancelling


def test_done_only_after_the_clean_up():
    work = Work()
    ref = work.start()
    assert ref.cancel()
    assert not ref.done()
    with pytest.raises(OperationCancelledError, match="work was cancelled"):
        ref.result(5)
    assert work.cleaned
    assert not ref.cancel()
    assert isinstance(ref.exception(), OperationCancelledError)


def test_a_waiter_on_a_loop_sees_the_cancelling_as_an_ordinary_error(run):
    work = Work()

    async def main():
        ref = work.start()
        asyncio.get_running_loop().call_later(0.05, ref.cancel)
        try:
            await ref
        except Exception as error:
            assert work.cleaned
            assert asyncio.current_task().cancelling() == 0
            return error

    assert isinstance(run(main()), OperationCancelledError)


def test_cancelling_before_it_has_begun():
    begun = []

    async def work():
        begun.append(1)

    def block():
        go_on.wait(5)

    go_on = threading.Event()
    loop_thread().loop.call_soon_threadsafe(block)
    ref = start(work())
    assert ref.cancel()
    go_on.set()
    with pytest.raises(OperationCancelledError):
        ref.result(5)
    assert begun == []


def test_the_clean_up_is_not_cancelled_by_a_second_cancelling():
    work = Work()
    ref = work.start()
    ref.cancel()
    time.sleep(0.05)
    ref.cancel()
    with pytest.raises(OperationCancelledError):
        ref.result(5)
    assert work.cleaned


def test_work_that_ends_in_its_clean_up_keeps_its_outcome():
    async def work():
        try:
            begun.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "value"

    begun = threading.Event()
    ref = start(work())
    begun.wait(5)
    ref.cancel()
    assert ref.result(5) == "value"


def test_a_cancelled_waiter_ends_the_work_and_waits_for_its_clean_up(run):
    work = Work()

    async def main():
        ref = work.start()
        task = asyncio.ensure_future(ref)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.cleaned

    run(main())


def test_waiters_cancelled_together_all_wait_for_the_clean_up(run):
    work = Work()

    async def main():
        ref = work.start()

        async def wait():
            try:
                await ref
            finally:
                seen.append(work.cleaned)

        seen = []
        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
            await asyncio.sleep(0.02)
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        assert seen == [True] * 3

    run(main())


def test_a_second_cancelling_of_the_waiter_leaves_at_once(run):
    work = Work(clean_up_seconds=1)

    async def main():
        task = asyncio.ensure_future(work.start())
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not work.cleaned

    run(main())


def test_shared_work_goes_on_when_a_waiter_leaves(run):
    async def main():
        ref = start(asyncio.sleep(0.2, "value"), shared=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ref, 0.05)
        assert not ref.cancel()
        return await ref

    assert run(main()) == "value"


def test_task_groups_behave_as_with_local_tasks(run):
    work = Work()

    async def main():
        async def wait():
            await work.start()

        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(wait())
                await asyncio.sleep(0.02)
                group.create_task(fail(ValueError("sibling")))
        assert [str(error) for error in caught.value.exceptions] == ["sibling"]
        assert work.cleaned

    run(main())


def test_a_ref_that_is_cancelled_by_others_fails_a_task_group(run):
    async def main():
        ref = Work(0).start()

        async def wait():
            await ref

        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(wait())
                await asyncio.sleep(0.02)
                ref.cancel()
        assert isinstance(caught.value.exceptions[0], OperationCancelledError)

    run(main())


# -- where it may be called


def test_blocking_on_the_loop_thread_is_refused_and_await_works():
    async def work():
        inner = start(asyncio.sleep(0.01, "value"), name="inner")
        with pytest.raises(RuntimeError, match="`await`"):
            inner.result()
        return await inner

    assert start(work()).result(5) == "value"


def test_looking_at_what_has_ended_blocks_nobody():
    async def work():
        inner = start(asyncio.sleep(0, "value"))
        await inner
        return inner.result()

    assert start(work()).result(5) == "value"


def test_blocking_on_a_running_loop_warns_once_a_call_site():
    async def main():
        with pytest.warns(AsyncUsageWarning, match="blocks the event loop") as caught:
            for _ in range(3):
                assert start(asyncio.sleep(0.01, "value")).result() == "value"
            assert start(asyncio.sleep(0.01, "value")).result() == "value"
        assert [warning.filename for warning in caught] == [__file__] * 2
        assert caught[0].lineno != caught[1].lineno

    asyncio.run(main())


def test_a_notebook_is_not_warned(monkeypatch):
    async def main():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return start(asyncio.sleep(0.01, "value")).result()

    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: object()))
    assert asyncio.run(main()) == "value"


def test_context_variables_travel_in_and_not_out():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("the caller's")

    async def work():
        seen = variable.get()
        variable.set("changed")
        return seen

    assert start(work()).result() == "the caller's"
    assert variable.get() == "the caller's"
    read = threading.Event()
    seen = []
    thread = loop_thread()
    contextvars.Context().run(thread.loop.call_soon_threadsafe, lambda: (seen.append(variable.get()), read.set()))
    assert read.wait(5)
    assert seen == ["unset"]


# -- taken for the outcome


@pytest.mark.parametrize("outcome", ["42", b"42", 0, True, 0.5, [], (), {}])
def test_a_handle_is_not_compared_with_an_outcome(outcome):
    """It would be False without a word."""
    ref = start(giving(outcome))
    for compare in (lambda: ref == outcome, lambda: ref != outcome, lambda: outcome == ref, lambda: ref in [outcome]):
        with pytest.raises(TypeError, match=r"take its `.result\(\)`, or `await` it, first"):
            compare()
    assert ref.result(5) == outcome


def test_a_handle_is_compared_with_others_by_identity():
    first, second = start(giving(1)), start(giving(1))
    assert first == first and first != second and first != None and first in [second, first]  # noqa: E711
    assert len({first, second, first}) == 2


def test_an_attribute_of_the_outcome_says_what_is_missing():
    ref = start(giving("text"))
    with pytest.raises(AttributeError, match=r"no attribute 'strip'; it is a handle: take its `.result\(\)`"):
        ref.strip()
    assert not hasattr(ref, "__array__") and copy.copy(ref.result(5)) == "text"


def test_asyncio_does_not_take_a_handle_for_a_future_of_its_loop(run):
    """It would wait for ever: the callback comes on another thread, which wakes nobody."""

    async def main():
        async with asyncio.timeout(5):
            with pytest.raises(AttributeError, match=r"no future of a loop: use `aviato.wait\(\)` .*, or `await` it"):
                await asyncio.wait([ref])
            done, pending = await asyncio.wait([asyncio.ensure_future(ref)])
            return [task.result() for task in done], pending

    ref = start(asyncio.sleep(0.2, "value"))
    assert run(main()) == (["value"], set())


# -- forgotten failures


def test_a_forgotten_failure_is_logged_once_when_collected(caplog):
    ref = start(fail(ValueError("nobody looked")), name="write_file '/x'")
    ended(ref)
    assert not caplog.records
    del ref
    gc.collect()
    (record,) = [record for record in caplog.records if record.name.startswith("aviato")]
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "write_file '/x' failed and nobody looked at it: ValueError: nobody looked"


def test_a_failure_without_cycles_is_logged_without_the_garbage_collector(caplog):
    gc.disable()
    try:
        ref = start(fail(ValueError("nobody looked")))
        ended(ref)
        del ref
        deadline = time.monotonic() + 5
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        gc.enable()
    assert "nobody looked" in caplog.text


@pytest.mark.parametrize(
    "look",
    [
        lambda ref: ref.result(),
        lambda ref: ref.exception(),
        lambda ref: asyncio.run(awaiting(ref)),
    ],
)
def test_a_failure_that_was_seen_is_not_logged(caplog, look):
    ref = start(fail(ValueError("seen")))
    with contextlib.suppress(ValueError):
        look(ref)
    del ref
    gc.collect()
    assert not caplog.records


def test_a_forgotten_cancelled_ref_is_not_logged(caplog):
    ref = Work(0).start()
    ref.cancel()
    ended(ref)
    del ref
    gc.collect()
    assert not caplog.records


async def awaiting(ref):
    await ref


def ended(ref):
    over = threading.Event()
    ref._when_done(lambda _: over.set())
    assert over.wait(5)


def test_awaited_on_its_own_loop_between_the_end_of_the_work_and_what_that_does():
    """The work has returned, and its outcome is there a turn of the loop later: whoever came in between must not block it."""

    async def main():
        gate = asyncio.get_running_loop().create_future()

        async def work():
            await gate
            return 7

        async def wait():
            await gate
            return await ref

        ref = start(work())
        await asyncio.sleep(0.05)  # The work waits for the gate now, and is woken before the other.
        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        gate.set_result(None)
        return await waiting

    assert start(main()).result(10) == 7


def test_nobody_waits_for_what_cannot_end_as_it_should():
    class Unsettled(OperationRef):
        def _settle(self, error):
            raise BaseException("not settled")

    async def ends():
        return "value"

    async def is_closed():
        raise GeneratorExit

    assert Unsettled.start(ends(), name="work").result(5) == "value"
    with pytest.raises(OperationCancelledError, match="work was cancelled"):
        start(is_closed()).result(5)


def test_who_is_not_woken_looks_up():
    """As where Ctrl-C comes between the end and the call that would wake another waiter."""
    ended = threading.Event()

    async def ends():
        while not ended.is_set():
            await asyncio.sleep(0.001)
        return "value"

    async def waits(ref):
        task = asyncio.ensure_future(ref._wait_async())
        while not ref._outcome._callbacks:
            await asyncio.sleep(0)
        ref._outcome._callbacks.clear()
        ended.set()
        return await asyncio.wait_for(task, 20)

    assert asyncio.run(waits(start(ends()))) == "value"


@pytest.mark.parametrize(("timeout", "error"), [(float("nan"), ValueError), ("1", TypeError), (object(), TypeError)])
def test_what_is_no_number_of_seconds_is_refused(timeout, error):
    work = Work()
    ref = work.start()
    try:
        for wait in (ref.result, ref.exception):
            with pytest.raises(error, match="timeout must be a number of seconds or None"):
                wait(timeout)
        with pytest.raises(error, match="timeout must be a number of seconds or None"):
            aviato.wait([ref], timeout=timeout)
        assert not ref.done()
    finally:
        ref.cancel()
    with pytest.raises(OperationCancelledError):
        ref.result(10**400)
