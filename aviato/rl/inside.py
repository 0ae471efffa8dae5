"""Runs in a sandbox: code against its test cases, each in a process of its own, each verdict by its own record.

Sent as text to the sandbox's Python (3.8 or newer, standard library only); nothing of aviato is imported there. Three kinds of
processes keep what a case may know apart from what it must not:

* the reporter holds the nonce that makes a line of output believable, and never runs or forks what comes from outside;
* the runner, forked before the nonce was read, forks one child a case, closes the report channel in it, and reports;
* the child runs the code, then the case, and writes its own record after the case's last statement.

Imports are few and late, since Python's start is most of the time that a case takes. For the same reason what comes in and
goes out are Python literals.

What a case and the code under test can do to each other in one process nothing here prevents: see the guide on grading modes.
"""

from __future__ import annotations

import os
import select
import sys
import time

TYPE_CHECKING = False  # as type checkers take it, without the import of typing
if TYPE_CHECKING:
    from typing import Any

OUTPUT_BYTES = 65536
SIGKILL = 9
DRAIN_READS = 32


def main() -> None:
    nonce_read, report_read, report_write, payload_read, payload_write = 0, *os.pipe(), *os.pipe()
    try:
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: nobody inside opens this process's descriptors or memory
    except (ImportError, OSError, AttributeError):
        pass
    if os.fork() == 0:
        os.close(report_read)
        os.close(payload_write)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        run(payload_read, report_write)
        os._exit(0)
    os.close(report_write)
    os.close(payload_read)
    nonce = os.read(nonce_read, 32)
    while len(nonce) < 32:
        more = os.read(nonce_read, 32 - len(nonce))
        if not more:
            os._exit(3)
        nonce += more
    while True:
        chunk = os.read(nonce_read, 1 << 16)
        if not chunk:
            break
        write_all(payload_write, chunk)
    os.close(payload_write)
    with os.fdopen(report_read, "rb") as reports:
        for line in reports:
            write_all(1, nonce + b" " + line)


def run(payload_read: int, report_write: int) -> None:
    with os.fdopen(payload_read, "rb") as file:
        payload = eval(file.read().decode("ascii"))  # of our own making, before anything foreign runs
    count = 0
    for case in payload["cases"]:
        write_all(report_write, (ascii(run_case(payload, case, report_write)) + "\n").encode())
        count += 1
    write_all(report_write, (ascii({"cases": count}) + "\n").encode())


def run_case(payload: dict[str, Any], case: dict[str, Any], report_write: int) -> dict[str, Any]:
    record_read, record_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    token = os.urandom(16)
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        # The runner learns the end of a case from the record and from the child's own exit, in that order.
        os.setsid()
        os.close(report_write)
        os.dup2(out_write, 1)
        os.dup2(err_write, 2)
        for fd in (record_read, out_read, out_write, err_read, err_write):
            os.close(fd)
        in_child(payload["code"], case, record_write, token)
    for fd in (record_write, out_write, err_write):
        os.close(fd)
    limit = case.get("timeout_seconds") or payload.get("case_timeout_seconds")
    deadline = None if limit is None else begin + limit
    texts = {record_read: b"", out_read: b"", err_read: b""}
    status, timed_out = follow(pid, texts, deadline)
    seconds = time.monotonic() - begin
    kill_group(pid)
    for fd in texts:
        os.close(fd)
    return judge(status, timed_out, texts[record_read], token, seconds, texts[out_read], texts[err_read])


def follow(pid: int, texts: dict[int, bytes], deadline: float | None) -> tuple[int, bool]:
    """Read until the child is gone and what it had written is read; children that it left behind are not waited for."""
    try:
        gone = os.pidfd_open(pid)
    except (AttributeError, OSError):
        gone = -1
    pause = 0.002 if gone < 0 else None
    watched = set(texts) if gone < 0 else {*texts, gone}
    timed_out = False
    status = None
    while status is None:
        left = pause if deadline is None else max(0.0, deadline - time.monotonic())
        ready = select.select(list(watched), [], [], left if pause is None or left is None else min(pause, left))[0]
        if deadline is not None and time.monotonic() >= deadline and gone not in ready:
            timed_out = True
            kill_group(pid)
            status = os.waitpid(pid, 0)[1]
        elif gone < 0 or gone in ready:
            found, code = os.waitpid(pid, os.WNOHANG)
            status = code if found else None
        take(ready, texts, watched)
    for _ in range(DRAIN_READS):  # a process that it left behind may write for ever
        ready = select.select([fd for fd in watched if fd != gone], [], [], 0)[0]
        if not ready:
            break
        take(ready, texts, watched)
    if gone >= 0:
        os.close(gone)
    return status, timed_out


def take(ready: list[int], texts: dict[int, bytes], watched: set[int]) -> None:
    for fd in ready:
        if fd in texts:
            chunk = os.read(fd, 65536)
            if not chunk:
                watched.discard(fd)
            elif len(texts[fd]) < OUTPUT_BYTES:
                texts[fd] += chunk[: OUTPUT_BYTES - len(texts[fd])]


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def judge(status: int, timed_out: bool, record: bytes, token: bytes, seconds: float, out: bytes, err: bytes) -> dict[str, Any]:
    verdict: dict[str, Any] = {
        "passed": False,
        "reason": "ended_early",
        "message": "",
        "duration_seconds": seconds,
        "stdout": out.decode("utf-8", "replace"),
        "stderr": err.decode("utf-8", "replace"),
    }
    written = record[len(token) :].decode("utf-8", "replace").split("\0") if record.startswith(token) else [""]
    if timed_out:
        verdict.update(reason="timed_out", message="the case ran longer than its time limit")
    elif os.WIFSIGNALED(status):
        verdict.update(reason="killed", message="killed by signal %d" % os.WTERMSIG(status), signal=os.WTERMSIG(status))
    elif written == ["end"] and os.WEXITSTATUS(status) == 0:
        verdict.update(passed=True, reason="passed")
    elif len(written) == 3 and written[0] in ("assertion", "exception", "out_of_memory", "ended_early"):
        verdict.update(reason=written[0], message=written[1], traceback=written[2])
    else:
        verdict["message"] = "the process ended with code %d before the last assertion" % os.WEXITSTATUS(status)
    return verdict


def in_child(code: str, case: dict[str, Any], record_write: int, token: bytes) -> None:
    # Taken before anything foreign runs: what it does to these names later changes nothing here.
    write, leave = os.write, os._exit
    flush = (sys.stdout.flush, sys.stderr.flush)
    compile_, exec_, base = compile, exec, BaseException
    solution, test = "solution.py", case.get("name") or "test"
    namespace: dict[str, Any] = {"__name__": "__main__" if case.get("as_main") else "solution", "__builtins__": __builtins__}
    sys.argv = [solution]
    record = ["ended_early", "", ""]
    try:
        body = compile_(code, solution, "exec")
        check = compile_(case["source"], test, "exec")
        exec_(body, namespace)
        exec_(check, namespace)
        record = ["end"]
    except AssertionError as error:
        record = ["assertion", first_line(error, "assertion failed"), story(error)]
    except SystemExit as error:
        record = ["ended_early", "the code called exit(%.100s)" % (error.code,), ""]
    except MemoryError as error:
        record = ["out_of_memory", "MemoryError", story(error)]
    except base as error:
        record = ["exception", "%s: %s" % (type(error).__name__, first_line(error, "")), story(error)]
    for one in flush:
        try:
            one()
        except base:
            pass
    try:
        write(record_write, token + "\0".join(record).encode("utf-8", "replace"))
    finally:
        leave(0 if len(record) == 1 else 1)


def first_line(error: BaseException, default: str) -> str:
    try:
        return shorten(str(error).split("\n")[0].replace("\0", "") or default, 2048)
    except BaseException:
        return default


def story(error: BaseException) -> str:
    """The traceback. What failed has failed: code that meddled with these modules spoils its own report and nothing else."""
    try:
        import traceback

        lines = traceback.format_exception(type(error), error, error.__traceback__)
        return shorten("".join(lines[-20:]).replace("\0", ""), 8192)
    except BaseException:
        return ""


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main()
