"""Runs in a sandbox: code against its test cases, each verdict by a record of its own.

Sent to the sandbox's Python (3.8 or newer, standard library only); nothing of aviato is imported there. Two kinds of processes
keep what a case may know apart from what it must not:

* the keeper reads the cases, follows a child, and reports. A line of its output is believable by the nonce that it begins with,
  and the nonce of a line is read after its case has ended: no child has ever had it in its memory, and nobody inside can open
  the keeper's descriptors;
* the child runs the code, then one case after the other, and writes a record after each one's last statement. A case that does
  not pass is its last one; those that are left begin anew in another child.

Imports are few and late, since Python's start is most of the time that a case takes, and installed packages are found later
(`late.py`, which comes before this text). For the same reason what comes in and goes out are Python literals.

What a case and the code under test can do to each other in one process nothing here prevents: see the guide on grading modes.
"""

from __future__ import annotations

import os
import select
import sys
import time

TYPE_CHECKING = False  # as type checkers take it, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from aviato.grading.inside.late import leave_packages_for_later

OUTPUT_BYTES = 65536
NONCE_BYTES = 32
SIGKILL = 9
DRAIN_READS = 32
PASSED = b"end"


def main(take: Callable[[int], bytes], payload_bytes: int) -> None:
    """Run what comes on standard input; `take` reads exactly so many bytes of it, and what follows stays in the pipe."""
    close_to_others()
    leave_packages_for_later()
    payload = eval(take(payload_bytes).decode("ascii"))  # of our own making, before anything foreign runs
    cases = payload["cases"]
    done = 0
    while done < len(cases):
        for record in run_child(payload, cases[done:]):
            report(take, record)
            done += 1
    report(take, {"cases": done})


def close_to_others() -> None:
    """From now on nobody inside opens this process's descriptors or memory."""
    try:
        import _ctypes  # the package around it takes 2 ms to import

        itself: Any = None
        _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(itself, 0), "prctl"), (4, 0, 0, 0, 0))  # PR_SET_DUMPABLE
    except Exception:
        try:
            import ctypes

            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        except (ImportError, OSError, AttributeError):
            pass


def report(take: Callable[[int], bytes], record: dict[str, Any]) -> None:
    view = memoryview(take(NONCE_BYTES) + (" " + ascii(record) + "\n").encode())
    while view:
        view = view[os.write(1, view) :]


def run_child(payload: dict[str, Any], cases: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The verdicts of these cases, up to the first that does not pass."""
    record_read, record_write = os.pipe()
    go_read, go_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    reports = os.pipe() if payload.get("reports") else ()
    token = os.urandom(16)
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd, copy in ((null, 0), (out_write, 1), (err_write, 2)):
            os.dup2(fd, copy)
        for fd in (null, record_read, go_write, out_read, out_write, err_read, err_write, *reports[:1]):
            os.close(fd)
        in_child(payload["code"], cases, record_write, go_read, token, *reports[1:])
    for fd in (record_write, go_read, out_write, err_write, *reports[1:]):
        os.close(fd)
    child = Child(pid, payload.get("output_bytes", OUTPUT_BYTES), record_read, out_read, err_read, *reports[:1])
    try:
        for number, case in enumerate(cases, 1):
            limit = case.get("timeout_seconds") or payload.get("case_timeout_seconds")
            passed = child.follow(token + PASSED, None if limit is None else begin + limit)
            if not passed or number == len(cases):
                # What it left behind writes no more into its output.
                child.end()
            yield child.verdict(passed, token, time.monotonic() - begin)
            if not passed:
                break
            child.forget()
            begin = time.monotonic()
            if number < len(cases):
                os.write(go_write, b"g")
    finally:
        child.close()
        os.close(go_write)


class Child:
    """A process that runs cases, and what comes of it."""

    def __init__(self, pid: int, most_bytes: int, *fds: int) -> None:
        self.pid = pid
        self.fds = fds  # the record, stdout, stderr, and reports where they were asked for
        self.most_bytes = most_bytes
        self.status: int | None = None
        self.timed_out = False
        try:
            self.gone = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self.gone = -1
        self.watched = set(fds)
        self.forget()

    def forget(self) -> None:
        """A new case begins."""
        self.texts = dict.fromkeys(self.fds, b"")

    def follow(self, passed: bytes, deadline: float | None) -> bool:
        """Read until the case has passed or the child is gone, and what was written by then; True if it has passed."""
        record, gone = self.fds[0], self.gone
        while self.status is None and self.texts[record] != passed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if gone < 0:
                left = 0.002 if left is None else min(0.002, left)
            ready = select.select([*self.watched, gone] if gone >= 0 else list(self.watched), [], [], left)[0]
            if deadline is not None and time.monotonic() >= deadline and gone not in ready:
                self.timed_out = True
                break
            if gone < 0 or gone in ready:
                found, status = os.waitpid(self.pid, os.WNOHANG)
                self.status = status if found else None
            self.take(ready)
        if self.timed_out:
            self.end()
        for _ in range(DRAIN_READS):  # a process that it left behind may write for ever
            ready = select.select(list(self.watched), [], [], 0)[0]
            if not ready:
                break
            self.take(ready)
        return self.status is None and self.texts[record] == passed

    def take(self, ready: list[int]) -> None:
        """Read once from each that is ready; what is too much is read and dropped."""
        for fd in ready:
            if fd in self.texts:
                chunk = os.read(fd, 65536)
                if not chunk:
                    self.watched.discard(fd)
                elif len(self.texts[fd]) < self.most_bytes:
                    self.texts[fd] += chunk[: self.most_bytes - len(self.texts[fd])]

    def end(self) -> None:
        """Kill it and what is left of its group."""
        try:
            os.killpg(self.pid, SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        if self.status is None:
            os.kill(self.pid, SIGKILL)  # It may not lead its group yet.
            self.status = os.waitpid(self.pid, 0)[1]

    def close(self) -> None:
        """Let go of its descriptors."""
        for fd in self.fds:
            os.close(fd)
        if self.gone >= 0:
            os.close(self.gone)

    def verdict(self, passed: bool, token: bytes, seconds: float) -> dict[str, Any]:
        """What became of its current case."""
        record, out, err, *reports = (self.texts[fd] for fd in self.fds)
        verdict: dict[str, Any] = {
            "passed": passed,
            "reason": "passed" if passed else "ended_early",
            "message": "",
            "duration_seconds": seconds,
            "stdout": out.decode("utf-8", "replace"),
            "stderr": err.decode("utf-8", "replace"),
        }
        if reports:
            verdict["reports"] = reports[0].decode("utf-8", "replace")
        if passed:
            return verdict
        status = self.status or 0
        written = record[len(token) :].decode("utf-8", "replace").split("\0") if record.startswith(token) else [""]
        if self.timed_out:
            verdict.update(reason="timed_out", message="the case ran longer than its time limit")
        elif os.WIFSIGNALED(status):
            verdict.update(reason="killed", message="killed by signal %d" % os.WTERMSIG(status), signal=os.WTERMSIG(status))
        elif len(written) == 3 and written[0] in ("assertion", "exception", "out_of_memory", "ended_early"):
            verdict.update(reason=written[0], message=written[1], traceback=written[2])
        else:
            verdict["message"] = "the process ended with code %d before the last assertion" % os.WEXITSTATUS(status)
        return verdict


def in_child(code: str, cases: list[dict[str, Any]], record_write: int, go_read: int, token: bytes, *report: int) -> None:
    # Taken before anything foreign runs: what it does to these names later changes nothing here.
    write, read, leave = os.write, os.read, os._exit
    flush = (sys.stdout.flush, sys.stderr.flush)
    compile_, exec_, base = compile, exec, BaseException
    sources = [(case["source"], case.get("name") or "test") for case in cases]
    main_module = "__main__" if cases[0].get("as_main") else "solution"
    namespace: dict[str, Any] = {"__name__": main_module, "__builtins__": __builtins__}
    if report:
        namespace["__aviato_report__"] = lambda made: write(report[0], (ascii(made) + "\n").encode("ascii"))
    sys.argv = ["solution.py"]
    passed = token + PASSED
    record = ["ended_early", "", ""]
    try:
        exec_(compile_(code, "solution.py", "exec"), namespace)
        for source, name in sources:
            exec_(compile_(source, name, "exec"), namespace)
            for one in flush:
                try:
                    one()
                except base:
                    pass
            write(record_write, passed)
            # What was printed is taken to be this case's before the next begins.
            if not read(go_read, 1):
                break
        leave(0)
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
        leave(1)


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
