"""What stands for the solution in the grader's process: names whose calls run elsewhere.

Follows `crossing.py`, `paths.py`, `process_state.py` and `raised.py`.

A name can be called. What comes back is data, or stands for an object (`objects.py`).
"""

from __future__ import annotations

import builtins
import copyreg
import os
import socket
import sys
import time
from _thread import RLock, _local, allocate_lock, get_ident
from _thread import _count as count_of_threads
from itertools import count
from time import sleep

from aviato.grading.inside.paths import INSEPARABLE_PATH, SOCKET_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aviato.grading.inside.crossing import as_bytes, call_of, from_json
    from aviato.grading.inside.held import containers_of, give_back
    from aviato.grading.inside.kinds import is_like_answers, parts_of
    from aviato.grading.inside.objects import forget, is_object, number_of, resolve
    from aviato.grading.inside.packing import AGAIN, form_of_number, pack, plain_of, unpack
    from aviato.grading.inside.process_state import changed_since, taken_over
    from aviato.grading.inside.raised import (
        MADE_HERE,
        MEANT_AS_CLASSES,
        NAMED,
        SolutionFailed,
        SolutionStop,
        attributes_of,
        class_name,
        error_of,
        harmless,
        shown,
    )

CONNECT_SECONDS = 30.0
MAIN_THREAD = get_ident()
GOING = b'{"going":'
LONGEST_PAUSE_SECONDS = 0.008
DATA = (int, float, str, complex, bytes, bytearray, list, tuple, set, frozenset, dict)


class NotSeparable(BaseException):
    """The test asks for what cannot cross between two processes: a matter of the test, whatever the solution is."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        try:
            # What a test prints of it could also have come from the solution; this file could not.
            os.makedirs(os.path.dirname(INSEPARABLE_PATH), exist_ok=True)
            with open(INSEPARABLE_PATH, "w", encoding="utf-8", errors="replace") as file:
                file.write(why)
        except OSError:
            pass


class Remote:
    """A name of the solution, or a method of an object of it."""

    __slots__ = ("_aviato",)

    def __init__(self, module: str, name: str, of: Any = None) -> None:
        object.__setattr__(self, "_aviato", (module, name, of))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, name, of = object.__getattribute__(self, "_aviato")
        if of is None:
            return called(module, name, args, kwargs)
        try:
            return called(module, name, args, kwargs, of)
        except SolutionStop as stop:
            if type(of)._aviato_base != "generator" or name not in ("send", "throw"):
                raise
            raise StopIteration(*stop.args) from None

    def __reduce__(self) -> Any:
        return Remote, object.__getattribute__(self, "_aviato")

    def __getattr__(self, attribute: str) -> Any:
        _, name, of = object.__getattribute__(self, "_aviato")
        if attribute.startswith("_") or of is not None:
            raise AttributeError(attribute)  # what test frameworks look for in whatever they meet
        raise NotSeparable(
            "the test uses %s.%s; of the solution only functions, and objects that they give, can be used. "
            "What the test itself needs, the test must import" % (name, attribute)
        )

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        _, name, of = object.__getattribute__(self, "_aviato")
        if of is not None:
            raise SolutionFailed("%s is a method, and the test uses it other than by calling it" % name)
        raise NotSeparable("the test uses %s of the solution other than by calling it" % name)

    __setattr__ = __delattr__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __len__ = __iter__ = __contains__ = _refuse
    __getitem__ = __setitem__ = __delitem__ = __enter__ = __exit__ = __next__ = __int__ = __float__ = __index__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __and__ = __or__ = __mro_entries__ = _refuse
    __format__ = __instancecheck__ = __subclasscheck__ = _refuse

    __hash__ = object.__hash__

    @property
    def __name__(self) -> str:
        """As test frameworks show it, which else ask what it is as a text."""
        name: str = object.__getattribute__(self, "_aviato")[1]
        return name

    def __repr__(self) -> str:
        return "<%s of the solution>" % object.__getattribute__(self, "_aviato")[1]


class Named(type):
    """A class of the solution that the test names: exceptions of it are of this class, and all else is as with other names."""

    _aviato: tuple[str, str]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_aviato" not in vars(cls):
            return type.__call__(cls, *args, **kwargs)
        module, name = cls._aviato
        return called(module, name, args, kwargs)

    def __getattr__(cls, attribute: str) -> Any:
        if "_aviato" not in vars(cls):
            raise AttributeError(attribute)
        return Remote.__getattr__(Remote(*cls._aviato), attribute)


def heed_classes(names: Any) -> None:
    """Know which names tests may mean as classes, as where they expect an exception."""
    MEANT_AS_CLASSES.update(names)


def stand_in(module: str, name: str) -> Any:
    """What stands for a name of the solution.

    Args:
        module: the file.
        name: in it.
    """
    return named_class(module, name) if name in MEANT_AS_CLASSES else Remote(module, name)


def named_class(module: str, name: str) -> Any:
    """What stands for one that may be meant as a class."""
    if (module, name) not in NAMED:
        own = {"__module__": "solution", MADE_HERE: True, "_aviato": (module, name)}
        NAMED[module, name] = Named(harmless(name) or "Named", (Exception,), own)
    return NAMED[module, name]


copyreg.pickle(Named, lambda cls: (stand_in, cls._aviato))


def called(module: str, name: str, args: Any, kwargs: Any, of: Any = None) -> Any:
    """What a name of the solution gives, or a method of an object of it."""
    given = {"args": args, "kwargs": kwargs}
    values = pack(given, refer if of is None else refer_chosen, 0, True)
    held = containers_of(given, crosses_as) if name in CHANGING else None
    request = call_of(module, name, values, None if of is None else number_of(of), bool(held))
    return value_of(answer_to(request, module=module, held=held))


CHANGING: set[str] = set()
"""Names of the solution, and of methods, after whose calls a test looks at what it has given."""


def crosses_as(value: Any) -> Any:
    """The class that a value has at the other end, if it is one of plain data: see `form_of`."""
    kind = type(value)
    if kind in (list, tuple, dict, set, bytearray):
        return kind
    known = next((each for each in DATA if isinstance(value, each)), None)
    return None if known is None or is_object(value) or parts_of(value) is not None else known


def heed_changes(names: Any) -> None:
    """Know those names: what their calls do to arguments is done to the test's own."""
    CHANGING.update(names)


def run(command: Any, stdin: Any = "", timeout_seconds: Any = None) -> Any:
    """Run a program beside the solution's files: `(returncode, stdout, stderr)`, as text."""
    values = {"stdin": stdin, "timeout_seconds": timeout_seconds}
    request = {"op": "run", "command": [str(part) for part in command], "values": pack(values, refer)}
    answer = value_of(answer_to(as_bytes(request)))
    if type(answer) is tuple and [type(item) for item in answer] == [int, str, str]:
        return answer
    raise SolutionFailed("the solution's side did not say how the program ended")


def answer_to(request: bytes, spend: Any = len, module: Any = None, in_loop: bool = False, held: Any = None) -> dict[str, Any]:
    """Have something done by the solution.

    Args:
        request: what.
        spend: is told how many bytes the answer has.
        module: of the solution, that is loaded before what the test has set for its process is set there too.
        in_loop: whether it is of the solution's event loop, of which there is one.
        held: the containers among the arguments of a call that change as they do there; None: none do.
    """
    TIMES_ASKED[0] += 1
    message = connection().exchange(request, module) if in_loop or is_alone() else message_of_thread(request, module)
    spend(len(message)) if spend is not len else None
    answer: dict[str, Any] = read(message)
    ANSWERED[:] = [True]
    for one in CROSSINGS:
        one.called()
    if "state" in answer:
        connection().known.update(taken_over(answer["state"]))
    if held and "changes" in answer:
        try:
            give_back(held, answer["changes"], resolve)
        except Exception as wrong:
            raise SolutionFailed("what came from the solution is no data: %s" % shown(str(wrong))) from None
    error = answer.get("error")
    if error is not None:
        raise error_of(error, sys.modules)
    return answer


class Thread:
    """One of the test, as long as it lives: the numbers of the system come again."""

    def __init__(self) -> None:
        self.number = next(THREAD_NUMBERS)

    def __del__(self) -> None:
        THREADS_GONE.append(self.number)

    @staticmethod
    def here() -> Thread:
        found = getattr(OF_THREAD, "thread", None)
        if found is None:
            found = OF_THREAD.thread = Thread()
        return found


OF_THREAD: Any = _local()
THREAD_NUMBERS = count()
THREADS_GONE: list[int] = []


def is_alone() -> bool:
    """Whether the test has no other thread: else a call that waits for what another one brings about would wait for ever."""
    return get_ident() == MAIN_THREAD and not count_of_threads()


def message_of_thread(request: bytes, module: Any) -> bytes:
    """The answer to what one of several threads asks, while others ask too."""
    seconds, thread = 0.001, Thread.here()
    gone = [THREADS_GONE.pop() for _ in list(THREADS_GONE)]
    begin = as_bytes({"op": "begin", "thread": thread.number, "gone": gone, "request": request})
    message = connection().exchange(begin, module)
    while message.startswith(GOING):
        sleep(seconds)
        seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)
        message = connection().exchange(as_bytes({"op": "ended", "number": read(message)["going"]}), module)
    return message


def value_of(answer: dict[str, Any]) -> Any:
    """The data that came."""
    try:
        return unpack(answer["value"], resolve)
    except Exception as error:
        raise SolutionFailed("what came from the solution is no data: %s" % shown(str(error))) from None


def refer(value: Any) -> Any:
    """The form of what is no plain data, for `pack`.

    Raises:
        NotSeparable: it cannot cross.
    """
    return form_of(value, refer, NotSeparable)


def refer_chosen(value: Any) -> Any:
    """The same for what is given to an object: it was the solution that gave one, and where it had none the test would fail.

    Raises:
        SolutionFailed: it cannot cross.
    """
    return form_of(value, refer_chosen, SolutionFailed)


def form_of(value: Any, again: Any, wrong: Any) -> Any:
    if is_object(value):
        return ["h", number_of(value)]
    if isinstance(value, type) and hasattr(value, "_aviato_ahead"):
        raise SolutionFailed("the test gives the class of an object that the code gave, and only data can cross")
    if type(value) is Named and "_aviato" in vars(value):
        return ["n", *value._aviato]
    if type(value) is Remote:
        module, name, of = object.__getattribute__(value, "_aviato")
        if of is None:
            return ["n", module, name]
        raise SolutionFailed("%s is a method, and the test uses it other than by calling it" % name)
    name = getattr(value, "__name__", None)
    if type(name) is str and vars(builtins).get(name) is value:
        return ["y", name]
    number = form_of_number(value)
    if number is not None:
        return number
    parts = parts_of(value)
    if parts is not None:
        return ["k", *[pack(part, again, 1, True) for part in parts]]
    if isinstance(value, BaseException) and (kind := class_name(value)) is not None:
        return ["x", kind, pack(value.args, again, 1, True), pack(attributes_of(value), again, 1, True)]
    plain = plain_of(value)
    if plain is not None:
        return pack(plain, again, 1, True)
    if isinstance(value, DATA):
        return pack(value, again, 1)
    if ANSWERED and is_like_answers(value):
        # A number that is too large, such as an answer was, or what a test has made of one: no solution shall bring about that
        # its tests cannot be graded.
        wrong = SolutionFailed
    raise wrong("a value of type %s cannot be given to the solution: only data can" % type(value).__name__)


class Connection:
    """To the solution's process that belongs to this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.socket = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                self.socket.connect(SOCKET_PATH)
                break
            except FileNotFoundError:
                if time.monotonic() > deadline:
                    raise SolutionFailed("the solution's side did not come up") from None
                time.sleep(0.002)
            except OSError:
                raise SolutionFailed("the solution's process is gone") from None
        self.file = self.socket.makefile("rb")
        self.lock = allocate_lock()
        self.asking = 0
        """The thread that asks."""
        self.known: dict[str, Any] = {}
        """What that process has of what is set for this one."""
        self.ahead: list[bytes] = []
        for one in CROSSINGS:
            self.ahead = one.ahead(self)

    def exchange(self, request: bytes, module: Any) -> bytes:
        if self.asking == get_ident():
            raise NotSeparable("the test calls the solution in the middle of another call of the same thread")
        with self.lock:
            self.asking = get_ident()
            try:
                return self.exchanged(request, module)
            finally:
                self.asking = 0

    def exchanged(self, request: bytes, module: Any) -> bytes:
        changed = changed_since(self.known)
        if changed:
            self.asked(as_bytes({"op": "set", "module": module, "state": changed}))
        return self.asked(request)

    def asked(self, request: bytes) -> bytes:
        answer = b""
        try:
            was_asked = self.is_asked(request)
            if not was_asked:
                self.socket.sendall(framed([request]))
            answer = self.read()
            if was_asked and answer == AGAIN:
                self.is_asked(b"")  # So it is with all others that were asked ahead.
                self.socket.sendall(framed([request]))
                answer = self.read()
        except OSError as error:
            if is_of_handler(error):
                self.abandon()
                raise
        except BaseException:
            self.abandon()
            raise
        if not answer:
            raise SolutionFailed("the solution's process is gone")
        return answer

    def abandon(self) -> None:
        """Have another process next time: what comes here from now on is an answer that nobody waits for any more."""
        self.pid = 0
        self.socket.close()

    def is_asked(self, request: bytes) -> bool:
        """Whether this was asked ahead. What was asked instead is answered first, and of no use."""
        if self.ahead and self.ahead[0] == request:
            del self.ahead[0]
            return True
        for _ in self.ahead:
            self.read()
        self.ahead = []
        return False

    def read(self) -> bytes:
        """The next answer; empty if none comes any more."""
        head = self.file.readline(32)
        return self.file.read(int(head)) if head.strip().isdigit() else b""

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def is_of_handler(error: BaseException) -> bool:
    """Whether it comes from a test's signal handler, and not from the connection."""
    trace = error.__traceback__ and error.__traceback__.tb_next
    own = (socket.__file__, is_of_handler.__code__.co_filename)
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return trace is not None


CONNECTIONS: list[Connection] = []
ONE_AT_A_TIME = [RLock()]


def connection() -> Connection:
    if not CONNECTIONS or CONNECTIONS[0].pid != os.getpid():
        with ONE_AT_A_TIME[0]:
            if not CONNECTIONS or CONNECTIONS[0].pid != os.getpid():
                made = Connection()
                forget()
                CONNECTIONS[:] = [made]
    return CONNECTIONS[0]


def may_connect_after_a_fork() -> None:
    """The lock may be that of a thread which the child has not."""
    ONE_AT_A_TIME[0] = RLock()


os.register_at_fork(after_in_child=may_connect_after_a_fork)


def anew() -> None:
    """Have another process of the solution from now on, in which nothing has been called."""
    for one in CONNECTIONS:
        if one.pid in (0, os.getpid()):
            one.close()
    CONNECTIONS.clear()


def framed(requests: list[bytes]) -> bytes:
    return b"".join(b"%d\n%b" % (len(request), request) for request in requests)


class Crossing:
    """What test cases do with the solution, also in processes that they have forked.

    Args:
        calls: of each case that calls the solution in a way that is known before it has run, up to the first that does not.
        given: whether the solution has had all of them before the first case.
    """

    def __init__(self, calls: list[list[bytes]], given: bool) -> None:
        import mmap

        self._called = mmap.mmap(-1, 1)
        self._pid = os.getpid()
        self._calls = calls
        self._given = given
        self._number = 0

    def begin(self, number: int) -> None:
        """A case begins, the first is 0."""
        self._called[0] = 0
        self._number = number

    def ahead(self, new: Connection) -> list[bytes]:
        """What this process of the solution is asked from now on, if that is known, or was asked already."""
        given, self._given = self._given, False
        if self._pid != os.getpid():
            return []
        calls = [request for each in self._calls[self._number :] for request in each]
        if not given:
            new.socket.sendall(framed(calls))
        return calls

    def called(self) -> None:
        """A call has been answered."""
        self._called[0] = 1

    def calls(self) -> bool:
        """Whether one has in this case."""
        return bool(self._called[0])

    def inseparable(self) -> str:
        """What was asked for that cannot cross; empty if nothing was."""
        try:
            with open(INSEPARABLE_PATH, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""


CROSSINGS: list[Crossing] = []
TIMES_ASKED = [0]
"""How often anything was asked of the solution."""
ANSWERED: list[bool] = []
"""Not empty once the solution has answered anything."""


def enter(socket_path: str, inseparable_path: str, calls: Any = (), given: bool = False) -> Crossing:
    """Be a process that runs test cases, with these files; the rest as of `Crossing`."""
    global SOCKET_PATH, INSEPARABLE_PATH
    SOCKET_PATH, INSEPARABLE_PATH = socket_path, inseparable_path
    CROSSINGS[:] = [Crossing(list(calls), given)]
    return CROSSINGS[0]


def read(text: bytes) -> Any:
    try:
        found = from_json(text.decode("ascii"))
    except (ValueError, RecursionError):
        found = None
    if type(found) is not dict:
        raise SolutionFailed("what came from the solution cannot be read")
    return found
