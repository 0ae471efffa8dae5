"""Runs in a sandbox: code against its test cases, one after the other. The verdicts are made outside, from its records.

Sent to the sandbox's Python (3.8 or newer, standard library only); nothing of aviato is imported there. Process 1 of the
sandbox starts it, tells it with which case to begin, reads what each prints and says when the next may begin
(`server/supervisor/verdicts.py`). A record begins with a token; it is written after a case's last statement, so that whatever
ends this process before has not passed.

A case that fails spoils nothing for those after it: the code is run anew for them, in this process if all that is left of the
case in it are modules, and else in another one.

Imports are few and late, since Python's start is most of the time that a case takes, and installed packages are found later
(`late.py`, which comes before this text). For the same reason what comes in is a Python literal.

What a case and the code under test can do to each other in one process nothing here prevents: see the guide on grading modes.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as type checkers take it, without the import of typing
if TYPE_CHECKING:
    from typing import Any

    from aviato.grading.inside.late import leave_packages_for_later

RECORD, GO, REPORT = 3, 4, 5
NO_HANG = 1


def main(literal: bytes) -> None:
    """Run what is told by a literal."""
    leave_packages_for_later()
    payload = eval(literal.decode("ascii"))  # of our own making, before anything foreign runs
    first = int(os.read(GO, 16))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    for fd in (RECORD, GO, REPORT) if payload["reports"] else (RECORD, GO):
        os.set_inheritable(fd, False)
    run(payload, first)


def run(payload: dict[str, Any], first: int) -> None:
    # Taken before anything foreign runs: what it does to these names later changes nothing here.
    write, read, leave, frames, wait, size = os.write, os.read, os._exit, sys._current_frames, os.waitpid, len
    getpid, own = os.getpid, os.getpid()
    flush = (sys.stdout.flush, sys.stderr.flush)
    compile_, exec_, base = compile, exec, BaseException
    token, code = payload["token"].encode(), payload["code"]
    cases = [(case["source"], case["name"], case.get("as_main")) for case in payload["cases"][first:]]
    sys.argv = ["solution.py"]

    waiting, state, depth = b"", surroundings(), sys.getrecursionlimit()

    def record(body: bytes) -> None:
        nonlocal waiting
        data = waiting + token + b"%8d" % size(body) + body
        waiting = b""
        if body[:5] == b"begin" and not payload["timed"]:
            waiting = data  # It is soon enough with the next: whoever is told wakes up.
            return
        while data:
            data = data[write(RECORD, data) :]

    record(b"begin\0%.6f" % time.monotonic())
    namespace: dict[str, Any] | None = None
    for source, name, as_main in cases:
        body = b"passed"
        try:
            if namespace is None:
                namespace = {"__name__": "__main__" if as_main else "solution", "__builtins__": __builtins__}
                if payload["reports"]:
                    namespace["__aviato_report__"] = lambda made: write(REPORT, (ascii(made) + "\n").encode("ascii"))
                exec_(compile_(code, "solution.py", "exec"), namespace)
            exec_(compile_(source, name, "exec"), namespace)
        except AssertionError as error:
            body = failure(b"failed", "assertion", first_line(error, "assertion failed"), story(error))
        except SystemExit as error:
            body = failure(b"last", "ended_early", "the code called exit(%.100s)" % (error.code,))
        except MemoryError as error:
            body = failure(b"last", "out_of_memory", "MemoryError", story(error))
        except Exception as error:
            body = failure(b"failed", "exception", "%s: %s" % (kind_of(error), first_line(error, "")), story(error))
        except base as error:
            body = failure(b"last", "exception", "%s: %s" % (kind_of(error), first_line(error, "")), story(error))
        for one in flush:
            try:
                one()
            except base:
                pass
        if body != b"passed":
            namespace = None
            sys.setrecursionlimit(depth)
            left = size(frames()) > 1 or differs(state)
            try:
                wait(-1, NO_HANG)
                left = True
            except ChildProcessError:
                pass
            if left:
                # Something of the case would go on beside the others, or stand in their way.
                body = b"last" + body[body.index(b"\0") :]
        if getpid() != own:
            leave(1)  # A fork that the code has made and let return.
        try:
            record(body)
            # What was printed is taken to be this case's before the next begins.
            if body[:4] == b"last" or not read(GO, 1):
                break
        except base:
            leave(1)
    leave(0)


def failure(kind: bytes, *story: str) -> bytes:
    return kind + b"\0" + "\0".join(story).encode("utf-8", "replace")


def kind_of(error: BaseException) -> str:
    return shorten(type(error).__name__, 256)


def surroundings() -> tuple[Any, ...]:
    """What cases that fail change now and then, beside modules."""
    import _signal  # type: ignore[import-not-found]
    import builtins

    return (
        *(sys.stdin, sys.stdout, sys.stderr, sys.stdout.closed, sys.stderr.closed, sys.gettrace(), sys.getprofile()),
        *(os.getcwd(), dict(os.environ), dict(vars(builtins))),
        *((found.st_dev, found.st_ino) for found in map(os.fstat, (0, 1, 2))),
        *(_signal.getsignal(number) for number in (2, 14, 15)),
        _signal.getitimer(0)[0] > 0,
    )


def differs(state: tuple[Any, ...]) -> bool:
    try:
        return surroundings() != state
    except BaseException:
        return True


def first_line(error: BaseException, default: str) -> str:
    try:
        return shorten(str(error).split("\n")[0].replace("\0", "") or default, 2048)
    except BaseException:
        return default


def story(error: BaseException) -> str:
    """The traceback. What failed has failed: code that meddled with these modules spoils its own report and nothing else."""
    shown = sys.stderr
    try:
        import io

        # The interpreter's own way, which before Python 3.13 does without the module: that takes 5 ms to import.
        sys.stderr = text = io.StringIO()
        trace = error.__traceback__
        sys.__excepthook__(type(error), error, trace and trace.tb_next)  # without this program's own frame
        return shorten("".join(text.getvalue().replace("\0", "").splitlines(True)[-40:]), 8192)
    except BaseException:
        return ""
    finally:
        sys.stderr = shown


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
