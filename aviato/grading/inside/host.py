"""Runs in the solution's sandbox: a process for each process of the grader, which loads the solution and answers calls.

Nobody trusts what is here: the solution shares these processes, and may answer whatever it likes. What it answers is data.
Follows `late.py`, `module.py`, `uses.py`, `process_state.py` and `workers.py`. Imports are few, since they are most of what a
short task costs.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import builtins
import marshal
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aviato.grading.inside.calls import as_json, written
    from aviato.grading.inside.held import changes_of, containers_of, contents_of
    from aviato.grading.inside.kinds import made_of_parts
    from aviato.grading.inside.late import leave_packages_for_later
    from aviato.grading.inside.module import FILE, be_in_a_directory, new_module
    from aviato.grading.inside.packing import AGAIN, unpack
    from aviato.grading.inside.process_state import BEGINNING, be_as, reckoning, told_back
    from aviato.grading.inside.raising import BEGINS, LOADED, exception_of, failure, raised, text_of
    from aviato.grading.inside.unseen import be_started_as, count_from_the_code, out_of_the_way
    from aviato.grading.inside.uses import Kept
    from aviato.grading.inside.workers import Workers

ANSWER_BYTES = 4 << 20
READ_BYTES = 1 << 20
OBJECT = b'["h",'
NO_DATA = b",null,null]"
"""How an answer says that it has an object in it, and one that is no data; in a text the quotation marks would be others."""
OWN_FRAMES = 6
"""Between the first frame of a process and that of the code, beyond those of a program that calls it."""


def main(given: Any) -> None:
    """Hear where the solution is, then what is asked of it.

    Args:
        given: standard input, from a line on that says how long what follows is: a literal with `directory`, in which the
            solution's relative paths begin; `code`, the module `solution` if it is not among the files; and `calls` that the
            first process of it will be asked for.
    """
    leave_packages_for_later()
    size = b""
    while not size.endswith(b"\n"):
        size += given.read(1)
    literal = b""
    while len(literal) < int(size):
        literal += given.read(int(size) - len(literal))
    told = eval(literal.decode("ascii"))  # of our own making
    if told["code"] is not None:
        be_in_a_directory(told["code"])
    Host(told).run()


class Host:
    """Passes on what is asked and answered.

    Args:
        told: see `main`.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.children: dict[int, Child] = {}
        self.buffer = b""
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        if told["code"] is not None:
            self.children[1] = Child(1, told)  # The code is loaded while the grader begins.
            for call in told["calls"]:
                self.children[1].ask(call)

    def run(self) -> None:
        """Until nothing more can be asked; then it ends, without what an interpreter does at its end."""
        reading = True
        while reading:
            by_fd = {child.answers: child for child in self.children.values()}
            ready = select.select([0, self.woken, *by_fd], [], [])[0]
            for child in [by_fd[fd] for fd in ready if fd in by_fd]:
                message = child.read()
                if message is not None:
                    tell(child.number, message)
                    child.go_on(message)
            if self.woken in ready:
                os.read(self.woken, 4096)
                for child in list(self.children.values()):
                    if child.gone():
                        del self.children[child.number]
            if 0 in ready:
                reading = self.hear()
        for child in self.children.values():
            child.end()
        os._exit(0)

    def hear(self) -> bool:
        """Read once; False at the end."""
        chunk = os.read(0, READ_BYTES)
        self.buffer += chunk
        while True:
            head, line, rest = self.buffer.partition(b"\n")
            number, size = map(int, head.split()) if line else (0, 1 << 62)
            if len(rest) < size:
                return bool(chunk)
            message, self.buffer = rest[:size], rest[size:]
            if size:
                if number not in self.children:
                    self.children[number] = Child(number, self.told)
                self.children[number].ask(message)
            elif number in self.children:
                self.children.pop(number).end()


class Child:
    """A process with the solution in it."""

    def __init__(self, number: int, told: dict[str, Any]) -> None:
        self.number = number
        self.data = b""
        self.waiting: list[bytes] = []
        """What was asked and not answered; it is told the first."""
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                _signal.set_wakeup_fd(-1)
                _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
                null = os.open(os.devnull, os.O_RDWR)
                for fd in (0, 1, 2):
                    os.dup2(null, fd)
                os.close(self.requests)
                os.close(self.answers)
                requests, answers = out_of_the_way([requests, answers], told["code"] or b"")
                Served(requests, answers, told).run()
            finally:
                os._exit(0)
        os.close(requests)
        os.close(answers)

    def ask(self, message: bytes) -> None:
        self.waiting.append(message)
        if len(self.waiting) == 1:
            self.pass_on()

    def pass_on(self) -> None:
        message = self.waiting[0]
        try:
            write(self.requests, b"%d\n" % len(message) + message)
        except OSError:
            self.lose()

    def read(self) -> bytes | None:
        try:
            chunk = os.read(self.answers, READ_BYTES)
        except OSError:
            chunk = b""
        if not chunk:
            self.end()
            return None  # Its death is reported by its parent's other ear.
        self.data += chunk
        head, line, rest = self.data.partition(b"\n")
        if (not line and len(head) > 32) or len(self.data) > ANSWER_BYTES + 64:
            self.end()
            return None
        if not line or not head.isdigit() or len(rest) < int(head):
            return None
        self.data = b""
        del self.waiting[:1]
        return rest[: int(head)]

    def go_on(self, answer: bytes) -> None:
        """Do what is next, unless an object has come: by then that may be other than it is as it is used."""
        if OBJECT in answer and NO_DATA in answer:
            for _ in self.waiting:
                tell(self.number, AGAIN)
            self.waiting.clear()
        elif self.waiting:
            self.pass_on()

    def gone(self) -> bool:
        """Whether it has ended; whoever waits is told."""
        try:
            found, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return False
        if not found:
            return False
        self.lose("killed by signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else "it ended")
        os.close(self.requests)
        os.close(self.answers)
        return True

    def lose(self, why: str = "it ended") -> None:
        for _ in self.waiting:
            tell(self.number, failure([], "the solution's process did not answer: %s" % why))
        self.waiting.clear()

    def end(self) -> None:
        try:
            os.killpg(self.pid, _signal.SIGKILL)
        except OSError:
            try:
                os.kill(self.pid, _signal.SIGKILL)
            except OSError:
                pass


def tell(number: int, message: bytes) -> None:
    write(1, b"%d %d\n" % (number, len(message)) + message)


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


# -- in the child


class NoAnswer(Exception):
    """There is no value, and no exception that the call has raised."""


class Served:
    """The solution in its process.

    Args:
        requests, answers: descriptors.
        told: see `main`.
    """

    def __init__(self, requests: int, answers: int, told: dict[str, Any]) -> None:
        self.answers = answers
        self.directory = told["directory"]
        self.file = os.fdopen(requests, "rb")
        self.kept = Kept()
        self.workers = Workers(self.answer_to)
        self.modules = LOADED
        BEGINS[:] = [os.path.join(os.path.abspath(self.directory), "")]
        self.broken: BaseException | None = None
        self.known = dict(BEGINNING)
        """What the test's process has of what is set for this one."""
        self.own_depth, self.own_decimal = 0, None
        """What the solution has set as it was loaded."""
        count_from_the_code(OWN_FRAMES)
        if told["code"] is not None:
            self.load_code(told["code"])

    def load_code(self, code: bytes) -> None:
        try:
            be_started_as(FILE)
            exec(compile(code, FILE, "exec", 0, True), new_module(True))
        except BaseException as error:
            self.broken = error
        self.modules[FILE] = sys.modules.get(FILE[: -len(".py")])
        self.own_depth, self.own_decimal = sys.getrecursionlimit(), reckoning()

    def run(self) -> None:
        while True:
            if self.kept.tasks is not None:
                self.kept.tasks.go_on_until(self.file.fileno())
            head = self.file.readline()
            if not head:
                return
            request = marshal.loads(self.file.read(int(head)))
            if request["op"] == "begin":
                answer = self.workers.begin(request["thread"], request["gone"], marshal.loads(request["request"]))
            elif request["op"] == "ended":
                answer = self.workers.ended(request["number"])
            else:
                answer = self.answer_to(request)
            state = told_back(self.known)
            if state:
                answer = b'%b,"state":%b}' % (answer[:-1], written_state(state))
            write(self.answers, b"%d\n" % len(answer) + answer)

    def answer_to(self, request: Any) -> bytes:
        changes: list[Any] = []
        try:
            answer = self.perform(request, changes)
        except NoAnswer as error:
            return failure([], str(error))
        except BaseException as error:
            answer = raised(error)
        if changes:
            answer = b'%b,"changes":%b}' % (answer[:-1], written(changes).encode("ascii"))
        if len(answer) > ANSWER_BYTES:
            return failure([], "the answer has %d bytes; at most %d cross" % (len(answer), ANSWER_BYTES))
        return answer

    def perform(self, request: Any, changes: list[Any]) -> bytes:
        if request["op"] == "set":
            if request["module"] is not None:
                self.load(request["module"])
            state = request["state"]
            if self.own_depth > BEGINNING["depth"]:
                state["depth"] = max(state.get("depth", 0), self.own_depth)
            if state.get("decimal", ()) is None:
                state["decimal"] = self.own_decimal
            be_as(state)
            self.known["depth"] = sys.getrecursionlimit()
            return value_of(None)
        values = unpack(request["values"], self.resolve)
        if request["op"] == "run":
            return value_of(run_program(request["command"], self.directory, **values))
        handle = request["handle"]
        name = request["name"]
        if request["op"] == "use":
            return self.kept.use(handle, name, **values)
        function = self.named(request["module"], name) if handle is None else getattr(self.kept.objects[handle], name)
        if not request.get("gives_back"):
            result = function(*values["args"], **values["kwargs"])
        else:
            held = containers_of(values)
            before = list(map(contents_of, held))
            try:
                result = function(*values["args"], **values["kwargs"])
            finally:
                changes += self.changes_of(held, before)
        try:
            return self.kept.answer(result)
        except Exception as error:
            raise NoAnswer("a value of type %s cannot be graded: %s" % (type(result).__name__, text_of(error))) from None

    def changes_of(self, held: list[Any], before: list[Any]) -> list[Any]:
        try:
            return changes_of(held, before, self.kept.refer)
        except Exception as error:
            raise NoAnswer("an argument is no data any more: %s" % text_of(error)) from None

    def resolve(self, form: Any) -> Any:
        if form[0] == "y":
            return getattr(builtins, form[1])
        if form[0] == "k":
            return made_of_parts(form, self.resolve)
        if form[0] == "x":
            return exception_of(form[1], *[unpack(part, self.resolve) for part in form[2:]])
        return self.kept.objects[form[1]] if form[0] == "h" else self.named(form[1], form[2])

    def load(self, module: str) -> None:
        if self.broken is None and module not in self.modules:
            try:
                self.modules[module] = load(module, self.directory)
            except BaseException as error:
                self.broken = error
            self.own_depth, self.own_decimal = sys.getrecursionlimit(), reckoning()

    def named(self, module: str, name: str) -> Any:
        self.load(module)
        if self.broken is not None:
            raise NoAnswer("%s: %s" % (type(self.broken).__name__, text_of(self.broken)))
        try:
            return getattr(self.modules[module], name)
        except AttributeError:
            raise NameError("name %r is not defined in the solution" % name) from None


def value_of(result: Any) -> bytes:
    return b'{"value":%b}' % as_json(result).encode("ascii")


def written_state(state: dict[str, Any]) -> bytes:
    return b"{%b}" % b",".join(b'"%b":%d' % (name.encode("ascii"), value) for name, value in state.items())


def load(path: str, directory: str) -> Any:
    """The module of a file, as a program in its package's directory would import it."""
    import importlib.util

    path = os.path.join(directory, path)
    folder, name = os.path.split(path)
    parts = [name[: -len(".py")]]
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        parts.insert(0, name)
    # Directories without an `__init__.py` are packages too, counted from the directory.
    sys.path[:0] = [each for each in (folder, directory) if each not in sys.path]
    sys.argv = [path]
    if len(parts) > 1:
        return importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    spec: Any = importlib.util.spec_from_file_location(parts[0], path)
    module = sys.modules[parts[0]] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_program(command: list[str], directory: str, stdin: Any, timeout_seconds: Any) -> Any:
    import subprocess

    given = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else bytes(stdin)
    try:
        done = subprocess.run(command, input=given, capture_output=True, cwd=directory, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError("%s ran longer than %s s" % (command[0], timeout_seconds)) from None
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return code, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
