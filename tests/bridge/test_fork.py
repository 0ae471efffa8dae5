"""A forked child gets a loop of its own and disturbs nothing of its parent's."""

import os
import signal
import time
from textwrap import dedent

import pytest

IN_CHILD = """
def in_child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]
"""


def test_child_of_an_idle_parent_works_on_a_loop_of_its_own(lines):
    code = """
        start(asyncio.sleep(0)).result()
        mine = loop_thread()
        def work():
            say("current", running_loop_thread())
            say(start(asyncio.sleep(0, "child")).result(5), loop_thread() is mine)
        say("status", in_child(work))
        say(start(asyncio.sleep(0, "parent")).result(5), loop_thread() is mine)
    """
    for _ in range(3):
        assert lines(IN_CHILD + dedent(code)) == ["current None", "child False", "status 0", "parent True"]


def test_child_of_a_parent_that_never_started_a_loop(lines):
    code = """
        say("status", in_child(lambda: say(start(asyncio.sleep(0, "child")).result(5))))
        say(running_loop_thread())
    """
    assert lines(IN_CHILD + dedent(code)) == ["child", "status 0", "None"]


def test_grandchildren_work_too(lines):
    code = """
        start(asyncio.sleep(0)).result()
        def work():
            start(asyncio.sleep(0)).result(5)
            say("status", in_child(lambda: say(start(asyncio.sleep(0, "grandchild")).result(5))))
            say(start(asyncio.sleep(0, "child")).result(5))
        say("status", in_child(work))
    """
    assert lines(IN_CHILD + dedent(code)) == ["grandchild", "status 0", "child", "status 0"]


def test_fork_while_the_loop_starts(lines):
    code = """
        from aviato.bridge import loop
        begun, go_on = threading.Event(), threading.Event()
        run = loop.LoopThread._run
        def slow(self):
            begun.set()
            go_on.wait()
            run(self)
        loop.LoopThread._run = slow
        starting = threading.Thread(target=loop_thread)
        starting.start()
        begun.wait()
        def work():
            loop.LoopThread._run = run
            say(start(asyncio.sleep(0, "child")).result(5))
        say("status", in_child(work))
        go_on.set()
        starting.join()
        say(start(asyncio.sleep(0, "parent")).result(5))
    """
    assert lines(IN_CHILD + dedent(code)) == ["child", "status 0", "parent"]


def test_a_child_gets_no_module_that_the_loop_has_half_imported(lines, tmp_path):
    (tmp_path / "slowly.py").write_text("import time\nbegun = True\ntime.sleep(0.3)\nNAME = 'whole'\n")
    code = f"""
        sys.path.insert(0, {str(tmp_path)!r})
        async def use():
            from slowly import NAME
            return NAME
        def work():
            from slowly import NAME
            say("child", NAME, start(use()).result(5))
        ref = start(use())
        while not hasattr(sys.modules.get("slowly"), "begun"):
            time.sleep(0.001)
        say("status", in_child(work))
        say("parent", ref.result(5))
    """
    assert lines(IN_CHILD + dedent(code)) == ["child whole whole", "status 0", "parent whole"]


def test_many_threads_fork_at_once(lines):
    code = """
        start(asyncio.sleep(0)).result()
        statuses = []
        threads = [threading.Thread(target=lambda: statuses.append(in_child(lambda: None))) for _ in range(12)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say(statuses == [0] * 12, time.monotonic() - begin < 12, start(asyncio.sleep(0, "parent")).result(5))
    """
    assert lines(IN_CHILD + dedent(code)) == ["True True parent"]


@pytest.mark.parametrize("where", ["by the loop itself", "where the loop waits for who forks"])
def test_a_fork_for_which_the_loop_cannot_stand_still(lines, where):
    """It goes on after a second at most."""
    code = f"""
        async def fork():
            return in_child(lambda: None)
        async def wait():
            thread = threading.Thread(target=lambda: statuses.append(in_child(lambda: None)))
            thread.start()
            thread.join()
            return statuses[0]
        statuses = []
        work = fork() if {where!r} == "by the loop itself" else wait()
        say(start(work).result(20), start(asyncio.sleep(0, "parent")).result(5))
    """
    assert lines(IN_CHILD + dedent(code)) == ["0 parent"]


def test_the_childs_wait_for_the_parents_work_names_the_parent(lines):
    code = """
        ref = start(asyncio.sleep(0.5, "parent"))
        ended = start(asyncio.sleep(0, "ended before"))
        ended.result()
        def work():
            for wait in (ref.result, ref.exception, lambda: asyncio.run(wait_for(ref))):
                try:
                    wait()
                except RuntimeError as error:
                    say(str(os.getppid()) in str(error), "fork" in str(error))
            say("cancelled", ref.cancel())
            say(ended.result())
        async def wait_for(ref):
            await ref
        say("status", in_child(work))
        say(ref.result(5))
    """
    expected = ["True True"] * 3 + ["cancelled False", "ended before", "status 0", "parent"]
    assert lines(IN_CHILD + dedent(code)) == expected


@pytest.mark.parametrize("without", ["nothing", "uvloop"])
@pytest.mark.parametrize("end", ["os._exit(0)", "gc.collect(); sys.exit(0)"])
def test_the_parents_request_in_flight_completes(lines, end, without):
    """Over a real connection: closing an inherited one in the child would take it out of the parent's epoll."""
    code = """
        sys.modules["WITHOUT"] = None
        import aiohttp, gc
        from aiohttp import web

        def serve(ready):
            async def slow(request):
                await asyncio.sleep(0.6)
                return web.Response(text="whole")
            async def main():
                app = web.Application()
                app.router.add_get("/", slow)
                runner = web.AppRunner(app)
                await runner.setup()
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                ready.append(runner.addresses[0][1])
                started.set()
                await asyncio.sleep(60)
            asyncio.run(main())

        started, ready = threading.Event(), []
        threading.Thread(target=serve, args=(ready,), daemon=True).start()
        started.wait()
        async def fetch():
            async with aiohttp.ClientSession() as session:
                for _ in range(2):
                    async with session.get(f"http://127.0.0.1:{ready[0]}/") as response:
                        text = await response.text()
                return text
        ref = start(fetch())
        time.sleep(0.2)
        pid = os.fork()
        if pid == 0:
            say(start(asyncio.sleep(0, "child")).result(5))
            del ref
            END
        os.waitpid(pid, 0)
        say("parent", ref.result(8))
        os._exit(0)
    """
    assert lines(dedent(code).replace("END", end).replace("WITHOUT", without)) == ["child", "parent whole"]


def test_a_child_that_waits_dies_by_sigterm(program):
    code = """
        start(asyncio.sleep(0)).result()
        pid = os.fork()
        if pid == 0:
            ref = start(asyncio.sleep(60))
            say(os.getpid())
            ref.result()
        status = os.waitpid(pid, 0)[1]
        say(os.WTERMSIG(status) == signal.SIGTERM)
    """
    parent = program(code)
    child = int(parent.line())
    begin = time.monotonic()
    os.kill(child, signal.SIGTERM)
    assert parent.line() == "True"
    assert time.monotonic() - begin < 1
    assert parent.end() == ([], "", 0)


def test_a_pool_of_forked_workers(lines):
    code = """
        import multiprocessing
        def work(number):
            return start(asyncio.sleep(0, number)).result(10)
        start(asyncio.sleep(0)).result()
        with multiprocessing.get_context("fork").Pool(3) as pool:
            say(sum(pool.map(work, range(50))))
        say(start(asyncio.sleep(0, "parent")).result(5))
    """
    assert lines(code) == ["1225", "parent"]


def test_a_child_that_ends_normally_runs_no_hook_of_its_parents(lines):
    code = """
        async def hook():
            say("hook", os.getpid() == parent)
        parent = os.getpid()
        register_exit(hook)
        pid = os.fork()
        if pid == 0:
            start(asyncio.sleep(0)).result(5)
            register_exit(childs)
            sys.exit(0)
        os.waitpid(pid, 0)
    """
    hook = """
        async def childs():
            say("the child's own hook")
    """
    assert lines(dedent(hook) + dedent(code)) == ["the child's own hook", "hook True"]
