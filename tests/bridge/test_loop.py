"""The loop thread: when it starts, when it ends, and what runs at exit."""

import asyncio
import subprocess
import sys
import threading
import time
from textwrap import dedent

import pytest

from aviato.bridge.loop import EXIT_SECONDS, loop_thread, running_loop_thread
from aviato.bridge.operation import OperationRef

HEAVY = ("aiohttp", "pydantic", "wandb", "click", "docker", "kubernetes", "tenacity")


def start(coroutine, **options):
    return OperationRef.start(coroutine, name="work", **options)


def test_importing_starts_no_thread_installs_no_handler_and_loads_nothing_heavy():
    code = f"""
        import signal, sys, threading
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        import aviato.bridge.operation, aviato.bridge.stream, aviato.bridge.writer, aviato.api.waiting
        import aviato.policy.retry, aviato.policy.metrics
        print(threading.active_count(), [name for name in {HEAVY} if name in sys.modules])
        print((signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before)
    """
    run = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True)
    assert run.stdout == "1 []\nTrue\n"


def test_import_and_first_use_in_a_worker_thread():
    code = """
        import threading
        def work():
            import asyncio
            from aviato.bridge.operation import OperationRef
            print(OperationRef.start(asyncio.sleep(0, "value"), name="work").result())
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """
    run = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("value\n", "")


def test_one_daemon_thread_however_many_ask_first(lines):
    code = """
        threads = []
        barrier = threading.Barrier(16)
        def ask():
            barrier.wait()
            threads.append(loop_thread())
        callers = [threading.Thread(target=ask) for _ in range(16)]
        for caller in callers: caller.start()
        for caller in callers: caller.join()
        say(len(set(threads)), [thread.name for thread in threading.enumerate() if thread.daemon])
    """
    assert lines(code) == ["1 ['aviato-loop']"]


def test_asking_whether_it_runs_starts_nothing(lines):
    assert lines("say(running_loop_thread(), threading.active_count())") == ["None 1"]


def test_the_thread_does_not_keep_the_callers_context(lines):
    code = """
        import contextvars, gc, weakref
        class Value: pass
        variable = contextvars.ContextVar("variable")
        token = variable.set(value := Value())
        weak = weakref.ref(value)
        start(asyncio.sleep(0)).result()
        variable.reset(token)
        del value, token
        gc.collect()
        say(weak())
    """
    assert lines(code) == ["None"]


def test_without_uvloop(lines):
    code = """
        sys.modules["uvloop"] = None
        say(start(asyncio.sleep(0, "value")).result(), type(loop_thread().loop).__module__)
    """
    assert lines(code) == ["value asyncio.unix_events"]


@pytest.mark.parametrize("without", ["", "uvloop"])
@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "BaseException"])
def test_a_caller_s_function_ends_what_has_called_it_and_nothing_else(kind, without, lines):
    code = f"""
        if {without!r}: sys.modules[{without!r}] = None
        async def waits():
            while not ended: await asyncio.sleep(0.01)
            return "value"
        async def calls():
            await asyncio.sleep(0)
            raise {kind}("stop")
        ended = []
        other = start(waits())
        thread = loop_thread()
        for _ in range(2):
            try:
                start(calls()).result()
            except BaseException as error:
                say(repr(error))
        ended.append(1)
        say(other.result(), loop_thread() is thread)
    """
    assert lines(code) == [f"{kind}('stop')"] * 2 + ["value True"]


def test_many_loops_of_the_caller_in_a_row():
    async def main():
        return await start(asyncio.sleep(0, "value"))

    loop_thread()
    threads = threading.active_count()
    assert [asyncio.run(main()) for _ in range(100)] == ["value"] * 100
    assert threading.active_count() == threads


def test_after_a_loop_that_has_ended_a_new_one_starts():
    first = loop_thread()
    ref = start(asyncio.sleep(60))
    first.stop(5)
    assert not first.is_alive()
    assert ref.done()
    assert start(asyncio.sleep(0, "value")).result(5) == "value"
    assert loop_thread() is not first
    assert running_loop_thread() is loop_thread()


def test_a_loop_that_is_ending_takes_no_more_work():
    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            cleaning.set()
            await asyncio.sleep(0.5)

    cleaning = threading.Event()
    first = loop_thread()
    ref = start(work())
    start(asyncio.sleep(0)).result()
    first.stop(0)
    assert cleaning.wait(5)
    assert first.is_alive()
    assert start(asyncio.sleep(0.6, "value")).result(5) == "value"
    assert ref.done()
    first.stop(5)
    assert not first.is_alive()


@pytest.mark.parametrize("ask", ["blocking", "async"])
def test_work_that_a_dying_loop_never_began_is_given_up_within_about_a_second(ask, monkeypatch):
    async def main():
        await lost

    monkeypatch.setattr(OperationRef, "_begin", lambda self: self._not_begun.close())
    lost = start(asyncio.sleep(0))
    threading.Timer(0.2, loop_thread().stop, (5,)).start()
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="will never end: aviato's event loop is gone"):
        lost.result() if ask == "blocking" else asyncio.run(main())
    assert time.monotonic() - begin < 2.5


def test_a_loop_that_cannot_start_is_an_error_and_the_next_one_is_tried(lines):
    code = """
        sys.modules["uvloop"] = None
        def full():
            raise OSError(24, "Too many open files")
        from aviato.system import event_loop
        usual, event_loop.with_overflow = event_loop.with_overflow, full
        for _ in range(2):
            try:
                start(asyncio.sleep(0))
            except RuntimeError as error:
                say(error)
        event_loop.with_overflow = usual
        say(start(asyncio.sleep(0, "value")).result(5), threading.active_count())
    """
    error = "work: aviato's event loop cannot be started (OSError: [Errno 24] Too many open files)"
    assert lines(code) == [error, error, "value 2"]


# -- the end of the interpreter


def test_exit_with_work_in_flight(lines):
    code = """
        async def work():
            try:
                await asyncio.sleep(60)
            finally:
                say("cancelled")
        ref = start(work())
        start(asyncio.sleep(0.05)).result()
        say("end")
    """
    begin = time.monotonic()
    assert lines(code) == ["end", "cancelled"]
    assert time.monotonic() - begin < 5


def test_hooks_run_before_the_loop_ends(lines):
    code = """
        async def hook():
            say("hook begins")
            await asyncio.sleep(0.2)
            say("hook ends")
        register_exit(hook)
        say("end")
    """
    assert lines(code) == ["end", "hook begins", "hook ends"]


def test_hooks_run_after_an_error_of_the_program(program):
    code = """
        async def hook():
            say("hook")
        register_exit(hook)
        raise SystemExit(3)
    """
    assert program(code).end() == (["hook"], "", 3)


def test_a_hook_that_fails_is_logged_and_the_others_run(program):
    code = """
        async def bad():
            raise ValueError("no stopping")
        async def good():
            await asyncio.sleep(0.1)
            say("good")
        for hook in (bad, good):
            register_exit(hook)
    """
    out, err, returncode = program(code).end()
    assert (out, returncode) == (["good"], 0)
    assert err.strip() == "clean-up at exit failed: no stopping"


def test_hooks_that_hang_are_left(program):
    assert EXIT_SECONDS == 5
    code = """
        import aviato.bridge.loop
        aviato.bridge.loop.EXIT_SECONDS = 2.0
        async def hook():
            say("hook")
            await asyncio.sleep(60)
        for _ in range(10):
            register_exit(hook)
    """
    started = program(code)
    assert started.line() == "hook"
    begin = time.monotonic()
    out, err, returncode = started.end()
    assert (out, returncode) == (["hook"] * 9, 0)
    assert "longer than 2.0 s" in err
    assert 1 <= time.monotonic() - begin < 15, "each of them was waited for"


def test_a_hook_that_refuses_to_be_cancelled_does_not_hold_up_the_exit(program):
    code = """
        import aviato.bridge.loop
        aviato.bridge.loop.EXIT_SECONDS = 1.0
        async def hook():
            say("hook")
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass
        register_exit(hook)
    """
    begin = time.monotonic()
    out, _, returncode = program(code).end()
    assert (out, returncode) == (["hook"], 0)
    assert time.monotonic() - begin < 5


def test_interrupting_the_hooks_leaves_at_once(program):
    code = """
        async def hook():
            say("hook")
            await asyncio.sleep(60)
        register_exit(hook)
    """
    started = program(code)
    assert started.line() == "hook"
    begin = time.monotonic()
    started.interrupt()
    started.end()
    assert time.monotonic() - begin < 20


def test_a_connection_by_host_name_can_be_opened_at_exit(lines):
    """In an `atexit` handler it cannot: names are resolved on the default executor, which is shut down by then."""
    code = """
        import aiohttp
        server = []
        async def serve(reader, writer):
            await reader.readuntil(b"\\r\\n\\r\\n")
            writer.write(b"HTTP/1.1 204 No Content\\r\\n\\r\\n")
            await writer.drain()
            writer.close()
        async def listen():
            server.append(await asyncio.start_server(serve, "127.0.0.1", 0))
            return server[0].sockets[0].getsockname()[1]
        port = start(listen()).result()
        async def hook():
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://localhost:{port}/") as response:
                    say("status", response.status)
        register_exit(hook)
        say("end")
    """
    for without in ("nothing", "uvloop"):
        assert lines(f'sys.modules["{without}"] = None\n' + dedent(code)) == ["end", "status 204"]


def test_first_use_in_an_atexit_handler_works_or_says_why(program):
    code = """
        import atexit
        @atexit.register
        def late():
            try:
                say(start(asyncio.sleep(0, "value")).result(5))
            except RuntimeError as error:
                say("RuntimeError", "cannot be started" in str(error))
    """
    out, err, returncode = program(code).end()
    assert out in (["value"], ["RuntimeError True"])
    assert (err, returncode) == ("", 0)


def test_a_wait_in_an_atexit_handler_for_work_of_a_stopped_loop_ends(program):
    code = """
        import atexit
        ref = start(asyncio.sleep(60))
        @atexit.register
        def late():
            try:
                ref.result()
            except (OperationCancelledError, RuntimeError) as error:
                say(type(error).__name__)
    """
    begin = time.monotonic()
    assert program(code).end() == (["OperationCancelledError"], "", 0)
    assert time.monotonic() - begin < 5
