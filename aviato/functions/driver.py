"""What runs inside: it loads one call, makes it, and leaves its outcome in a file.

It is sent as text and run by the image's Python: 3.8 or newer, standard library only. The outcome is a line of JSON, and
behind it the value. Only a process that was not forked from this one by the function writes it.
"""

import json
import os
import pickle
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

OWN_FILE = "<aviato>"
OLDEST = (3, 8)
OWN: "dict[str, Any]" = {}
MOST_MESSAGE = 8_000
MOST_TRACEBACK = 64_000


class Unserializable(Exception):
    """The result cannot be sent."""


def main(stream: "BinaryIO", result_path: str) -> None:
    """Make the call that a file holds, and end the process."""
    owner = os.getpid()
    call, arguments = pickle.load(stream), pickle.load(stream)
    stream.close()
    hidden = {OWN_FILE, call.get("cloudpickle_file")}
    head: dict[str, Any] = {}
    body, code = b"", 0
    try:
        head, body, code = make(call, arguments, head)
    except SystemExit as error:
        status = error.code
        code = 0 if status is None else status & 0xFF if isinstance(status, int) else 1
        if status is not None and not isinstance(status, int):
            say(text_of(status))
        head = {"outcome": "exit", "type": "SystemExit", "message": text_of(error), "traceback": trace(error, hidden)}
    except BaseException as error:
        head = {"outcome": head["outcome"], "type": type(error).__name__, "message": text_of(error)}
        head["traceback"], code = trace(error, hidden), 1
    if os.getpid() == owner:
        leave(result_path, head, body)
    keep_output()
    # Not by returning: threads that the function left behind, and what runs at exit, must not hold up its result.
    os._exit(code)


def make(call: "dict[str, Any]", arguments: "dict[str, Any]", head: "dict[str, Any]") -> "tuple[dict[str, Any], bytes, int]":
    """Load the function, call it, and encode what it returns; `head` says meanwhile what a failure would be."""
    head["outcome"] = "unloadable"
    form = choose(call)
    if form is None:
        version = "{} {}.{}".format(sys.implementation.name, *sys.version_info[:2])
        return {"outcome": "version", "message": version, "too_old": sys.version_info < OLDEST}, b"", 1
    show_lines(call["lines"])
    if form == "pickled":
        provide_cloudpickle(call["cloudpickle"])
        for name in call["modules"]:
            own_module(name, {})
        function = pickle.loads(call["pickled"])
    else:
        inside: dict[str, Any] = {"__name__": "aviato_rebuild"}
        exec(compile(call["rebuild"], OWN_FILE, "exec"), inside)
        source = inside["Source"]()
        function = source.load(call["source"])
    if "json" in arguments:
        args, kwargs = json.loads(arguments["json"])
    else:
        packed = arguments[form]
        args, kwargs = pickle.loads(packed) if form == "pickled" else source.load(packed)
    head["outcome"] = "exception"
    value = function(*args, **kwargs)
    try:
        encode = to_json if call["serialization"] == "json" else to_pickle
        body = encode(value, set(map(tuple, call["result_types"])))
    except Exception as error:
        what = "it holds" if isinstance(error, Unserializable) else type(error).__name__ + ":"
        return {"outcome": "unserializable", "type": kind_of(value), "message": f"{what} {text_of(error)}"}, b"", 1
    return {"outcome": "value"}, body, 0


def choose(call: "dict[str, Any]") -> "str | None":
    """Which form of the function this Python can load."""
    from importlib.util import MAGIC_NUMBER

    same = call["python"] == (sys.implementation.name, MAGIC_NUMBER)
    if sys.version_info < OLDEST:
        return None
    return "pickled" if same and "pickled" in call else "source" if "source" in call else None


def leave(path: str, head: "dict[str, Any]", body: bytes) -> None:
    """Write the outcome, whole or not at all, whatever the function did to its descriptors."""
    part = path + ".part"
    hold_standard_streams()
    with open(part, "wb") as file:
        file.write(json.dumps(head).encode() + b"\n")
        file.write(body)
    os.replace(part, path)


def hold_standard_streams() -> None:
    """Let what is opened next have none of the numbers that threads and children of the function may still print to."""
    import errno

    try:
        fd = 0
        while fd <= 2:
            fd = os.open(os.devnull, os.O_RDWR)
        os.close(fd)
    except OSError as error:
        if error.errno == errno.EMFILE:
            # The function has used all of them up. What it opened ends with it, and nobody prints to standard input.
            os.closerange(3, 16)
            os.close(0)


def keep_output() -> None:
    """Flush what the function has printed, as far as that can be done: its streams may be closed, replaced or none at all."""
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        try:
            getattr(sys, name).flush()
        except BaseException:  # Of a stream of the function's own, anything.
            continue


def say(text: str) -> None:
    """Print a line to standard error, if there is one."""
    try:
        sys.stderr.write(f"{text}\n")
    except BaseException:
        return


# -- results


def to_json(value: "Any", types: "set[Any]") -> bytes:
    """Encode a result as JSON."""
    return json.dumps(value).encode()


def to_pickle(value: "Any", types: "set[Any]") -> bytes:
    """Encode a result as a pickle of data: nothing in it needs a call but the few types that the other side knows."""
    import io

    markers = marker_module()
    file = io.BytesIO()

    class Results(pickle.Pickler):
        def reducer_override(self, obj: "Any") -> "Any":
            return reduced(obj, types, markers)

    Results(file, 4).dump(value)
    return file.getvalue()


def marker_module() -> "Any":
    """Names that the pickle may refer to; the other side never imports them."""
    name = "aviato_result"
    module = types.ModuleType(name)
    for marker in ("dataclass", "enum"):
        setattr(module, marker, type(marker, (), {"__module__": name}))
    sys.modules[name] = module
    return module


def reduced(obj: "Any", allowed: "set[Any]", markers: "Any") -> "Any":
    """How a value that is no built-in one is written."""
    kind = type(obj)
    if kind is type and (obj is complex or obj.__module__ in (markers.__name__, "datetime", "decimal")):
        return NotImplemented  # what the types below are built by
    key = (kind.__module__, kind.__qualname__)
    if key in allowed:
        import dataclasses
        import enum

        if isinstance(obj, enum.Enum):
            return markers.enum, (*key, obj.name if obj.name in kind.__members__ else obj.value)
        return markers.dataclass, (*key, {one.name: getattr(obj, one.name) for one in dataclasses.fields(obj)})
    if kind is complex:
        return NotImplemented
    if kind.__module__ == "decimal" and kind.__name__ == "Decimal":
        return kind, (str(obj),)
    if kind.__module__ == "datetime":
        fields = DATETIME.get(kind.__name__)
        if kind.__name__ == "timezone":
            return kind, obj.__getinitargs__()
        if fields is not None:
            return kind, tuple(getattr(obj, name) for name in fields)
    if isinstance(obj, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
        raise Unserializable("a {}, {!r}".format(kind.__name__, getattr(obj, "__name__", "")))
    raise Unserializable(f"a value of type {kind_of(obj)}")


_TIME = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")
DATETIME = {
    "date": ("year", "month", "day"),
    "time": _TIME,
    "datetime": ("year", "month", "day", *_TIME),
    "timedelta": ("days", "seconds", "microseconds"),
}


# -- exceptions


def kind_of(value: "Any") -> str:
    """The name of a value's type, with its module where that says something."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__qualname__


def text_of(error: "Any") -> str:
    """What an exception says, or the status of an exit, whatever its `__str__` does."""
    try:
        return str(error)[:MOST_MESSAGE]
    except BaseException:
        return "<no text: its __str__ failed>"


def trace(error: BaseException, hidden: "set[Any]") -> str:
    """The traceback with the user's frames only, causes and contexts included."""
    import traceback

    try:
        whole = traceback.TracebackException.from_exception(error)
        seen = set()
        pending: list[Any] = [whole]
        while pending:
            one = pending.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            one.stack[:] = [frame for frame in one.stack if frame.filename not in hidden]
            pending += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]
        text = "".join(whole.format())
    except BaseException:
        return ""
    half = MOST_TRACEBACK // 2
    return text if len(text) <= MOST_TRACEBACK else text[:half] + "\n[…]\n" + text[-half:]


def show_lines(files: "dict[str, Any]") -> None:
    """Give tracebacks the source lines of the functions that came along; their files are not here."""
    import io
    import linecache

    for name, pieces in files.items():
        if os.path.exists(name):
            continue
        lines: list[str] = []
        for first, text in sorted(pieces):
            lines += ["\n"] * (first - 1 - len(lines))
            # As Python reads a file: a form feed or U+2028 ends no line.
            lines[first - 1 :] = io.StringIO(text, None).readlines()
        linecache.cache[name] = (1, None, lines, name)


# -- loading


def own_module(name: str, content: "dict[str, Any]") -> "Any":
    """A module of the caller's, as far as it came along."""
    import importlib.util

    module = OWN.get(name)
    if module is None:
        module = OWN[name] = types.ModuleType(name)
        try:
            here = name in sys.modules or importlib.util.find_spec(name) is not None
        except Exception:
            here = False
        if not here:
            # Decorators such as `dataclass` look their module up.
            sys.modules[name] = module
    module.__dict__.update(content)
    return module


def provide_cloudpickle(code: bytes) -> None:
    """Make the caller's cloudpickle importable; it needs the standard library only."""
    import marshal

    package, module = types.ModuleType("cloudpickle"), types.ModuleType("cloudpickle.cloudpickle")
    package.__path__ = []
    package.cloudpickle = module  # type: ignore[attr-defined]
    sys.modules.update({package.__name__: package, module.__name__: module})
    exec(marshal.loads(code), module.__dict__)
    module.dynamic_subimport = own_module  # type: ignore[attr-defined]
    for name in ("dumps", "dump", "loads", "load", "Pickler", "CloudPickler"):
        setattr(package, name, getattr(module, name))
