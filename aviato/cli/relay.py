"""Carries a command's streams between a sandbox and this process, as raw bytes."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import click

from aviato.calls import network_remedy
from aviato.cli import descriptors
from aviato.exceptions import AviatoError
from aviato.system.standard_streams import STDERR, STDIN, STDOUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.aio.async_process import AsyncProcess
    from aviato.aio.async_sandbox import AsyncSandbox


async def relay(sandbox: AsyncSandbox, command: Sequence[str], *, interactive: bool, **options: Any) -> int:
    """Run a command with its output on ours, and our input on its own if asked; its returncode.

    Raises:
        AviatoError: it came to no returncode.
        StreamError: its output cannot be written here any more; it has been ended.
    """
    # The output goes through; nothing of it need be kept.
    process = sandbox.spawn(command, stdin=interactive, text=False, max_output_bytes=2, **options)
    tail = Tail()
    returncode = await _relay(process, tail, interactive=interactive)
    info = sandbox.info
    if returncode != 0 and info is not None and info.egress_mode == "none":
        hosts = network_remedy.remedy(" ".join(command), tail.content)
        if hosts is not None:
            click.echo(f"aviato: the sandbox has no network; make it by `aviato run --network {','.join(hosts)}`", err=True)
    return returncode


class Tail:
    """The end of what went by."""

    content = b""

    def add(self, chunk: bytes) -> None:
        """More went by."""
        self.content = (self.content + chunk[-network_remedy.TAIL_BYTES :])[-network_remedy.TAIL_BYTES :]


async def follow(sandbox: AsyncSandbox, exec_id: str, *, stdout_offset: int, stderr_offset: int) -> int:
    """Read a command that was begun elsewhere, to its end; its returncode. Cancelling lets go of it.

    Raises:
        AviatoError: it came to no returncode.
    """
    process = sandbox.attach(exec_id, stdout_offset, stderr_offset, text=False, max_output_bytes=2)
    await asyncio.gather(_copy(process.stdout, STDOUT), _copy(process.stderr, STDERR))
    return (await process).returncode


async def _relay(process: AsyncProcess, tail: Tail, *, interactive: bool) -> int:
    feeding = asyncio.create_task(_feed(process)) if interactive else None
    try:
        await asyncio.gather(_copy(process.stdout, STDOUT, tail), _copy(process.stderr, STDERR, tail))
        return (await process).returncode
    finally:
        if feeding is not None:
            feeding.cancel()
        if not process.done():
            process.cancel()
            await asyncio.wait([asyncio.ensure_future(_settled(process))])


async def _settled(process: AsyncProcess) -> None:
    try:
        await process
    except (AviatoError, asyncio.CancelledError):
        pass


async def _copy(stream: Any, fd: int, tail: Tail | None = None) -> None:
    try:
        async for chunk in stream:
            if tail is not None:
                tail.add(chunk)
            # Writing blocks while our reader is slow, and the command is slowed down with it: nothing else runs here.
            descriptors.write(fd, chunk)
    except AviatoError:
        pass  # `await process` raises it


async def _feed(process: AsyncProcess) -> None:
    """Pass standard input on. A thread reads it: a terminal or a file cannot be waited for in a portable way."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)

    def read() -> None:
        while True:
            try:
                piece = descriptors.read(STDIN)
            except descriptors.StreamError as error:
                click.echo(f"aviato: {error}", err=True)
                piece = b""
            try:
                asyncio.run_coroutine_threadsafe(pieces.put(piece), loop).result()
            except Exception:
                return  # the command has ended and nobody takes input any more
            if not piece:
                return

    # A daemon: it may sit in a read for ever when the command has long ended.
    threading.Thread(target=read, daemon=True, name="aviato-stdin").start()
    try:
        while piece := await pieces.get():
            await process.write_stdin(piece)
        await process.close_stdin()
    except AviatoError:
        pass  # it does not read any more, which is no failure
