"""One call of a remote function: a sandbox, a file in, a command, a file out."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from aviato.core.files import read_chunks, write_file
from aviato.exceptions import AviatoError, SandboxCommandTimeoutError, SandboxFileError
from aviato.functions import packing
from aviato.functions.options import shown
from aviato.functions.outcome import TOO_LARGE, Outcome
from aviato.log import logger

if TYPE_CHECKING:
    import types

    from aviato.api.session import Session
    from aviato.calls.sandbox_state import SandboxState
    from aviato.core.lifecycle import SandboxHandle
    from aviato.functions.options import FunctionOptions
    from aviato.results import ProcessResult

RESULT_BYTES = 64 << 20
"""The largest outcome that is read; more belongs into a file of a sandbox."""

_IN_A_THREAD_BYTES = 64 << 10
_BOOT = """\
import sys
file = open(sys.argv[1], "rb")
program = compile(file.read(int(file.readline())), "<aviato>", "exec")
names = {"__name__": "aviato_driver"}
exec(program, names)
names["main"](file, sys.argv[2])
"""


def prepare(session: Session, function: Any, options: FunctionOptions, calls: list[tuple[Any, Any]]) -> list[Call]:
    """Pack all calls, then make their sandboxes; what cannot be packed leaves nothing started."""
    session._enter_process()
    if not calls:
        return []
    forms = packing.forms_for(function, options.image)
    packed = [packing.pack_arguments(function, args, kwargs, forms, options.serialization) for args, kwargs in calls]
    common = packing.pack_function(function, forms, options.serialization, options.result_types)
    return [Call(session, function, options, (common, own)) for own in packed]


class Call:
    """A call, with a sandbox of its own."""

    def __init__(
        self, session: Session, function: types.FunctionType, options: FunctionOptions, parts: tuple[bytes, ...]
    ) -> None:
        # Its first use starts it: a call that is cancelled before its turn leaves nothing to stop.
        sandbox = session.sandbox(start=False, **options.sandbox)
        self.sandbox_id = sandbox.sandbox_id
        self.exec_result: ProcessResult | None = None
        self._session = session
        self._sandbox = sandbox
        self._function = function
        self._options = options
        self._parts = parts
        self._begun = False

    @property
    def state(self) -> SandboxState:
        """Of its sandbox."""
        return self._sandbox._state

    async def run(self) -> Any:
        """What the function returns. Whatever comes of it, the sandbox is stopped at the end."""
        self._begun = True
        try:
            found = await self._outcome()
        finally:
            await self._stop()
        outcome = Outcome(self._function, self._options, self.exec_result, self.sandbox_id)
        if found is not None and len(found) > _IN_A_THREAD_BYTES:
            return await asyncio.to_thread(outcome.value, found)
        return outcome.value(found)

    def over(self) -> None:
        """Called when it has ended; one that was cancelled before its first step never got to `run`."""
        if not self._begun:
            self._session._forget(self.sandbox_id)

    async def _outcome(self) -> bytes | None:
        """The content of the file that the driver leaves, or None if there is none."""
        name = f"{self._options.temp_dir}/aviato-{os.urandom(8).hex()}"
        # The function's part is one object for all calls of a `map`; joined to each call's own it would be as many.
        state, parts = self.state, self._parts
        place = await state.do(lambda handle: _hand_over(handle, name, parts))
        self._parts = parts = ()
        process = self._sandbox.exec(["python3", "-u", "-X", "faulthandler", "-c", _BOOT, f"{place}.call", f"{place}.result"])
        try:
            self.exec_result = await process
        except SandboxCommandTimeoutError as error:
            self.exec_result = error.exec_result
            error.args = (f"{shown(self._function)} ran longer than {self._limit():g} s and was killed",)
            raise
        try:
            return await state.do(lambda handle: _read(handle, f"{place}.result"))
        except SandboxFileError as error:
            logger.debug("no outcome of %s: %s", shown(self._function), error)
            return None

    def _limit(self) -> float:
        return self.state.config.exec_timeout_seconds

    async def _stop(self) -> None:
        try:
            await self._sandbox.stop(0, missing_ok=True)
        except AviatoError as error:
            logger.warning("stopping %s after its call failed: %s", self.sandbox_id, error)
        else:
            self._session._forget(self.sandbox_id)


async def _hand_over(handle: SandboxHandle, name: str, parts: tuple[bytes, ...]) -> str:
    """Write the call's file; returns where it lies, without its suffix."""
    place = (await handle.wait_running()).root_path + name
    await write_file(handle, f"{place}.call", *parts, mode=0o600)
    return place


async def _read(handle: SandboxHandle, path: str) -> bytes:
    content = bytearray()
    chunks = read_chunks(handle, path)
    try:
        async for chunk in chunks:
            content += chunk
            if len(content) > RESULT_BYTES:
                return TOO_LARGE
    finally:
        await chunks.aclose()  # type: ignore[attr-defined]
    return bytes(content)
