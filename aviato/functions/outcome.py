"""What came of a call: the file that the driver leaves, believed in nothing.

Whatever runs inside can write that file. So its words end up in errors as text and its value is read as data.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoError, FunctionSerializationError, SandboxExecutionError
from aviato.functions import reading
from aviato.functions.options import shown
from aviato.grading.remedies import with_remedy
from aviato.options import Serialization

if TYPE_CHECKING:
    import types

    from aviato.functions.options import FunctionOptions
    from aviato.results import ProcessResult

TOO_LARGE = b"too large"
MOST_HEAD = 1 << 20
MOST_NAME = 200
MOST_TEXT = 100_000


class Outcome:
    """Reads an outcome.

    Args:
        function: that was called.
        options: of its decorator.
        result: how the command ended.
        sandbox_id: where.
    """

    def __init__(
        self, function: types.FunctionType, options: FunctionOptions, result: ProcessResult | None, sandbox_id: str
    ) -> None:
        self._function = function
        self._name = shown(function)
        self._options = options
        self._result = result
        self._sandbox_id = sandbox_id

    def value(self, content: bytes | None) -> Any:
        """What the function returned.

        Raises:
            SandboxExecutionError: it raised, exited or crashed.
            FunctionSerializationError: there is a value that cannot be had.
        """
        returncode = None if self._result is None else self._result.returncode
        if content is TOO_LARGE:
            raise FunctionSerializationError(f"the result of {self._name} is too large: {_LARGEST}")
        head, body = self._parts(content)
        outcome = head.get("outcome")
        if outcome == "value" and returncode == 0:
            return self._decode(body)
        if outcome == "exception":
            raise self._raised(head, "raised")
        if outcome == "unloadable":
            raise self._raised(head, "could not be loaded inside, which raised")
        if outcome == "exit":
            told = _line(head.get("message"))
            raise self._failed(f"{self._name} called sys.exit({told}) and returned nothing", head, "exit")
        if outcome == "unserializable":
            kind, why = _line(head.get("type")), _line(head.get("message"))
            raise FunctionSerializationError(f"the result of {self._name}, a {kind}, cannot be sent: {why}{self._remedy(kind)}")
        if outcome == "version":
            raise self._no_form(_line(head.get("message")), head.get("too_old") is True)
        raise self._failed(f"{self._name} returned nothing: {self._how_it_ended()}", {}, "no_result")

    def _parts(self, content: bytes | None) -> tuple[dict[str, Any], bytes]:
        if content is None:
            return {}, b""
        end = content.find(b"\n", 0, MOST_HEAD)
        try:
            head = json.loads(content[:end]) if end >= 0 else None
        except (ValueError, RecursionError):
            head = None
        return (head, content[end + 1 :]) if isinstance(head, dict) else ({}, b"")

    def _decode(self, body: bytes) -> Any:
        try:
            if self._options.serialization is Serialization.JSON:
                return _from_json(body)
            types = {(kind.__module__, kind.__qualname__): kind for kind in self._options.result_types}
            return reading.loads(body, types)
        except (reading.Refused, ValueError, RecursionError, MemoryError) as error:
            raise FunctionSerializationError(f"the result of {self._name} was refused: {str(error)[:500]}") from None

    def _raised(self, head: dict[str, Any], what: str) -> AviatoError:
        kind, message, trace = _line(head.get("type")), _text(head.get("message")), _text(head.get("traceback"))
        said = with_remedy(f"{self._name} {what} {kind}: {message}" if message else f"{self._name} {what} {kind}")
        return self._failed(f"{said}\n\n{trace.rstrip()}" if trace else said, head, "exception")

    def _failed(self, message: str, head: dict[str, Any], reason: str) -> AviatoError:
        kind = head.get("type")
        return SandboxExecutionError(
            message,
            exec_result=self._result,
            exception_type=None if kind is None else _line(kind),
            exception_message=None if kind is None else _text(head.get("message")),
            sandbox_id=self._sandbox_id,
            started=True,
            reason=reason,
        )

    def _how_it_ended(self) -> str:
        result = self._result
        if result is None:
            return "its end is not known"
        if result.oom_killed:
            return "the sandbox's memory limit killed it"
        if result.signal is not None or result.returncode > 128:
            return f"signal {result.signal or result.returncode - 128} ended its process{_last_line(result)}"
        if result.returncode == 127 and "python3" in result.stderr:
            return "the image has no python3"
        return f"its process ended with returncode {result.returncode} and left no result{_last_line(result)}"

    def _no_form(self, version: str, too_old: bool) -> FunctionSerializationError:
        from aviato.functions.packing import why_no_source

        why = "functions need 3.8 or newer" if too_old else why_no_source(self._function)
        return FunctionSerializationError(f"{self._name} cannot be called by the image's Python ({version}): {why}")

    def _remedy(self, kind: str) -> str:
        if kind in _UNFINISHED:
            return f"; {_UNFINISHED[kind]}"
        if self._options.serialization is Serialization.JSON:
            return "; return what JSON has, or use serialization=Serialization.PICKLE"
        return "; return built-in data, or name its dataclass or enum in result_types="


_UNFINISHED = {"coroutine": "run it inside with asyncio.run()", "generator": "return a list of what it yields"}
_LARGEST = f"more than 64 MiB or {reading.MOST_STEPS:,} items; write it to a file of a sandbox"


def _from_json(body: bytes) -> Any:
    # A few bytes of JSON make a list of dozens.
    if body.count(b",") + body.count(b"[") + body.count(b"{") > reading.MOST_STEPS:
        raise ValueError(f"it is too large: {_LARGEST}")
    return json.loads(body)


def _last_line(result: ProcessResult) -> str:
    lines = result.stderr.strip().splitlines()
    return f": {_line(lines[-1])}" if lines else ""


def _line(value: Any) -> str:
    return " ".join(_text(value)[:MOST_NAME].split())


def _text(value: Any) -> str:
    return value[:MOST_TEXT] if isinstance(value, str) else ""
