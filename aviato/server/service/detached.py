"""Detached commands: begun when their sandbox runs, kept on disk, found again after a restart, removed with their sandbox."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoError, SandboxUnavailableError
from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.service.exec_state import ExecState
from aviato.server.service.live_sandbox import ended_sandbox
from aviato.server.service.output.feed import cancelled_error
from aviato.server.service.output.recorded_output import RecordedOutput
from aviato.server.service.output.recorder import keep
from aviato.server.service.output.retained_results import KEPT_SECONDS
from aviato.system.threads import in_thread
from aviato.wire.execution import ExecExit
from aviato.wire.frames import Frame, FrameType
from aviato.wire.ids import EXEC_ID, SANDBOX_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine

    from aviato.server.service.exec_records import ExecRecords
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.output.retained_results import RetainedResults
    from aviato.server.store import SandboxRecord

log = logging.getLogger(__name__)

MOST_RESULTS = 1000
MOST_RESULT_BYTES = 256 << 20
"""Of the commands of a sandbox that have ended, the newest are kept: so many, and so much output of theirs. The same holds for
those of all ended sandboxes together."""


class Detached:
    """Keeps the output and the results of detached commands.

    Args:
        directory: a directory a sandbox, in it one a command.
        records: puts them on record.
    """

    def __init__(self, directory: str, records: ExecRecords) -> None:
        self._directory = directory
        self._records = records
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._left: dict[tuple[str, str], tuple[LiveSandbox, ExecState]] = {}

    def begin(self, sandbox: LiveSandbox, state: ExecState) -> None:
        """Run a new command as soon as its sandbox runs, whoever reads it."""
        assert state.request is not None
        state.recorded = RecordedOutput(self._path(sandbox.sandbox_id, state.exec_id), state.request.command)
        self._begin_keeping(sandbox, state)

    def left(self, sandbox_id: str, exec_id: str) -> tuple[LiveSandbox, ExecState] | None:
        """A command whose sandbox has ended, and whose result nobody has taken yet."""
        return self._left.get((sandbox_id, exec_id))

    async def restore(self, sandbox: LiveSandbox) -> None:
        """Find the commands that an earlier server kept, before a request asks for them."""
        if (removal := self._removals.get(sandbox.sandbox_id)) is not None:
            removal.cancel()  # It was with another server, and has come back.
            await asyncio.wait((removal,))
        for exec_id, output in await in_thread(self._load, sandbox.sandbox_id):
            state = self._found(sandbox, exec_id, output)
            if sandbox.link is None:
                continue
            if output.last is None:
                self._begin_keeping(sandbox, state)
            else:
                # The earlier server may have died before it had said so.
                sandbox.link.acknowledge(exec_id, output.offsets[1], output.offsets[2], True)

    async def adopt(self, sandbox: LiveSandbox, results: RetainedResults) -> None:
        """Its process 1 ended while no server was there: add what it left behind to what is kept."""
        for exec_id, state in sandbox.execs.items():
            output = state.recorded
            if output is None or output.over or state.recording is not None:
                continue
            if (result := await results.load(sandbox.sandbox_id, exec_id)) is not None:
                await output.append([(1, *result.stdout), (2, *result.stderr)])
                await output.conclude(Frame(FrameType.EXIT, 0, 0, 0, result.exit))
                results.confirm(sandbox.sandbox_id, exec_id)

    def forget(self, sandbox: LiveSandbox) -> None:
        """Its sandbox has ended: what was kept goes when the last reader has read it."""
        states = {state: state.recorded for state in sandbox.execs.values() if state.recorded is not None}
        for state, output in states.items():
            if not output.taken.is_set() and (output.has_result or not output.over):
                state.outlives = True
                self._left[sandbox.sandbox_id, state.exec_id] = sandbox, state
        if states:
            self._removing(sandbox.sandbox_id, self._forget(sandbox, states))

    def hand_over(self, sandbox: LiveSandbox) -> None:
        """Another server has its sandbox: what was kept stays for a while, since it may come back."""

        async def remove() -> None:
            await asyncio.sleep(KEPT_SECONDS)
            await in_thread(self._take_away, sandbox.sandbox_id)

        if any(state.recorded is not None for state in sandbox.execs.values()):
            self._removing(sandbox.sandbox_id, remove())

    async def clear(self, known: Container[str], record_of: Callable[[str], SandboxRecord | None]) -> None:
        """Take away what is left of sandboxes that nobody knows; results of ended ones wait for one more period."""
        for sandbox_id in await in_thread(self._unknown, known):
            record = record_of(sandbox_id)
            sandbox = None
            if record is not None:
                sandbox = ended_sandbox(record)
                for exec_id, output in await in_thread(self._load, sandbox_id):
                    self._found(sandbox, exec_id, output)
            if sandbox is not None and sandbox.execs:
                self.forget(sandbox)
            else:
                await in_thread(self._take_away, sandbox_id)

    async def close(self) -> None:
        """Finish removals under way; those that wait for a reader are left to the next server."""
        removals = list(self._removals.values())
        for task in removals:
            task.cancel()
        await asyncio.gather(*removals, return_exceptions=True)

    def _found(self, sandbox: LiveSandbox, exec_id: str, output: RecordedOutput) -> ExecState:
        state = sandbox.execs[exec_id] = ExecState(
            exec_id=exec_id, sandbox_id=sandbox.sandbox_id, started=output.started, recorded=output
        )
        if output.last is not None:
            state.exit = ExecExit.model_validate_json(output.last.payload)
        return state

    def _begin_keeping(self, sandbox: LiveSandbox, state: ExecState) -> None:
        state.recording = asyncio.create_task(self._run(sandbox, state), name=f"output of {state.exec_id}")
        sandbox.spawn(state.recording)

    async def _run(self, sandbox: LiveSandbox, state: ExecState) -> None:
        output = state.recorded
        assert output is not None
        while not sandbox.ready.is_set():
            await sandbox.ready.wait()
        try:
            if state.left is not None:
                output.lose(Ended(reason="reset"))
                return
            if not sandbox.runs or sandbox.link is None:
                output.lose(Ended(reason="lost"))  # Its readers get the error of the ending.
                return
            if state.cancelled and not state.started:
                output.fail(cancelled_error(state.exec_id))
                return
            if not state.started:
                if (removal := self._removals.get(os.path.join(sandbox.sandbox_id, state.exec_id))) is not None:
                    await asyncio.wait((removal,))  # The same id came to nothing before.
                await in_thread(output.make)
            await keep(sandbox.link, state.spec(), state.exec_id, output, lambda frame: self._note(state, output, frame))
        except SandboxGone as gone:
            output.lose(gone.ended)
        except AviatoError as error:
            output.fail(error)
        except Exception:
            log.exception("the output of command %s cannot be kept any more", state.exec_id)
        finally:
            output.close()
        if not output.over:
            message = f"the server has lost command {state.exec_id}: its output cannot be kept"
            output.fail(SandboxUnavailableError(message, sandbox_id=sandbox.sandbox_id, retryable=False))
        self._settle(sandbox, state, output)

    def _note(self, state: ExecState, output: RecordedOutput, frame: Frame) -> None:
        if frame.type == FrameType.STARTED:
            state.started = True
            self._records.note(state)
        elif frame.type == FrameType.EXIT:
            state.exit = ExecExit.model_validate_json(frame.payload)
            self._records.note(state)
        output.note(frame)

    def _settle(self, sandbox: LiveSandbox, state: ExecState, output: RecordedOutput) -> None:
        """It is over: one that never ran is forgotten, and of the others the oldest where there are too many."""
        if output.last is not None and output.last.type == FrameType.ERROR:
            if sandbox.execs.get(state.exec_id) is state and not state.cancelled:
                del sandbox.execs[state.exec_id]
            self._remove(os.path.join(sandbox.sandbox_id, state.exec_id), [output])
            return
        ended = [one for one in sandbox.execs.values() if one.recorded is not None and one.exit is not None]
        taken = sum(one.recorded.kept_bytes for one in ended if one.recorded is not None)
        while ended and (len(ended) > MOST_RESULTS or (taken > MOST_RESULT_BYTES and len(ended) > 1)):
            oldest = ended.pop(0)
            assert oldest.recorded is not None
            taken -= oldest.recorded.kept_bytes
            del sandbox.execs[oldest.exec_id]
            self._remove(os.path.join(sandbox.sandbox_id, oldest.exec_id), [oldest.recorded])

    def _remove(self, path: str, outputs: list[RecordedOutput]) -> None:
        async def remove() -> None:
            await asyncio.gather(*(output.until_read() for output in outputs))
            await in_thread(self._take_away, path)

        self._removing(path, remove())

    async def _forget(self, sandbox: LiveSandbox, states: dict[ExecState, RecordedOutput]) -> None:
        """Take away what was kept of an ended sandbox: at once what ended with it or was taken, the rest in time."""
        self._make_room()
        await asyncio.gather(*(self._forget_one(state, output) for state, output in states.items()))
        await in_thread(self._take_away, sandbox.sandbox_id)

    async def _forget_one(self, state: ExecState, output: RecordedOutput) -> None:
        key = state.sandbox_id, state.exec_id
        try:
            if key in self._left:
                await self._until_taken(state, output)
        finally:
            self._left.pop(key, None)
        await output.until_read()
        await in_thread(self._take_away, os.path.join(*key))

    async def _until_taken(self, state: ExecState, output: RecordedOutput) -> None:
        if state.recording is not None:
            await asyncio.wait((state.recording,))
        if output.has_result:
            with suppress(TimeoutError):
                async with asyncio.timeout(KEPT_SECONDS):
                    await output.taken.wait()

    def _make_room(self) -> None:
        kept = [(state.recorded, state.recorded.kept_bytes) for _, state in self._left.values() if state.recorded is not None]
        taken = sum(size for _, size in kept)
        while kept and (len(kept) > MOST_RESULTS or (taken > MOST_RESULT_BYTES and len(kept) > 1)):
            output, size = kept.pop(0)
            taken -= size
            output.taken.set()

    def _removing(self, path: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"removal of {path}")
        self._removals[path] = task
        task.add_done_callback(lambda _: self._removals.pop(path, None))

    def _path(self, sandbox_id: str, exec_id: str) -> str:
        return os.path.join(self._directory, sandbox_id, exec_id)

    def _load(self, sandbox_id: str) -> list[tuple[str, RecordedOutput]]:
        try:
            names = sorted(os.listdir(os.path.join(self._directory, sandbox_id)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for name in names:
            if EXEC_ID.fullmatch(name):
                output = RecordedOutput(self._path(sandbox_id, name))
                try:
                    output.load()
                except OSError as error:
                    log.error("what was kept of command %s cannot be read: %s", name, error)
                    continue
                found.append((name, output))
        return found

    def _unknown(self, known: Container[str]) -> list[str]:
        return [name for name in sorted(os.listdir(self._directory)) if SANDBOX_ID.fullmatch(name) and name not in known]

    def _take_away(self, path: str) -> None:
        shutil.rmtree(os.path.join(self._directory, path), ignore_errors=True)
