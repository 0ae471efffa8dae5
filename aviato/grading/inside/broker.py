"""Runs in a grader's sandbox, for as long as that lives: runs tests of several tasks, and passes their calls to the solutions.

Each task has a directory of its own, and processes that are forked from this one, so that no Python has to start for them. What
they have left behind is killed, and the directory is gone, before the task counts as over. The solutions are elsewhere, each in
a sandbox; what comes from them is of hostile code. It is cut into messages by lengths, and each goes to the connection that it
names. A solution that breaks these rules is not listened to any more.

Standard input and output carry messages of all tasks: a line with the number of the task, a kind and a size, and so many bytes.

* to here: `t` a task, `a` output of its solution, `l` its solution is gone, `x` it is not wanted any more;
* from here: `h` whether tasks can share it, `c` input of the solution, `p` whether what it answers is to wait, `r` verdicts
  on the cases, `d` nothing of it runs on, and whether other directories are as they were.

Follows `late.py`, `module.py`, `cases.py`, `loop.py`, `leftover.py`, `verdicts.py`, `connections.py`, `place.py` and
`paths.py`. The verdicts are made as process 1 makes them, by the same text. Tests are trusted with them: they share a sandbox,
and a user, with this process.
"""

from __future__ import annotations

import fcntl
import gc
import mmap  # noqa: F401  # for `aviato_solution.py`, which each process would import by itself
import os
import signal
import sys
import traceback

from aviato.grading.inside.paths import TASKS_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    from typing import Any

    from aviato.grading.inside.cases import prepared, run
    from aviato.grading.inside.connections import HEAD_BYTES, PIECE_BYTES, Connections, listen
    from aviato.grading.inside.late import leave_packages_for_later
    from aviato.grading.inside.leftover import Drain
    from aviato.grading.inside.loop import READ, Loop
    from aviato.grading.inside.place import LINK, Place
    from aviato.grading.inside.verdicts import Program
else:
    import json

ABOVE = 64
SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER`."""


def main(given: Any) -> None:
    """Serve until the end of standard input.

    Args:
        given: standard input, from a line on that says how long the literal is that follows.
    """
    leave_packages_for_later()
    told = eval(exactly(given, int(line_of(given))).decode("ascii"))  # of our own making
    broker = Broker(told)
    gc.collect()
    gc.freeze()  # Or each process of a test would copy what the collector touches.
    # What a process of a test runs is not below all that is on the way to here.
    run(*broker.serve())


def line_of(given: Any) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += given.read(1)
    return line


def exactly(given: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += given.read(size - len(data))
    return data


class Forked(BaseException):
    """This is a new process, which is to run these cases."""


class Broker:
    """All tasks of this sandbox.

    Args:
        told: `link`, the source of what stands for solutions.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        self.loop = Loop(self.failed)
        self.loop.begin()
        self.drains: set[Drain] = set()
        self.tasks: dict[int, Task] = {}
        self.places: list[Place] = []
        """Of those that are free."""
        self.made = 0
        self.processes: dict[int, Task] = {}
        self.link_source: bytes = told["link"]
        self.link = type(sys)("aviato_solution")
        exec(compile(self.link_source, "aviato_solution", "exec", 0, True), vars(self.link))
        self.control = prctl()
        self.data = bytearray()
        self.waiting = bytearray()
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Tests may use what is in the working directory; nobody else's do then.
        free = os.getcwd() == "/" or not os.listdir(".")
        again = free and self.control is not None and self.control(SUBREAPER, 1, 0, 0, 0) == 0
        os.makedirs(TASKS_PATH, exist_ok=True)
        self.around = around()
        self.say(0, b"h", b"%d" % again)

    def serve(self) -> Any:
        """Serve for ever; in a process that is forked for a case it returns what that is to run."""
        self.loop.watch(0, READ, self.hear)
        self.loop.watch(self.woken, READ, self.reap)
        self.loop.each_turn.append(self.flush)
        self.flush()
        forked: Any = None
        while forked is None:
            try:
                self.loop.turn()
            except Forked as one:
                forked = one.args
        task, fds = forked
        return task.payload, task.become(fds)

    def failed(self, error: Exception) -> None:
        """Nothing of what is here may be missing: who asked makes another one."""
        traceback.print_exception(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(70)

    def place(self) -> Place:
        """One for a task; making and removing it would cost more than all else here."""
        if self.places:
            return self.places.pop()
        self.made += 1
        return Place(self, "%s/%d" % (TASKS_PATH, self.made))

    # -- messages

    def hear(self, events: int) -> None:
        chunk = os.read(0, PIECE_BYTES)
        if not chunk:
            os._exit(0)  # and with it all that it has begun
        self.data += chunk
        while True:
            end = self.data.find(b"\n", 0, HEAD_BYTES)
            if end < 0:
                return
            number, kind, size = self.data[:end].split(b" ")
            if len(self.data) < end + 1 + int(size):
                return
            body = bytes(self.data[end + 1 : end + 1 + int(size)])
            del self.data[: end + 1 + int(size)]
            self.take(int(number), bytes(kind), body)

    def take(self, number: int, kind: bytes, body: bytes) -> None:
        if kind == b"t":
            self.tasks[number] = Task(self, number, body)
            self.tasks[number].begin()
            return
        task = self.tasks.get(number)
        if task is None:
            return
        if kind == b"a":
            task.connections.answered(body)
        elif kind == b"l":
            task.connections.close()
        else:
            task.give_up()

    def say(self, number: int, kind: bytes, body: bytes) -> None:
        self.waiting += b"%d %b %d\n" % (number, kind, len(body)) + body

    def flush(self) -> None:
        view = memoryview(bytes(self.waiting))
        self.waiting.clear()
        while view:
            view = view[os.write(1, view) :]

    # -- processes

    def reap(self, events: int) -> None:
        os.read(self.woken, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            task = self.processes.pop(pid, None)
            if task is not None:
                task.reaped(status)
        self.sweep()

    def sweep(self) -> None:
        """Kill what ended processes of tests have left behind: it has come to this process, and what is below it will."""
        left = [pid for pid in children() if pid not in self.processes]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if not left:
            for task in [one for one in self.tasks.values() if one.over and one.program is None]:
                task.leave()


def around() -> list[list[str]]:
    """What is in the directories where programs leave files."""
    found = []
    for path in ("/", "/tmp", "/var/tmp", os.path.expanduser("~"), "."):
        try:
            found.append(sorted(os.listdir(path)))
        except OSError:
            found.append([])
    return found


def prctl() -> Any:
    """The system call; None where this Python has no ctypes."""
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None


def children() -> list[int]:
    own = os.getpid()
    try:
        with open("/proc/%d/task/%d/children" % (own, own)) as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(pid) == own]


def parent_of(pid: int) -> int:
    try:
        with open("/proc/%d/stat" % pid) as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


class Ends:
    """This process's ends of the pipes of one that runs cases."""

    def __init__(self, stdout: int, stderr: int, record: int, go: int) -> None:
        self.stdout, self.stderr, self.record, self.go = stdout, stderr, record, go
        for fd in (stdout, stderr, record, go):
            os.set_blocking(fd, False)


class Task:
    """One task: its directory, its processes, its verdicts, and the way to its solution.

    Args:
        broker: whose it is.
        number: of it.
        body: a line with the size of the literal that follows, and the content of its files after that. The literal has
            `listen`, a path by which processes that others have begun reach the solution; or `payload` as `cases.run` takes it,
            `limits`, `output_bytes`, `timeout_seconds` (of all of it), `files` (path and size each), `own` (nothing else is
            ever in this sandbox: it runs in its working directory), and `calls` that the solution has already, a list a case.
    """

    def __init__(self, broker: Broker, number: int, body: bytes) -> None:
        size, _, rest = body.partition(b"\n")
        told = eval(rest[: int(size)].decode("ascii"), {"nan": float("nan"), "inf": float("inf")})
        self.loop = broker.loop
        self.broker = broker
        self.number = number
        self.told = told
        self.contents = rest[int(size) :]
        self.payload: dict[str, Any] = told.get("payload", {})
        self.limits: list[float | None] = told.get("limits", [])
        self.token: bytes = self.payload.get("token", "").encode()
        self.most_bytes: int = told.get("output_bytes", 0)
        self.done = 0
        self.lines: list[str] = []
        self.over = False
        self.program: Program | None = None
        self.pid = 0
        self.place: Place | None = None
        self.connections = Connections(self)
        self.clock: Any = None

    def begin(self) -> None:
        if "listen" in self.told:
            listen(self.loop, self.told["listen"], self.connections.accept)
            return
        try:
            self.place = self.broker.place()
            self.place.task = self
            self.write_files()
        except OSError as error:
            self.finish({"error": "the files of the tests cannot be written: %s" % error})
            self.broker.sweep()
            return
        limit = self.told["timeout_seconds"]
        if limit is not None:
            self.clock = self.loop.after(limit, self.late)
        self.spawn()

    @property
    def directory(self) -> str:
        assert self.place is not None
        return os.getcwd() if self.told["own"] else self.place.work

    def write_files(self) -> None:
        assert self.place is not None
        link = [(LINK, self.place.link)] if self.told["own"] else []
        for path, content in [*link, *self.given()]:
            path = os.path.join(self.directory, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)

    def given(self) -> list[tuple[str, bytes]]:
        found, at = [], 0
        for path, size in self.told["files"]:
            found.append((path, self.contents[at : at + size]))
            at += size
        return found

    # -- the process that runs cases

    def spawn(self) -> None:
        """Begin one, from the first case on that is left."""
        pipes = [os.pipe() for _ in range(4)]
        theirs = [pipe[1] for pipe in pipes[:3]] + [pipes[3][0]]
        self.pid = os.fork()
        if self.pid == 0:
            raise Forked(self, theirs)
        for fd in theirs:
            os.close(fd)
        self.broker.processes[self.pid] = self
        self.program = Program(self, Ends(pipes[0][0], pipes[1][0], pipes[2][0], pipes[3][1]), self.done)
        self.go_on()

    def become(self, fds: list[int]) -> int:
        """Be that process: nothing of the broker or of other tasks is open in it."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if self.broker.control is not None:
            self.broker.control(SUBREAPER, 1, 0, 0, 0)
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, ABOVE) for fd in (os.open(os.devnull, os.O_RDWR), *fds)]
        for number, fd in enumerate(moved):
            os.dup2(fd, number)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd >= len(moved):
                try:
                    os.close(fd)
                except OSError:
                    pass
        assert self.place is not None
        if not self.told["own"]:
            os.environ["TMPDIR"] = self.place.temporary
            os.chdir(self.directory)
        sys.modules["aviato_solution"] = self.broker.link
        enter = vars(self.broker.link)["enter"]
        self.payload["crossing"] = enter(self.place.socket, self.place.inseparable, self.told["calls"], self.done == 0)
        return prepared(self.payload)

    def reaped(self, status: int) -> None:
        """That process is gone; others follow as long as each comes to a verdict."""
        program, self.program = self.program, None
        assert program is not None
        verdict = program.ended(status)
        program.close(self.broker.drains)
        if self.over:
            return
        if verdict is not None:
            self.judged(verdict)
        if self.complete:
            return
        if self.done > program.first:
            self.spawn()
        else:
            self.finish({"error": program.stderr.decode("utf-8", "replace")})

    @property
    def complete(self) -> bool:
        return self.done >= len(self.limits)

    def judged(self, verdict: dict[str, Any]) -> None:
        self.done += 1
        self.lines.append(json.dumps(verdict))
        if self.complete:
            self.finish({"cases": self.done})

    def go_on(self) -> None:
        if self.program is not None and self.program.may_go:
            self.program.go()

    def kill(self) -> None:
        for end in (os.killpg, os.kill):
            try:
                end(self.pid, signal.SIGKILL)
            except OSError:
                pass

    # -- the end

    def late(self) -> None:
        self.finish({"late": True})

    def finish(self, last: dict[str, Any]) -> None:
        """Tell what is known; nothing of it runs on."""
        if not self.over:
            self.broker.say(self.number, b"r", "".join(line + "\n" for line in [*self.lines, json.dumps(last)]).encode())
            self.end()

    def give_up(self) -> None:
        self.end()
        self.broker.sweep()

    def end(self) -> None:
        self.over = True
        if self.clock is not None:
            self.clock.cancel()
        if self.program is not None:
            self.kill()

    def leave(self) -> None:
        """Nothing of it runs any more."""
        self.connections.close()
        del self.broker.tasks[self.number]
        if self.place is not None:
            self.place.clean()
        self.broker.say(self.number, b"d", b"%d" % (self.broker.around == around()))
