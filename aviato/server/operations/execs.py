"""Commands: run, resume, stdin, signal, resize, cancel, acknowledge."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from aviato.server.operations.exec_stream import exec_reply, run_reply
from aviato.server.operations.reply import OCTETS, Reply, done
from aviato.server.operations.table import Operation
from aviato.wire.base import RequestModel
from aviato.wire.execution import (
    FRAMES_CONTENT_TYPE,
    Acknowledgements,
    ExecRequest,
    ReaderId,
    RunRequest,
    SignalRequest,
    TerminalSize,
)
from aviato.wire.shared_memory import MEMORY_HEADER

if TYPE_CHECKING:
    from aviato.server.operations.call import Call

Offset = Annotated[int, Field(ge=0, lt=2**63)]


class ResumeQuery(RequestModel):
    """Query of a resumed stream: how much of each is known, and who reads."""

    stdout: Offset = 0
    stderr: Offset = 0
    reader_id: ReaderId = ""


class StdinQuery(RequestModel):
    """Query of a piece of stdin."""

    offset: Offset = 0
    eof: bool = False


async def start(call: Call) -> Reply:
    """Run a command or join it."""
    execs, sandbox_id = call.service.execs, call.variables["sandbox_id"]
    memory = await call.memory() if MEMORY_HEADER in call.request.headers else None
    if memory is None:
        return await exec_reply(call, execs.start(sandbox_id, call.body))
    with memory:  # Until it is passed on.
        feed = execs.start(sandbox_id, call.body, memory)
    return await exec_reply(call, feed)


async def run(call: Call) -> Reply:
    """Make a sandbox, run a command in it, and end it."""
    call.service.check_able()
    body: RunRequest = call.body
    if call.service.is_one_of_several:
        await call.service.locate(body.sandbox.sandbox_id, call.caller)
    feed = await call.service.runs.start(body, call.asker, call.caller)
    left = functools.partial(call.service.runs.left, body.sandbox.sandbox_id)
    return await run_reply(call, feed, left)


async def resume(call: Call) -> Reply:
    """Go on reading a command."""
    query: ResumeQuery = call.query or ResumeQuery()
    sandbox_id, exec_id = call.variables["sandbox_id"], call.variables["exec_id"]
    feed = call.service.execs.resume(sandbox_id, exec_id, (query.stdout, query.stderr), query.reader_id)
    return await exec_reply(call, feed)


async def stdin(call: Call) -> Reply:
    """Take a piece of stdin. No more of it comes than the command reads: it may not for as long as it likes."""
    query: StdinQuery = call.query or StdinQuery()
    sandbox_id, exec_id = call.variables["sandbox_id"], call.variables["exec_id"]
    await call.service.execs.write_stdin(sandbox_id, exec_id, call.chunks(), query.offset, query.eof)
    return done()


async def signal(call: Call) -> Reply:
    """Send a signal."""
    await call.service.execs.signal(call.variables["sandbox_id"], call.variables["exec_id"], call.body.signal, call.key)
    return done()


async def resize(call: Call) -> Reply:
    """Give a terminal another size."""
    await call.service.execs.resize(call.variables["sandbox_id"], call.variables["exec_id"], call.body.width, call.body.height)
    return done()


async def cancel(call: Call) -> Reply:
    """Kill a command's tree."""
    await call.service.execs.cancel(call.variables["sandbox_id"], call.variables["exec_id"])
    return done()


async def cancel_all(call: Call) -> Reply:
    """Kill all commands."""
    await call.service.execs.cancel_all(call.variables["sandbox_id"])
    return done()


async def acknowledge(call: Call) -> Reply:
    """Take what a client has received."""
    body: Acknowledgements = call.body
    call.service.execs.acknowledge(body, call.caller)
    return done()


EXECS = "/v1/sandboxes/{sandbox_id}/execs"
_EXEC = f"{EXECS}/{{exec_id}}"

OPERATIONS = (
    Operation(
        method="POST",
        path=EXECS,
        handler=start,
        summary="Run a command, or join the one with the same id, and stream it",
        body=ExecRequest,
        answers={200: FRAMES_CONTENT_TYPE},
        errors=(404, 409, 422),
    ),
    Operation(
        method="POST",
        path="/v1/runs",
        handler=run,
        summary="Make a sandbox, run a command in it or join it, stream it, and end the sandbox once its result was sent",
        body=RunRequest,
        answers={200: FRAMES_CONTENT_TYPE},
        errors=(404, 409, 422, 429),
    ),
    Operation(
        method="GET",
        path=_EXEC,
        handler=resume,
        summary="Stream a command from offsets on",
        query=ResumeQuery,
        answers={200: FRAMES_CONTENT_TYPE},
        errors=(404, 409, 422),
    ),
    Operation(
        method="POST",
        path=f"{_EXEC}/stdin",
        handler=stdin,
        summary="Write to a command's stdin at an offset",
        query=StdinQuery,
        body=OCTETS,
        answers={204: None},
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path=f"{_EXEC}/signal",
        handler=signal,
        summary="Send a signal to a command's process group",
        body=SignalRequest,
        answers={204: None},
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path=f"{_EXEC}/resize",
        handler=resize,
        summary="Give a command's terminal another size",
        body=TerminalSize,
        answers={204: None},
        errors=(404, 409, 422),
    ),
    Operation(
        method="POST",
        path=f"{_EXEC}/cancel",
        handler=cancel,
        summary="Kill a command's whole tree; answers when it is dead",
        answers={204: None},
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path=f"{EXECS}/cancel",
        handler=cancel_all,
        summary="Kill all commands but the main one, and what they left behind; answers when they are dead",
        answers={204: None},
        errors=(404, 409, 422),
    ),
    Operation(
        method="POST",
        path="/v1/acknowledgements",
        handler=acknowledge,
        summary="Say what was received, and which sandboxes were let go",
        body=Acknowledgements,
        answers={204: None},
    ),
)
