"""Runs in a sandbox: code against its cases, one after the other. The verdicts are made outside, from its records.

Sent to the sandbox's Python (3.8 or newer, standard library only); nothing of aviato is imported there. Process 1 of the
sandbox starts it, tells it with which case to begin, reads what each prints and says when the next may begin (`verdicts.py`). A
record begins with a token; it is written after a case's last statement, so that whatever ends this process before has not
passed.

A case that fails spoils nothing for those after it: the code is run anew for them, in this process if all that is left of the
case in it are modules, and else in another one.

The code is the module `solution`, of a file of that name in the current directory, and tests run in its names. Imports are few
and late, since Python's start is most of the time that a case takes, and installed packages are found later (`late.py`, which
comes before this text, as `module.py` does). For the same reason what comes in is a Python literal.

What a case and the code under test can do to each other in one process nothing here prevents: see the guide on grading modes.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as type checkers take it, without the import of typing
if TYPE_CHECKING:
    from typing import Any

    from aviato.grading.inside.calls import as_json, found, given
    from aviato.grading.inside.late import leave_packages_for_later
    from aviato.grading.inside.module import FILE, be_in_a_directory, new_module
    from aviato.grading.inside.unseen import be_started_as, count_from_the_code, out_of_the_way

RECORD, GO, REPORT = 3, 4, 5
"""Descriptors, as this process begins."""
NO_HANG = 1
OWN_FRAMES = 4
"""Between the first frame of this process and that of the code."""
CHECKED = "__aviato_checked__"
REASONS: dict[Any, str] = {
    "SkipTest": "skipped",
    "Skipped": "skipped",
    "skipped": "skipped",
    "Failed": "assertion",
    "not_run": "not_checked",
    "xfailed": "not_checked",
}
"""Of exceptions of the frameworks, by their names, and of what becomes of tests that are collected."""


def main(given: Any) -> None:
    """Run what is told by a literal, all that comes in."""
    leave_packages_for_later()
    # Of our own making.
    payload = eval(given.read().decode("ascii"), {"nan": float("nan"), "inf": float("inf")})
    run(payload, prepared(payload))


def prepared(payload: dict[str, Any]) -> int:
    """Take the place that the code expects, and hear with which case to begin."""
    global RECORD, GO, REPORT
    first = int(os.read(GO, 16))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    own = out_of_the_way([RECORD, GO, REPORT] if payload["reports"] else [RECORD, GO], payload["code"])
    RECORD, GO, REPORT = [*own, REPORT][:3]
    if payload["file"]:
        be_in_a_directory(payload["code"])
    return first


def configuration_of_tests() -> dict[str, Any]:
    """What tells pytest which tests there are, and what becomes of them: variables, and files as they go before others."""
    found: dict[str, Any] = {name: os.environ.get(name) for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
    for name in ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "conftest.py"):
        try:
            with open(name, "rb") as file:
                found[name] = file.read()
        except OSError:
            pass
    return found


def run(payload: dict[str, Any], first: int) -> None:
    # Taken before anything foreign runs: what it does to these names later changes nothing here.
    write, read, leave, frames, wait, size = os.write, os.read, os._exit, sys._current_frames, os.waitpid, len
    getpid, own = os.getpid, os.getpid()
    flush = (sys.stdout.flush, sys.stderr.flush)
    compile_, exec_, base = compile, exec, BaseException
    if payload["calls"]:
        find, take, tell = found, given, as_json
    token, code, prelude, crossing = payload["token"].encode(), payload["code"], payload["prelude"], payload.get("crossing")
    cases = payload["cases"][first:]
    be_started_as(FILE)

    waiting, state, depth = b"", surroundings(), sys.getrecursionlimit()
    configuration = configuration_of_tests
    configured = configuration() if any(case.get("collect") for case in cases) else {}
    set_limit = count_from_the_code(OWN_FRAMES)

    def record(body: bytes) -> None:
        nonlocal waiting
        data = waiting + token + b"%8d" % size(body) + body
        waiting = b""
        if body[:5] == b"begin" and not payload["timed"]:
            waiting = data  # It is soon enough with the next: whoever is told wakes up.
            return
        while data:
            data = data[write(RECORD, data) :]

    def report(text: str) -> None:
        data = text.encode("ascii") + b"\n"
        while data:
            data = data[write(REPORT, data) :]

    record(b"begin\0%.6f" % time.monotonic())
    namespace: dict[str, Any] | None = None
    objects: dict[str, Any] = {}
    begun_with: dict[str, Any] = {}
    for number, case in enumerate(cases, first):
        body = b"passed"
        checks = Checks()
        tests: dict[str, Any] = {"__name__": "aviato_collect"}
        try:
            if namespace is None:
                set_limit(depth + OWN_FRAMES)
                namespace, objects = new_module(payload["file"]), {}
                if payload["reports"]:
                    namespace["__aviato_report__"] = lambda made: report(ascii(made))
                if prelude:
                    exec_(compile_(prelude, "prelude.py", "exec", 0, True), namespace)
                begun_with = dict(namespace)
                exec_(compile_(code, FILE, "exec", 0, True), namespace)
            if "call" in case:
                value = find(namespace, begun_with, objects, case["call"])(*take(case["args"]), **take(case["kwargs"]))
                report(tell(value))
            else:
                before = dict(namespace) if case["collect"] else {}
                if crossing is not None:
                    crossing.begin(number)
                if case["counts"]:
                    namespace[CHECKED] = checks
                if b"inspect" in case["source"] or b"inspect" in code:
                    keep_lines(case["name"], case["source"])
                test = compile_(case["source"], case["name"], "exec", 0, True)
                try:
                    exec_(test, namespace)
                except SystemExit as error:
                    # A test that has checked something may end itself; of others what stands behind may be all that they check.
                    if error.code not in (None, 0) or not checks.reached or not is_raised_in(error, test):
                        raise
                if case["collect"]:
                    exec_(compile_(payload["collect"], "aviato_collect", "exec", 0, True), tests)
                    tests["collect"](case["collect"], namespace, before, case["left_out"], (configured, configuration()))
                if case["counts"] and not checks.reached:
                    body = failure(b"failed", "not_checked", "no assertion was reached")
                elif crossing is not None and not crossing.calls():
                    body = failure(b"failed", "not_checked", "nothing of the code was called")
        except AssertionError as error:
            body = failure(b"failed", "assertion", first_line(error, "assertion failed"), story(error))
        except SystemExit as error:
            body = failure(b"last", "ended_early", "the code called exit(%.100s)" % (error.code,))
        except MemoryError as error:
            body = failure(b"last", "out_of_memory", "MemoryError", story(error))
        except Exception as error:
            none_passed = "NothingPassed" in tests and isinstance(error, tests["NothingPassed"])
            reason = REASONS.get(getattr(error, "status", "") if none_passed else kind_of(error))
            body = failure(b"failed", reason or "exception", "%s: %s" % (kind_of(error), first_line(error, "")), story(error))
        except base as error:
            reason = REASONS.get(kind_of(error))
            body = failure(b"last", reason or "exception", "%s: %s" % (kind_of(error), first_line(error, "")), story(error))
        if crossing is not None and (why := crossing.inseparable()):
            body = failure(b"last", "not_separable", why)
        for one in flush:
            try:
                one()
            except base:
                pass
        if body != b"passed":
            namespace = None
            set_limit(depth)
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


def keep_lines(name: str, source: bytes) -> None:
    """Show `inspect.getsource` the lines of a test, which is no file."""
    import io
    import linecache

    # As Python reads a file: a form feed or U+2028 ends no line.
    lines = io.StringIO(source.decode("utf-8", "replace"), None).readlines()
    linecache.cache[name] = (len(source), None, lines, name)


class Checks:
    """What a test source calls where it checks something."""

    def __init__(self) -> None:
        self.reached = 0

    def __call__(self, value: Any = None) -> Any:
        self.reached += 1
        return value


def is_raised_in(error: BaseException, code: Any) -> bool:
    """Whether code, or a function that it defines, raised it, and nothing that these have called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and any(one is trace.tb_frame.f_code for one in codes_of(code))


def codes_of(code: Any) -> list[Any]:
    """Code, and that of the functions and classes in it."""
    return [code, *[one for const in code.co_consts if type(const) is type(code) for one in codes_of(const)]]


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
        trace = error.__traceback__ and error.__traceback__.tb_next  # without this program's own frame
        sys.__excepthook__(type(error), error.with_traceback(trace), trace)
        return shorten("".join(text.getvalue().replace("\0", "").splitlines(True)[-40:]), 8192)
    except BaseException:
        return ""
    finally:
        sys.stderr = shown


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
