"""The main command of a sandbox: started through the link, its output read and kept by the server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.server.link.ended import SandboxGone
from aviato.server.link.link import ExecSpec
from aviato.server.service.output.main_output import MainOutput
from aviato.server.service.output.recorder import keep
from aviato.wire.errors import ErrorBody, from_wire
from aviato.wire.frames import FrameType

if TYPE_CHECKING:
    from aviato.server.link.link import Process1Link
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.wire.frames import Frame


class MainCommand:
    """Starts main commands and moves their output to disk.

    Args:
        directory: where the output is kept.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def output(self, sandbox_id: str) -> MainOutput:
        """The output of a sandbox, not opened yet."""
        return MainOutput(self._directory, sandbox_id)

    async def start(self, sandbox: LiveSandbox, link: Process1Link) -> None:
        """Start it, or join it if an earlier server did, and return when it has begun to run.

        Raises:
            AviatoError: it cannot be started.
            SandboxGone: the sandbox ended first.
        """
        if sandbox.output is None:
            sandbox.output = self.output(sandbox.sandbox_id)
            if sandbox.image is None:
                await sandbox.output.open()
        spec = ExecSpec(
            exec_id=sandbox.main_exec_id,
            command=[str(sandbox.request.command), *sandbox.request.args],
            environment={},
            working_dir=None,
            stdin=False,
            timeout_seconds=None,
            main=True,
        )
        begun = asyncio.get_running_loop().create_future()
        sandbox.spawn(asyncio.create_task(self._keep(sandbox, link, spec, begun), name=f"output of {sandbox.sandbox_id}"))
        await begun

    async def drained(self, sandbox: LiveSandbox, seconds: float) -> None:
        """Wait until all output of an ended sandbox is kept, `seconds` at most."""
        if sandbox.output is not None and not sandbox.output.ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    async for _ in sandbox.output.read(follow=True, begin=sandbox.output.total):
                        pass

    async def _keep(self, sandbox: LiveSandbox, link: Process1Link, spec: ExecSpec, begun: asyncio.Future[None]) -> None:
        output = sandbox.output
        assert output is not None
        try:
            await keep(link, spec, spec.exec_id, output, lambda frame: _tell(begun, frame))
        except SandboxGone as gone:
            if not begun.done():
                begun.set_exception(gone)
        except Exception as error:
            if begun.done():
                raise
            begun.set_exception(error)
        finally:
            output.finish()
            if not begun.done():
                begun.cancel()


def _tell(begun: asyncio.Future[None], frame: Frame) -> None:
    if begun.done():
        return
    if frame.type in (FrameType.STARTED, FrameType.EXIT):
        begun.set_result(None)
    elif frame.type == FrameType.ERROR:
        begun.set_exception(from_wire(ErrorBody.model_validate_json(frame.payload)))
