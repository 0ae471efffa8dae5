"""wait(), as_completed() and results(): order, counts, time, both worlds, and what they leave behind."""

import asyncio
import concurrent.futures
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from aviato.api import waiting
from aviato.api.waiting import as_completed, results, wait
from aviato.bridge.loop import loop_thread
from aviato.bridge.operation import OperationRef
from aviato.exceptions import AsyncUsageWarning, OperationTimeoutError


class Gate:
    """An operation that ends when the test says so."""

    def __init__(self, name="gated"):
        self.future = concurrent.futures.Future()
        self.ref = OperationRef.start(self.work(), name=name)

    async def work(self):
        return await asyncio.wrap_future(self.future)

    def open(self, value=None):
        self.future.set_result(value)
        wait_done(self.ref)

    def fail(self, error):
        self.future.set_exception(error)
        wait_done(self.ref)


def wait_done(ref):
    ended = threading.Event()
    ref._when_done(lambda _: ended.set())
    assert ended.wait(10)


@pytest.fixture
def gates():
    made = [Gate(f"gate {number}") for number in range(5)]
    yield made
    for gate in made:
        if not gate.future.done():
            gate.future.set_result(None)


def refs_of(gates):
    return [gate.ref for gate in gates]


class Thing:
    """Something that an operation stands for, started at first use."""

    def __init__(self):
        self.gate = None

    def _waitable(self):
        if self.gate is None:
            self.gate = Gate("thing")
        return self.gate.ref


# -- wait


def test_wait_for_all_returns_the_same_objects_in_order(gates):
    refs = refs_of(gates)
    threading.Timer(0.02, lambda: [gate.open() for gate in reversed(gates)]).start()
    done, pending = wait(refs)
    assert [id(ref) for ref in done] == [id(ref) for ref in refs]
    assert pending == []


def test_wait_returns_the_first_to_end_and_exactly_so_many(gates):
    gates[3].open()
    gates[1].open()
    gates[4].open()
    refs = refs_of(gates)
    done, pending = wait(refs, num_returns=2)
    assert len(done) == 2
    assert done == sorted(done, key=refs.index)
    assert pending == [ref for ref in refs if ref not in done]


def test_wait_takes_those_that_end_first(gates):
    refs = refs_of(gates)
    done, pending = wait(refs, num_returns=1, timeout=0)
    assert (done, pending) == ([], refs)
    for number in (3, 1, 4):
        gates[number].open()
    done, pending = wait(pending, num_returns=2)
    assert done == [refs[1], refs[3]]
    assert pending == [refs[0], refs[2], refs[4]]
    assert pending[2].done()
    assert wait(pending, num_returns=1) == ([refs[4]], [refs[0], refs[2]])


def test_a_failed_item_is_done(gates):
    gates[2].fail(ValueError("broken"))
    done, _ = wait(refs_of(gates), num_returns=1)
    assert done == [gates[2].ref]
    with pytest.raises(ValueError, match="broken"):
        done[0].result()


def test_timeout_returns_what_there_is_and_leaves_the_rest_alone(gates):
    gates[1].open()
    started = time.monotonic()
    done, pending = wait(refs_of(gates), num_returns=3, timeout=0.1)
    assert 0.1 <= time.monotonic() - started < 1
    assert done == [gates[1].ref]
    assert len(pending) == 4
    assert not any(ref.done() for ref in pending)


@pytest.mark.parametrize("count", [0, -1])
def test_num_returns_below_one_is_an_error(gates, count):
    with pytest.raises(ValueError, match="num_returns"):
        wait(refs_of(gates), num_returns=count)


def test_num_returns_above_the_number_of_items_means_all(gates):
    for gate in gates:
        gate.open()
    done, pending = wait(refs_of(gates), num_returns=50)
    assert (len(done), pending) == (5, [])


def test_timeout_that_is_no_number_is_an_error(gates):
    with pytest.raises(ValueError, match="NaN"):
        wait(refs_of(gates), timeout=float("nan"))


def test_nothing_to_wait_for():
    assert wait([]) == ([], [])
    assert list(as_completed([])) == []
    assert results([]) == []


def test_a_generator_will_do(gates):
    gates[0].open()
    done, pending = wait((gate.ref for gate in gates), num_returns=1)
    assert done == [gates[0].ref]
    assert len(pending) == 4


def test_the_same_item_twice_is_there_twice(gates):
    gates[0].open()
    ref = gates[0].ref
    assert wait([ref, ref]) == ([ref, ref], [])
    assert wait([ref, ref], num_returns=1) == ([ref], [ref])


def test_what_cannot_be_waited_for_is_refused_before_anything_starts():
    thing = Thing()
    with pytest.raises(TypeError, match="not 'x'"):
        wait([thing, "x"])
    assert thing.gate is None


def test_a_single_item_in_place_of_a_list_is_refused(gates):
    with pytest.raises(TypeError, match="a list of items"):
        wait(gates[0].ref)
    with pytest.raises(TypeError, match="a list of items"):
        as_completed(gates[0].ref)


def test_an_object_stands_for_its_operation_and_is_started():
    things = [Thing(), Thing()]
    done, pending = wait(things, timeout=0)
    assert (done, pending) == ([], things)
    things[1].gate.open("running")
    assert wait(pending, num_returns=1) == ([things[1]], [things[0]])
    things[0].gate.open()
    assert list(as_completed(things)) == things
    assert results(things[1]) == "running"


# -- a loop of waits


def test_pending_is_a_list_like_any_other(gates):
    _, pending = wait(refs_of(gates), timeout=0)
    assert isinstance(pending, list)
    assert pending == refs_of(gates)
    assert copy.copy(pending) == pending
    assert type(copy.copy(pending)) is list
    assert repr(pending) == repr(list(pending))


def test_pending_pickles_without_what_it_remembers():
    _, pending = wait([Thing()], timeout=0)
    pending[0].gate.open()
    pending[0] = "an item that pickles"
    assert pickle.loads(pickle.dumps(pending)) == ["an item that pickles"]


def test_pending_that_the_user_changed_is_what_counts(gates):
    refs = refs_of(gates)
    _, pending = wait(refs[:3], timeout=0)
    pending.remove(refs[0])
    pending.append(refs[4])
    gates[0].open()
    gates[4].open()
    assert wait(pending, num_returns=1) == ([refs[4]], [refs[1], refs[2]])


def test_an_older_pending_can_be_used_again(gates):
    refs = refs_of(gates)
    _, older = wait(refs, timeout=0)
    gates[0].open()
    assert wait(older, num_returns=1)[0] == [refs[0]]
    assert wait(older, num_returns=1)[0] == [refs[0]]
    done, pending = wait(older, num_returns=1)
    gates[1].open()
    assert wait(pending, num_returns=1)[0] == [refs[1]]
    assert done == [refs[0]]


def test_draining_many_one_by_one_is_linear_and_makes_no_task():
    async def quick():
        return None

    async def count_tasks():
        return len(asyncio.all_tasks())

    refs = [OperationRef.start(quick(), name="quick") for _ in range(10_000)]
    for ref in refs:
        ref.result()
    before = OperationRef.start(count_tasks(), name="count").result()
    pending, drained = refs, []
    started = time.process_time()
    while pending:
        done, pending = wait(pending, num_returns=1)
        drained += done
    assert time.process_time() - started < 2
    assert len(drained) == len({id(ref) for ref in drained}) == 10_000
    # Tasks of earlier tests may end meanwhile.
    assert OperationRef.start(count_tasks(), name="count").result() <= before


def test_draining_while_others_end():
    gates = [Gate() for _ in range(300)]
    order = sorted(gates, key=lambda gate: id(gate) % 97)
    opener = threading.Thread(target=lambda: [gate.future.set_result(None) for gate in order])
    opener.start()
    pending, drained = refs_of(gates), []
    while pending:
        done, pending = wait(pending, num_returns=7)
        drained += done
    opener.join()
    assert len({id(ref) for ref in drained}) == 300


def test_polling_with_a_timeout_leaves_nothing_behind(gates):
    refs = refs_of(gates)
    for _ in range(50):
        wait(refs, num_returns=1, timeout=0)
    assert len(waiting._watches[refs[0]]._listeners) <= 2
    assert len(refs[0]._outcome._callbacks) == 1


def test_waiting_keeps_nothing_alive():
    gate = Gate()
    gate.open()
    wait([gate.ref])
    weak = weakref.ref(gate.ref)
    del gate
    gc.collect()
    assert weak() is None


def test_many_threads_wait_for_the_same(gates):
    refs = refs_of(gates)
    outcomes = []
    threads = [threading.Thread(target=lambda: outcomes.append(wait(refs, timeout=20))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for gate in gates:
        gate.open()
    for thread in threads:
        thread.join()
    assert outcomes == [(refs, [])] * 16


# -- as_completed


def test_as_completed_comes_in_order_of_completion(gates):
    iterator = as_completed(refs_of(gates))
    order = [gates[number] for number in (2, 0, 4, 1, 3)]
    for gate in order:
        gate.open()
    assert list(iterator) == refs_of(order)


def test_as_completed_yields_before_the_others_have_ended(gates):
    iterator = as_completed(refs_of(gates))
    gates[3].open()
    assert next(iterator) is gates[3].ref
    gates[0].open()
    assert next(iterator) is gates[0].ref


def test_as_completed_raises_when_the_time_is_over(gates):
    gates[1].open()
    iterator = as_completed(refs_of(gates), timeout=0.1)
    assert next(iterator) is gates[1].ref
    with pytest.raises(OperationTimeoutError, match=r"4 of 5 operations have not ended after 0.1 s"):
        next(iterator)
    assert not gates[0].ref.done()


def test_as_completed_on_a_loop(gates):
    async def main():
        asyncio.get_running_loop().call_later(0.05, gates[2].future.set_result, None)
        asyncio.get_running_loop().call_later(0.15, gates[0].future.set_result, None)
        iterator = as_completed([gates[0].ref, gates[2].ref])
        started = time.monotonic()
        return [(ref, time.monotonic() - started) async for ref in iterator]

    (first, first_at), (second, second_at) = asyncio.run(main())
    assert (first, second) == (gates[2].ref, gates[0].ref)
    assert first_at < 0.14
    assert second_at < 0.5


def test_as_completed_on_a_loop_leaves_the_loop_free(gates):
    async def main():
        async def drain():
            return [ref async for ref in as_completed(refs_of(gates))]

        task = asyncio.create_task(drain())
        await asyncio.sleep(0)
        for gate in gates:
            gate.future.set_result(None)
        return await task

    assert len(asyncio.run(main())) == 5


def test_as_completed_on_a_loop_raises_when_the_time_is_over(gates):
    async def main():
        async for _ in as_completed(refs_of(gates), timeout=0.05):
            raise AssertionError

    with pytest.raises(OperationTimeoutError):
        asyncio.run(main())


def test_a_cancelled_reader_loses_nothing_and_leaves_nothing(gates):
    async def main():
        iterator = as_completed(refs_of(gates))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(iterator), 0.02)
        assert iterator._completions._wakers == {}
        gates[1].future.set_result(None)
        return await anext(iterator)

    assert asyncio.run(main()) is gates[1].ref
    assert not gates[0].ref.done()


def test_two_tasks_share_one_iterator(gates):
    async def main():
        iterator = as_completed(refs_of(gates))

        async def drain():
            return [ref async for ref in iterator]

        tasks = [asyncio.create_task(drain()) for _ in range(2)]
        await asyncio.sleep(0)
        for gate in gates:
            gate.future.set_result(None)
        first, second = await asyncio.gather(*tasks)
        return first + second

    assert sorted(map(id, asyncio.run(main()))) == sorted(map(id, refs_of(gates)))


# -- results


def test_results_in_order(gates):
    for number, gate in reversed(list(enumerate(gates))):
        gate.open(number)
    assert results(refs_of(gates)) == [0, 1, 2, 3, 4]
    assert results(gates[3].ref) == 3
    assert results(gate.ref for gate in gates[:2]) == [0, 1]


def test_the_first_failure_in_order_raises_and_the_others_stay_readable(gates):
    gates[3].fail(KeyError("later in the list, earlier in time"))
    gates[1].fail(ValueError("first in order"))
    gates[0].open("zero")
    with pytest.raises(ValueError, match="first in order"):
        results(refs_of(gates))
    gates[4].open("four")
    assert gates[0].ref.result() == "zero"
    assert gates[4].ref.result() == "four"
    assert isinstance(gates[3].ref.exception(), KeyError)


def test_results_of_something_else_is_refused():
    with pytest.raises(TypeError, match="not 3"):
        results([3])


# -- where it may be called


@pytest.mark.parametrize("call", [lambda ref: wait([ref]), lambda ref: list(as_completed([ref])), results])
def test_blocking_on_the_loop_thread_is_refused(gates, call):
    async def work():
        call(gates[0].ref)

    with pytest.raises(RuntimeError, match="await"):
        OperationRef.start(work(), name="nested").result(10)


def test_blocking_on_a_running_loop_works_and_warns_once_a_call_site(gates):
    async def main():
        with pytest.warns(AsyncUsageWarning) as caught:
            for _ in range(3):
                wait(refs_of(gates), timeout=0.01)
        assert len(caught) == 1
        assert caught[0].filename == __file__

    asyncio.run(main())


def test_looking_without_waiting_warns_nowhere(gates):
    async def main():
        return wait(refs_of(gates), timeout=0)

    assert asyncio.run(main())[0] == []


def test_interrupting_a_wait_leaves_the_work_alone():
    code = """
import asyncio, os, signal, threading
from aviato.bridge.operation import OperationRef
from aviato.api.waiting import wait, as_completed
ref = OperationRef.start(asyncio.sleep(1.5, "value"), name="work")
for call in (lambda: wait([ref]), lambda: list(as_completed([ref]))):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted", ref.done(), flush=True)
print(ref.result())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert (run.stdout, run.stderr, run.returncode) == ("interrupted False\ninterrupted False\nvalue\n", "", 0)


def test_in_a_forked_child_the_parents_operations_are_refused(gates):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # a child that hangs must not outlive the test
        try:
            wait([gates[0].ref])
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert f"started by process {os.getpid()}" in pipe.read().decode()
    os.waitpid(pid, 0)


def test_waiting_for_what_never_ends_is_given_up(gates, monkeypatch):
    class Gone:
        @staticmethod
        def is_alive() -> bool:
            return False

    threading.Timer(0.1, lambda: monkeypatch.setattr(gates[0].ref, "_thread", Gone())).start()
    with pytest.raises(RuntimeError, match="gone"):
        wait([gates[0].ref])
    with pytest.raises(RuntimeError, match="gone"):
        wait([gates[0].ref])
    monkeypatch.undo()
    assert loop_thread().usable


def test_a_thread_that_waits_does_not_hold_up_the_exit():
    code = """
import asyncio, threading
from aviato.bridge.operation import OperationRef
from aviato.api.waiting import wait
ref = OperationRef.start(asyncio.sleep(60), name="work")
threading.Thread(target=wait, args=([ref],), daemon=True).start()
"""
    started = time.monotonic()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert (run.stdout, run.stderr, run.returncode) == ("", "", 0)
    assert time.monotonic() - started < 8
