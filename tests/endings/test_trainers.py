"""However a trainer ends, its sandboxes end with it and what it detached lives on; one that only stands still loses nothing."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

import pytest

from tests.endings.conftest import LEASE_SECONDS, until
from tests.matrices import every

LEAVES = {
    "the last line": ("", 0, ""),
    "an exception": ("1 / 0", 1, "ZeroDivisionError: division by zero"),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "a daemon thread waits": (
        "threading.Thread(target=running[0].exception, daemon=True).start()",
        0,
        "",
    ),
    "a daemon thread reads": (
        "threading.excepthook = print\nthreading.Thread(target=list, args=(running[0].stdout,), daemon=True).start()",
        0,
        "",
    ),
    "in asyncio.run": ("async def main():\n    await alone.exec(['true'])\n    sys.exit(3)\nasyncio.run(main())", 3, ""),
    "tasks under way": (
        "async def main():\n    asyncio.ensure_future(made.exec(BUSY)._wait_async())\n"
        "    await asyncio.sleep(0.1)\nasyncio.run(main())",
        0,
        "",
    ),
    "starts under way": ("more = [session.sandbox() for _ in range(8)]; more[3].exec(BUSY)", 0, ""),
    "an upload under way": ("session.sandbox().write_file('/big', bytes(1 << 27))", 0, ""),
    "a session never closed": ("del alone, made, running", 0, ""),
    "a session closed": ("session.close().result(); running[1].exception()", 0, ""),
}


@pytest.mark.parametrize("how", every(3, LEAVES))
def test_the_interpreter_s_end(trainer: Any, how: str) -> None:
    """Cleaned up by itself, promptly and silently."""
    source, code, last = LEAVES[how]
    one = trainer(f"hold()\nsay('up')\n{source}")
    one.says()
    begin = time.monotonic()
    returncode, _, err = one.end()
    assert (returncode, err.strip().splitlines()[-1:]) == (code, [last] if last else [])
    assert time.monotonic() - begin < 5
    one.leaves_nothing(3)
    # A create that was under way may have come after the end of the lease: then it is the process's death that ends it.
    assert one.reasons() <= ({"stopped", "lease_expired"} if "under way" in how else {"stopped"})


INTERRUPTED = {
    "in a wait": "running[0].result()",
    "in a stream": "for _ in running[0].stdout: pass",
    "in its own code": "time.sleep(60)",
    "in asyncio.run": "async def main():\n    await running[0]\nasyncio.run(main())",
    "in a with block": "with aviato.Sandbox(tags=[MARK]) as box:\n    box.exec(BUSY).result()",
    "in an async with block": (
        "async def main():\n    async with aviato.Sandbox(tags=[MARK]) as box:\n"
        "        await box.exec(BUSY)\nasyncio.run(main())"
    ),
    "in a session's block": "with aviato.Session() as other:\n    other.sandbox(tags=[MARK]).exec(BUSY).result()",
}


@pytest.mark.parametrize("where", INTERRUPTED)
def test_the_first_ctrl_c_cleans_up(trainer: Any, where: str) -> None:
    one = trainer(f"hold()\nthreading.Timer(0.2, say, ['up']).start()\n{INTERRUPTED[where]}")
    one.says()
    begin = time.monotonic()
    one.send(signal.SIGINT)
    returncode, _, err = one.end()
    assert (returncode, err.strip().splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
    assert time.monotonic() - begin < 5
    one.leaves_nothing(3)
    assert one.reasons() == {"stopped"}


@pytest.mark.parametrize("where", ["in a with block", "in asyncio.run", "in its own code"])
def test_the_second_ctrl_c_leaves(trainer: Any, make_server: Any, where: str) -> None:
    """Even where the server answers nothing at all; it finds out by itself what to end."""
    server = make_server(lease=LEASE_SECONDS)
    one = trainer(f"hold()\nthreading.Timer(0.2, say, ['up']).start()\n{INTERRUPTED[where]}", server)
    one.says()
    server.process.send_signal(signal.SIGSTOP)
    try:
        one.send(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            one.process.wait(0.7)
        begin = time.monotonic()
        while one.process.poll() is None:  # each further one leaves one more wait
            one.send(signal.SIGINT)
            until(lambda: one.process.poll() is not None or time.monotonic() > begin + 0.5, 2)
            assert time.monotonic() - begin < 2
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert one.end()[0] == -signal.SIGINT
    one.leaves_nothing(8)


@pytest.mark.parametrize("how", ["os._exit(4)", "os.kill(os.getpid(), signal.SIGTERM)", "os.abort()"])
def test_without_a_word_the_lease_ends_it(trainer: Any, how: str) -> None:
    one = trainer(f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nhold()\n{how}")
    assert one.end()[0] != 0
    one.leaves_nothing(LEASE_SECONDS + 5)
    assert one.reasons() == {"lease_expired"}


def test_killed_it_leaves_nothing_ten_seconds_later(trainer: Any, server: Any) -> None:
    """The server's own settings; with starts, commands and an upload under way."""
    one = trainer(
        """
        hold()
        more = [session.sandbox() for _ in range(6)]
        more[0].write_file("/big", bytes(1 << 27))
        more[1].exec(BUSY)
        say("up")
        time.sleep(60)
        """,
        server,
    )
    one.says()
    one.send(signal.SIGKILL)
    one.process.wait()
    print(f"gone after {one.leaves_nothing(10):.1f} s")
    assert one.reasons() <= {"lease_expired", "stopped"}


SIGTERMED = {
    **{where: INTERRUPTED[where] for where in ("in a wait", "in asyncio.run")},
    "in a thread": "t = threading.Thread(target=running[0].exception)\nt.start()\nt.join()",
}


@pytest.mark.parametrize("where", SIGTERMED)
def test_sigterm_cleans_up_by_choice(trainer: Any, where: str) -> None:
    one = trainer(f"aviato.stop_on_sigterm()\nhold()\nthreading.Timer(0.2, say, ['up']).start()\n{SIGTERMED[where]}")
    one.says()
    begin = time.monotonic()
    one.send(signal.SIGTERM)
    assert one.end()[0] == -signal.SIGTERM
    assert time.monotonic() - begin < 5
    one.leaves_nothing(3)
    assert one.reasons() == {"stopped"}


def test_a_second_sigterm_does_not_wait_for_the_clean_up(trainer: Any, make_server: Any) -> None:
    server = make_server(lease=LEASE_SECONDS)
    one = trainer("aviato.stop_on_sigterm()\nhold()\nsay('up')\ntime.sleep(60)", server)
    one.says()
    server.process.send_signal(signal.SIGSTOP)
    try:
        one.send(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            one.process.wait(0.7)
        one.send(signal.SIGTERM)
        assert one.process.wait(2) == -signal.SIGTERM
    finally:
        server.process.send_signal(signal.SIGCONT)
    one.leaves_nothing(8)


def test_a_program_that_survives_sigterm_goes_on(trainer: Any) -> None:
    """As one that saves a checkpoint: what it held is gone, and what it makes from now on works and is cleaned up as well."""
    one = trainer(
        """
        asked = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: asked.set())
        aviato.stop_on_sigterm()
        hold()
        say("up")
        asked.wait()
        say("asked to end")
        for box in (made, alone):
            assert box.wait_until_complete(raise_on_termination=False).result(10).status_reason == "stopped"
        again = session.sandbox()
        assert len(again.exec(["head", "-c", "4000000", "/dev/zero"]).result(20).stdout_bytes) == 4000000
        say("again")
        again.exec(BUSY).result()
        """
    )
    one.says()
    one.send(signal.SIGTERM)
    one.says("asked to end")
    one.says("again")
    assert one.commands() <= 1
    one.send(signal.SIGINT)
    one.end()
    assert one.leaves_nothing(3) < LEASE_SECONDS
    assert one.reasons() == {"stopped"}


@pytest.mark.parametrize(
    ("before", "returncode"), [("lambda *_: sys.exit(9)", 9), ("signal.SIG_IGN", 0), ("signal.SIG_DFL", -signal.SIGTERM)]
)
def test_after_cleaning_up_sigterm_does_what_it_did(trainer: Any, before: str, returncode: int) -> None:
    one = trainer(f"signal.signal(signal.SIGTERM, {before})\naviato.stop_on_sigterm()\nhold()\nsay('up')\ntime.sleep(2)")
    one.says()
    one.send(signal.SIGTERM)
    assert one.end()[0] == returncode
    assert one.leaves_nothing(3) < LEASE_SECONDS
    assert one.reasons() == {"stopped"}


STUCK = {
    "stopped": "say('up')\nos.kill(os.getpid(), signal.SIGSTOP)",
    # Backtracks for a time that doubles with each character; the interpreter's lock is held all the while.
    "a regex that holds the interpreter": """
import re
length, took = 20, 0.0
while took < SECONDS / 8:
    begin = time.monotonic()
    re.match("(a+)+$", "a" * length + "b")
    length, took = length + 1, time.monotonic() - begin
say("up")
begin = time.monotonic()
while time.monotonic() < begin + SECONDS:
    re.match("(a+)+$", "a" * (length + 2) + "b")
""",
}
AFTERWARDS = """
assert [one.get_status() for one in (alone, made, detached)] == ["running"] * 3
assert counting.result(10).stdout == "0\\n1\\n2\\n3\\n4\\n" and not any(one.done() for one in running)
assert made.exec(["echo", "still"]).result(10).stdout == "still\\n"
say("nothing lost")
"""


def stands_still(one: Any, how: str, seconds: float) -> None:
    one.says()
    if how == "stopped":
        time.sleep(seconds)
        assert len(one.living()) == 2 and one.commands() == 2
        one.send(signal.SIGCONT)
    one.says("nothing lost")
    assert one.end()[0] == 0
    one.leaves_nothing(3)


def standing(how: str, seconds: float) -> str:
    count = 'counting = made.exec(["sh", "-c", "for n in 0 1 2 3 4; do echo $n; sleep 0.3; done"])'
    return f"SECONDS = {seconds}\nhold()\n{count}\nnext(iter(counting.stdout))\n{STUCK[how]}\n{AFTERWARDS}"


@pytest.mark.deep
@pytest.mark.parametrize("how", STUCK)
def test_one_that_stands_still_loses_nothing(trainer: Any, how: str) -> None:
    """Three leases long."""
    stands_still(trainer(standing(how, 3 * LEASE_SECONDS)), how, 3 * LEASE_SECONDS)


@pytest.mark.long
@pytest.mark.parametrize("how", STUCK)
def test_one_that_stands_still_for_a_minute_loses_nothing(trainer: Any, server: Any, how: str) -> None:
    """With the server's own settings."""
    stands_still(trainer(standing(how, 65), server), how, 65)


CHILDREN = {
    "fork, os._exit": "pid = os.fork()\nif pid == 0:\n    child()\n    os._exit(0)\nassert os.waitpid(pid, 0)[1] == 0",
    "fork, sys.exit": "pid = os.fork()\nif pid == 0:\n    child()\n    sys.exit()\nassert os.waitpid(pid, 0)[1] == 0",
    "fork, killed": "pid = os.fork()\nif pid == 0:\n    child()\n    os.abort()\nassert os.waitpid(pid, 0)[1] != 0",
    "multiprocessing": (
        "import multiprocessing\nprocess = multiprocessing.get_context('fork').Process(target=child)\n"
        "process.start(); process.join()\nassert process.exitcode == 0"
    ),
}


@pytest.mark.parametrize("how", CHILDREN)
def test_a_child_s_end_takes_only_what_is_the_child_s(trainer: Any, how: str) -> None:
    one = trainer(
        f"""
import warnings
warnings.filterwarnings("ignore", "This process", DeprecationWarning)
hold()
def child():
    assert alone.exec(["true"]).result(10).returncode == 0
    own = aviato.Sandbox(tags=["child-" + MARK]).wait()
    assert session.sandbox(tags=["child-" + MARK]).exec(["true"]).result(10).returncode == 0
    own.exec(["true"]).result(10)
    assert len(aviato.Sandbox.list(tags=["child-" + MARK]).result()) == 2
{CHILDREN[how]}
deadline = time.monotonic() + {LEASE_SECONDS + 5}
while aviato.Sandbox.list(tags=["child-" + MARK]).result():
    assert time.monotonic() < deadline
    time.sleep(0.05)
assert made.exec(["echo", "still"]).result(10).stdout == "still\\n" and not any(one.done() for one in running)
say("up")
time.sleep(60)
"""
    )
    one.says()
    assert len(one.living()) == 2 and one.commands() == 2
    one.send(signal.SIGINT)
    one.end()
    one.leaves_nothing(3)


def test_a_grandchild_that_lives_on_holds_nothing(trainer: Any) -> None:
    """It inherits descriptors, not the lease."""
    one = trainer(
        """
        import warnings
        warnings.filterwarnings("ignore", "This process", DeprecationWarning)
        hold()
        if os.fork() == 0:
            os.close(1), os.close(2)
            time.sleep(20)
            os._exit(0)
        os._exit(0)
        """
    )
    assert one.end()[0] == 0
    one.leaves_nothing(LEASE_SECONDS + 5)


WORKERS = {
    "a thread": "threading.Thread(target=work).start()",
    "an executor": (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\nfor _ in range(2): pool.submit(work)"
    ),
}


@pytest.mark.parametrize("kind", WORKERS)
@pytest.mark.parametrize("last", ["", "1 / 0"])
def test_threads_that_are_waited_for_keep_their_sandboxes(trainer: Any, kind: str, last: str) -> None:
    """The end of the main thread is not yet the end of the program."""
    one = trainer(
        f"""
hold()
def work():
    try:
        time.sleep(0.3)
        say(made.exec(["echo", "works"]).result(10).stdout.strip())
        time.sleep(0.3)
        say(alone.exec(["echo", "works on"]).result(10).stdout.strip())
    except BaseException as error:
        say(error)
{WORKERS[kind]}
{last}
"""
    )
    returncode, out, err = one.end()
    assert out.splitlines() == ["works", "works on"] * (1 if kind == "a thread" else 2)
    assert (returncode, "ZeroDivisionError" in err) == ((1, True) if last else (0, False))
    one.leaves_nothing(3)
    assert one.reasons() == {"stopped"}


def test_at_exit_handlers_get_answers(trainer: Any) -> None:
    """They run after the clean-up: what is over says so, and nobody hangs."""
    one = trainer(
        """
        def late():
            for call in (lambda: made.exec(["true"]).result(10), alone.get_status, running[0].result, aviato.Sandbox.run):
                try:
                    say(call())
                except Exception as error:
                    say(type(error).__name__)
        hold()
        atexit.register(late)
        """
    )
    returncode, out, err = one.end()
    assert (returncode, err) == (0, "")
    print(out)
    assert len(out.splitlines()) == 4
    one.leaves_nothing(LEASE_SECONDS + 5)


def test_the_server_s_death_does_not_keep_a_trainer(trainer: Any, make_server: Any) -> None:
    server = make_server()
    one = trainer("hold()\nsay('up')\ntime.sleep(0.5)", server)
    one.says()
    server.process.kill()
    begin = time.monotonic()
    assert one.end()[0] == 0
    assert time.monotonic() - begin < 7


@pytest.mark.parametrize("form", ["block", "await"])
def test_closing_a_session_ends_commands_that_run(trainer: Any, form: str) -> None:
    """They count as cancelled, and their streams end."""
    leave = {
        "block": "session.close().result()",
        "await": "async def main():\n    async with session: pass\nasyncio.run(main())",
    }[form]
    one = trainer(
        f"""
hold()
command = made.exec(["sh", "-c", "echo up; exec sleep $0", MARK])
stream = iter(command.stdout)
assert next(stream) == "up\\n"
{leave}
for wait in (command.result, lambda: list(stream), running[1].result):
    try:
        wait()
    except Exception as error:
        say(type(error).__name__, error.is_infrastructure)
assert session.get_metrics()["aviato/exec_cancelled"] == 2
assert made.get_status() == "terminated" and alone.get_status() == "running"
"""
    )
    returncode, out, err = one.end()
    assert (returncode, err) == (0, "")
    assert out.splitlines() == ["SandboxNotRunningError False"] * 3
    one.leaves_nothing(3)
