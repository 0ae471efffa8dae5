"""From forked and spawned children, and from a worker thread that imports first. Each in an interpreter of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import aviato


def test_a_forked_child_works_and_the_parent_s_request_finishes(served: Any, script: Any) -> None:
    done = script("""
        import os, aviato
        with aviato.Session() as session:
            sandbox = session.sandbox()
            running = sandbox.exec(["sh", "-c", "sleep 0.5; echo parent"])
            sandbox.wait()
            pid = os.fork()
            if pid == 0:
                assert sandbox.exec(["echo", "child"]).result(60).stdout == "child\\n"
                try:
                    running.result()
                except RuntimeError as error:
                    assert str(os.getppid()) in str(error)
                with aviato.Sandbox() as own:
                    assert own.exec(["true"]).result(60).returncode == 0
                assert session.sandbox().exec(["echo", "again"]).result(60).stdout == "again\\n"
                assert session.sandbox_count == 1
                os._exit(7)
            assert running.result(60).stdout == "parent\\n"
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert sandbox.exec(["echo", "still"]).result(60).stdout == "still\\n"
        print("ok")
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)


def test_a_forked_child_that_leaves_a_block_ends_nothing_of_its_parent_s(served: Any, script: Any) -> None:
    done = script("""
        import asyncio, os, sys, aviato

        def in_child(leave):
            pid = os.fork()
            if pid:
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            else:
                leave()

        def leave():
            assert sandbox.exec(["echo", "child"]).result(60).stdout == "child\\n"
            sys.exit(7)

        def leave_by_error():
            raise LookupError

        with aviato.Session() as session, aviato.Sandbox() as sandbox:
            running = sandbox.exec(["cat"], stdin=True)
            in_child(leave)
            try:
                with session.sandbox() as inner:
                    inner.wait()
                    in_child(leave_by_error)
                    assert inner.exec(["echo", "inner"]).result(60).stdout == "inner\\n"
            except LookupError:
                os._exit(7)
            running.stdin.writeline("parent").result(60)
            running.stdin.close().result(60)
            assert running.result(60).stdout == "parent\\n"

        async def main():
            async with aviato.Sandbox() as sandbox:
                await sandbox
                block = sandbox.__aexit__(None, None, None)
                in_child(lambda: leave_async(block))
                block.close()
                assert (await sandbox.exec(["echo", "async"])).stdout == "async\\n"

        def leave_async(block):
            try:
                block.send(None)
            except StopIteration:  # Nothing was waited for.
                os._exit(7)

        asyncio.run(main())
        print("ok")
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)


def test_a_forked_child_does_not_write_to_its_parent_s_command(served: Any, script: Any) -> None:
    done = script("""
        import os, aviato
        with aviato.Sandbox() as sandbox:
            process = sandbox.exec(["cat"], stdin=True)
            process.stdin.writeline("first").result(60)
            pid = os.fork()
            if pid == 0:
                refused = 0
                for call in (lambda: process.stdin.write(b"CHILD"), lambda: process.stdin.writeline("x"), process.stdin.close):
                    try:
                        call().result(60)
                    except RuntimeError as error:
                        refused += f"process {os.getppid()}" in str(error)
                os._exit(refused)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
            process.stdin.writeline("second and more").result(60)
            process.stdin.close().result(60)
            assert process.result(60).stdout == "first\\nsecond and more\\n"
        print("ok")
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)


def test_a_start_is_counted_by_the_process_that_made_it_and_not_again_by_its_children(served: Any, script: Any) -> None:
    ran = script("""
        import os
        import aviato

        session = aviato.Session(report_to=[])
        sandbox = session.sandbox()
        sandbox.exec(["true"]).result(60)
        assert session.get_metrics()["aviato/startup_count"] == 1
        pid = os.fork()
        if pid == 0:
            sandbox.exec(["true"]).result(60)
            counted = session.get_metrics()
            os._exit(int((counted["aviato/executions"], counted["aviato/startup_count"]) != (1, 0)))
        print(os.waitpid(pid, 0)[1])
        session.close().result(60)
    """)
    assert ran.stdout == "0\n", ran.stderr


def test_a_spawned_child_uses_a_sandbox(served: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import multiprocessing, aviato

        def child(sandbox):
            assert sandbox.exec(["echo", "child"]).result(60).stdout == "child\\n"

        if __name__ == "__main__":
            with aviato.Sandbox() as sandbox:
                process = multiprocessing.get_context("spawn").Process(target=child, args=(sandbox,))
                process.start()
                process.join()
                assert process.exitcode == 0
                assert sandbox.exec(["echo", "alive"]).result(60).stdout == "alive\\n"
            print("ok")
        """)
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=250, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_a_worker_thread_may_import_first(served: Any, script: Any) -> None:
    done = script("""
        import threading
        said = []
        def work():
            import aviato
            assert [t.name for t in threading.enumerate() if t.name == "aviato-loop"] == []
            with aviato.Sandbox() as sandbox:
                said.append(sandbox.exec(["echo", "thread"]).result().stdout)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print(said)
    """)
    assert (done.stdout, done.stderr) == ("['thread\\n']\n", "")


def gone(tag: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not aviato.Sandbox.list(tags=[tag]).result():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0"])
def test_what_a_process_made_is_stopped_at_its_end(served: Any, script: Any, ending: str) -> None:
    tag = f"at-exit-{len(ending)}"
    begin = time.monotonic()
    script(f"""
        import aviato
        sandbox = aviato.Sandbox(tags=["{tag}"])
        session = aviato.Session()
        other = session.sandbox(tags=["{tag}"])
        running = sandbox.exec(["sleep", "100"])
        aviato.wait([sandbox, other])
        {ending}
    """)
    assert time.monotonic() - begin < 6
    assert gone(tag, 3)


def test_a_killed_process_leaves_nothing(served: Any) -> None:
    source = 'import aviato, time; s = aviato.Sandbox(tags=["killed"]); s.wait(); print(1, flush=True); time.sleep(100)'
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.kill()
    assert gone("killed", 10)


def test_exit_is_prompt_when_the_server_never_answers(make_server: Any) -> None:
    server = make_server()
    source = f"""
import aviato, os, signal, time
sandbox = aviato.Sandbox(base_url={server.url!r})
running = sandbox.exec(["sleep", "100"])
sandbox.wait()
os.kill({server.pid}, signal.SIGSTOP)
print(time.monotonic())
"""
    try:
        done = subprocess.run([sys.executable, "-c", source], timeout=250, check=True, capture_output=True)
        assert time.monotonic() - float(done.stdout) < 8.5
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_ctrl_c_ends_the_command_and_the_sandbox(served: Any) -> None:
    source = """
import aviato, os, signal, threading
with aviato.Sandbox(tags=["ctrl-c"]) as sandbox:
    process = sandbox.exec(["sh", "-c", "echo up; sleep 100"])
    next(iter(process.stdout))
    waiting = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    try:
        waiting.start()
        process.result()
    except KeyboardInterrupt:
        print(process.done(), flush=True)
        raise
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout == "True\n"
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert done.returncode == -signal.SIGINT
    assert gone("ctrl-c", 3)


def test_stop_on_sigterm(served: Any) -> None:
    source = """
import aviato, os, time
aviato.stop_on_sigterm()
sandbox = aviato.Sandbox(tags=["sigterm"])
sandbox.wait()
child = os.fork()
if child == 0:
    time.sleep(100)
print(child, flush=True)
os.waitpid(child, 0)
print("child ended", flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        os.kill(child, signal.SIGTERM)
        assert process.stdout.readline() == "child ended\n"
        assert len(aviato.Sandbox.list(tags=["sigterm"]).result()) == 1
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM
    assert gone("sigterm", 3)
