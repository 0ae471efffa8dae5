"""Ctrl-C, once and twice, in programs of their own."""

import time
from textwrap import dedent

import pytest

from aviato.bridge.operation import INTERRUPT_SECONDS

WORK = """
async def work(clean_up_seconds=0.3):
    try:
        say("begun")
        await asyncio.sleep(60)
    finally:
        say("cleaning up")
        await asyncio.sleep(clean_up_seconds)
        say("cleaned up")

class Box:
    def __enter__(self):
        start(self.enter()).result()
        return self

    def __exit__(self, *_):
        say("leaving", start(asyncio.sleep(0.1, "stopped")).result())

    async def enter(self):
        pass

    async def __aenter__(self):
        return self.__enter__()

    async def __aexit__(self, *_):
        say("leaving", await start(asyncio.sleep(0.1, "stopped")))
"""
TIMES = range(3)


def interrupted(program, code, *, at="begun"):
    """Run it, send SIGINT at a line; returns all other lines."""
    started = program(WORK + dedent(code))
    while (line := started.line()) != at:
        assert line
    started.interrupt()
    out, err, returncode = started.end()
    assert (err, returncode) == ("", 0)
    return out


@pytest.mark.parametrize("ask", ["ref.result()", "ref.result(30)", "ref.exception()"])
def test_in_a_blocking_wait(program, ask):
    code = f"""
        ref = start(work())
        try:
            {ask}
        except KeyboardInterrupt:
            say("interrupted", ref.done())
    """
    for _ in TIMES:
        assert interrupted(program, code) == ["cleaning up", "cleaned up", "interrupted True"]


def test_twice_leaves_at_once(program):
    code = """
        ref = start(work(clean_up_seconds=30))
        try:
            ref.result()
        except KeyboardInterrupt:
            say("interrupted", ref.done())
            os._exit(0)
    """
    for _ in TIMES:
        started = program(WORK + dedent(code))
        assert started.line() == "begun"
        started.interrupt()
        assert started.line() == "cleaning up"
        begin = time.monotonic()
        started.interrupt()
        assert started.end() == (["interrupted False"], "", 0)
        assert time.monotonic() - begin < 2


def test_a_clean_up_that_hangs_is_left(program):
    assert INTERRUPT_SECONDS == 5
    code = """
        import aviato.bridge.operation
        aviato.bridge.operation.INTERRUPT_SECONDS = 1.0
        ref = start(work(clean_up_seconds=60))
        try:
            ref.result()
        except KeyboardInterrupt:
            say("interrupted")
            os._exit(0)
    """
    begin = time.monotonic()
    assert interrupted(program, code) == ["cleaning up", "interrupted"]
    assert 1 <= time.monotonic() - begin < 4


def test_shared_work_goes_on(program):
    code = """
        async def begin():
            say("begun")
            while not seen:
                await asyncio.sleep(0.01)
            return "value"
        seen = []
        ref = start(begin(), shared=True)
        try:
            ref.result()
        except KeyboardInterrupt:
            say("interrupted", ref.done())
            seen.append("it")
        say(ref.result())
    """
    assert interrupted(program, code) == ["interrupted False", "value"]


@pytest.mark.parametrize("ask", ["ref.result()", "ref.result(30)", "ref.exception()"])
def test_a_time_limit_of_the_caller_s_own_ends_the_wait(lines, ask):
    """`signal.alarm` with a handler that raises TimeoutError, which a wait of ours raises too when its time is over."""
    code = f"""
        def guard(*_):
            raise TimeoutError("mine")
        signal.signal(signal.SIGALRM, guard)
        ref = start(asyncio.sleep(2, "value"))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            {ask}
        except TimeoutError as error:
            say(type(error).__name__, error, ref.done())
        say(ref.result())
    """
    assert lines(code) == ["TimeoutError mine False", "value"]


def test_in_entering_with(program):
    """Nothing to leave yet: what the entering began is cancelled and cleaned up."""
    code = """
        class Slow(Box):
            enter = lambda self: work()
        try:
            with Slow():
                say("never")
        except KeyboardInterrupt:
            say("interrupted")
    """
    for _ in TIMES:
        assert interrupted(program, code) == ["cleaning up", "cleaned up", "interrupted"]


def test_in_the_body_of_with(program):
    code = """
        try:
            with Box():
                start(work()).result()
        except KeyboardInterrupt:
            say("interrupted")
    """
    for _ in TIMES:
        assert interrupted(program, code) == ["cleaning up", "cleaned up", "leaving stopped", "interrupted"]


def test_in_the_callers_own_code(program):
    code = """
        try:
            with Box():
                say("begun")
                time.sleep(30)
        except KeyboardInterrupt:
            say("interrupted")
    """
    assert interrupted(program, code) == ["leaving stopped", "interrupted"]


@pytest.mark.parametrize("runner", ["asyncio.run(main())", "asyncio.run(main(), debug=True)", "uvloop.run(main())"])
def test_under_await(program, runner):
    code = f"""
        import uvloop
        async def main():
            async with contextlib.AsyncExitStack() as stack:
                stack.callback(say, "left")
                await start(work())
        try:
            {runner}
        except KeyboardInterrupt:
            say("interrupted")
    """
    for _ in TIMES:
        assert interrupted(program, code) == ["cleaning up", "cleaned up", "left", "interrupted"]


def test_under_await_in_the_body_of_async_with(program):
    code = """
        import warnings
        warnings.simplefilter("ignore")
        async def main():
            async with Box():
                await start(work())
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            say("interrupted")
    """
    assert interrupted(program, code) == ["cleaning up", "cleaned up", "leaving stopped", "interrupted"]


def test_twice_under_await_leaves_at_once(program):
    code = """
        async def main():
            await start(work(clean_up_seconds=30))
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            say("interrupted")
            os._exit(0)
    """
    started = program(WORK + dedent(code))
    assert started.line() == "begun"
    started.interrupt()
    assert started.line() == "cleaning up"
    begin = time.monotonic()
    started.interrupt()
    assert started.end() == (["interrupted"], "", 0)
    assert time.monotonic() - begin < 2


def test_other_threads_go_on_waiting(program):
    code = """
        interrupted = threading.Event()
        async def value():
            while not interrupted.is_set():
                await asyncio.sleep(0.01)
            return "value"
        other = start(value())
        thread = threading.Thread(target=lambda: say("thread", other.result()))
        thread.start()
        ref = start(work())
        try:
            ref.result()
        except KeyboardInterrupt:
            say("interrupted")
            interrupted.set()
        thread.join()
    """
    assert interrupted(program, code) == ["cleaning up", "cleaned up", "interrupted", "thread value"]
