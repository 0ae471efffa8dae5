"""Runs in the solution's sandbox: a process for each process of the grader, which loads the solution and answers calls.

Nobody trusts what is here: the solution shares these processes, and may answer whatever it likes. What it answers is data.
"""

from __future__ import annotations

import builtins
import os
import select
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aviato.grading.inside.crossing import dumps, from_json, loads, to_json
    from aviato.grading.inside.packing import no_data

ANSWER_BYTES = 4 << 20


def main() -> None:
    directory = sys.argv[1]
    children: dict[int, Child] = {}
    listening: list[Any]
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    buffer = b""
    while True:
        listening = [0, woken, *children.values()]
        ready = select.select(listening, [], [])[0]
        for child in [one for one in ready if isinstance(one, Child)]:
            message = child.read()
            if message is not None:
                tell(child.number, message)
        if woken in ready:
            os.read(woken, 4096)
            for child in list(children.values()):
                if child.gone():
                    del children[child.number]
        if 0 in ready:
            chunk = os.read(0, 1 << 20)
            if not chunk:
                break
            buffer += chunk
            while True:
                head, line, rest = buffer.partition(b"\n")
                number, size = map(int, head.split()) if line else (0, 1 << 62)
                if len(rest) < size:
                    break
                message, buffer = rest[:size], rest[size:]
                if not size:
                    if number in children:
                        children.pop(number).end()
                    continue
                if number not in children:
                    children[number] = Child(number, directory)
                children[number].ask(message)
    for child in children.values():
        child.end()


class Child:
    """A process with the solution in it."""

    def __init__(self, number: int, directory: str) -> None:
        self.number = number
        self.data = b""
        self.waiting = False
        self.socket, other = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                null = os.open(os.devnull, os.O_RDWR)
                for fd in (0, 1, 2):
                    os.dup2(null, fd)
                self.socket.close()
                serve(other, directory)
            finally:
                os._exit(0)
        other.close()

    def fileno(self) -> int:
        return self.socket.fileno()

    def ask(self, message: bytes) -> None:
        self.waiting = True
        try:
            self.socket.sendall(b"%d\n" % len(message) + message)
        except OSError:
            self.lose()

    def read(self) -> bytes | None:
        try:
            chunk = self.socket.recv(1 << 20)
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
        self.data, self.waiting = b"", False
        return rest[: int(head)]

    def gone(self) -> bool:
        """Whether it has ended; whoever waits is told."""
        try:
            found, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return False
        if not found:
            return False
        self.lose("killed by signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else "it ended")
        self.socket.close()
        return True

    def lose(self, why: str = "it ended") -> None:
        if self.waiting:
            self.waiting = False
            tell(self.number, failure(["RuntimeError"], "the solution's process did not answer: %s" % why))

    def end(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except OSError:
                pass


def tell(number: int, message: bytes) -> None:
    view = memoryview(b"%d %d\n" % (number, len(message)) + message)
    while view:
        view = view[os.write(1, view) :]


def failure(names: list[str], message: str) -> bytes:
    return to_json({"error": [names, message[:4000]]}).encode("ascii")


# -- in the child


def serve(sock: socket.socket, directory: str) -> None:
    file = sock.makefile("rb")
    kept: list[Any] = []
    modules: dict[str, Any] = {}
    while True:
        head = file.readline()
        if not head:
            return
        request = from_json(file.read(int(head)).decode("ascii"))
        try:
            answer = to_json(perform(request, kept, modules, directory)).encode("ascii")
            if len(answer) > ANSWER_BYTES:
                answer = failure(["ValueError"], "the answer has %d bytes; at most %d cross" % (len(answer), ANSWER_BYTES))
        except BaseException as error:
            answer = failure([kind.__name__ for kind in type(error).__mro__], text_of(error))
        sock.sendall(b"%d\n" % len(answer) + answer)


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return type(error).__name__


def perform(request: Any, kept: list[Any], modules: dict[str, Any], directory: str) -> Any:
    def resolve(form: Any) -> Any:
        if form[0] == "y":
            return getattr(builtins, form[1])
        return kept[form[1]] if form[0] == "h" else named(form[1], form[2])

    def named(module: str, name: str) -> Any:
        if module not in modules:
            modules[module] = load(module, directory)
        try:
            return getattr(modules[module], name)
        except AttributeError:
            raise NameError("name %r is not defined in the solution" % name) from None

    values = loads(request["values"].encode("ascii"), resolve)
    if request["op"] == "run":
        return {"value": dumps(run_program(request["command"], directory, **values), no_data).decode("ascii")}
    handle = request["handle"]
    function = named(request["module"], request["name"]) if handle is None else getattr(kept[handle], request["name"])
    result = function(*values["args"], **values["kwargs"])
    try:
        return {"value": dumps(result, no_data).decode("ascii")}
    except TypeError:
        if not request["keep"]:
            raise
    kept.append(result)
    return {"handle": len(kept) - 1}


def load(path: str, directory: str) -> Any:
    """The module of a file, as a program in its package's directory would import it."""
    import importlib.util

    path = os.path.join(directory, path)
    folder, name = os.path.split(path)
    parts = [name[: -len(".py")]]
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        parts.insert(0, name)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.argv = [path]
    if len(parts) > 1:
        return importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    spec: Any = importlib.util.spec_from_file_location(parts[0], path)
    module = sys.modules[parts[0]] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_program(command: list[str], directory: str, stdin: Any, timeout_seconds: Any) -> Any:
    import subprocess

    given = stdin.encode() if isinstance(stdin, str) else bytes(stdin)
    try:
        done = subprocess.run(command, input=given, capture_output=True, cwd=directory, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError("%s ran longer than %s s" % (command[0], timeout_seconds)) from None
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return code, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
