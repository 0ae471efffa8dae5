"""Scripts in, values of their last expressions out: each in a fresh sandbox, and no verdict where the machine failed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aviato import scripts
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxFileError
from aviato.wire.run_code import BatchResult, ScriptExecution, ScriptFault, ScriptLogs, ScriptResult, ScriptValue

if TYPE_CHECKING:
    from aviato.server.service.commands_of_server import Ran
    from aviato.server.service.one_shot import OneShots, Workplace
    from aviato.wire.run_code import ExecuteBatch

log = logging.getLogger(__name__)

RECORD_SECONDS = 5.0
MAX_LOG_BYTES = 64 << 10
"""Of each stream of each script."""
LANGUAGES = frozenset({"python", "python3", "py"})


class BatchRunner:
    """Answers `POST /execute_batch`.

    Args:
        one_shots: where scripts run.
    """

    def __init__(self, one_shots: OneShots) -> None:
        self._one_shots = one_shots

    async def run(self, batch: ExecuteBatch) -> BatchResult:
        """Run scripts, as many at a time as there are slots. Each has an answer of its own, in order.

        Raises:
            AviatoValidationError: there are not as many languages as scripts; nothing ran.
        """
        languages = batch.languages if batch.languages is not None else ["python"] * len(batch.scripts)
        if len(languages) != len(batch.scripts):
            problem = f"one for each script: there are {len(batch.scripts)} scripts and {len(languages)} languages"
            raise AviatoValidationError(f"languages: {problem}", field_violations={"languages": problem})
        pairs = zip(batch.scripts, languages, strict=True)
        tasks = [self._one_shots.begin(self._result(script, language, batch.timeout)) for script, language in pairs]
        try:
            if tasks:
                await asyncio.wait(tasks)
            return BatchResult([_no_verdict("the server is going") if task.cancelled() else task.result() for task in tasks])
        finally:
            for task in tasks:
                task.cancel()  # Its client has gone.

    async def _result(self, script: str, language: str, timeout_seconds: float) -> ScriptResult:
        if language.lower() not in LANGUAGES:
            return _no_verdict(f"scripts in {language!r} have no value here: only Python's last expression is one")
        try:
            return await self._one_shots.persist(lambda: self._attempt(script, timeout_seconds))
        except AviatoError as error:
            log.warning("a script could not be run: %s", error)
            return _no_verdict(f"{type(error).__name__}: {error}")
        except Exception as error:
            # One script of a batch never spoils the others.
            log.exception("a script could not be run")
            return _no_verdict(type(error).__name__)

    async def _attempt(self, script: str, timeout_seconds: float) -> ScriptResult:
        nonce = scripts.new_nonce()
        async with self._one_shots.workplace(timeout_seconds) as place:
            given = scripts.stdin(nonce, script)
            try:
                ran = await place.run(
                    scripts.command(), stdin=given, timeout_seconds=timeout_seconds, max_output_bytes=MAX_LOG_BYTES
                )
            except AviatoError as error:
                if error.is_infrastructure:
                    raise
                fault = ScriptFault(name=type(error).__name__, value=str(error), traceback="")
                return ScriptResult(execution=ScriptExecution(error=fault))
            value = await self._value(place, nonce)
        return ScriptResult(execution=_execution(ran, value, timeout_seconds))

    async def _value(self, place: Workplace, nonce: str) -> scripts.Value | None:
        """What the script's own process left; what else lies there is up to what it started."""
        until = asyncio.get_running_loop().time() + RECORD_SECONDS
        try:
            record = await place.read(scripts.RECORD_PATH, scripts.MAX_RECORD_BYTES, until)
        except TimeoutError:
            await place.check_answers()
            return None
        except SandboxFileError:
            return None
        return None if record is None else scripts.read(record, nonce)


def _execution(ran: Ran, value: scripts.Value | None, timeout_seconds: float) -> ScriptExecution:
    fault: ScriptFault | None = None
    results: list[ScriptValue] = []
    if ran.exit.timed_out:
        fault = ScriptFault(name="TimeoutError", value=f"ran longer than {timeout_seconds:g} s", traceback="")
    elif value is None:
        fault = ScriptFault(name="EarlyExit", value=f"ended early with returncode {ran.exit.returncode}", traceback="")
    elif value.fault is not None:
        fault = ScriptFault(name=value.fault.name, value=value.fault.value, traceback=value.fault.traceback)
    elif value.text is not None:
        results = [ScriptValue(text=value.text)]
    out = _log(ran.stdout, ran.exit.stdout_bytes_total)
    err = _log(ran.stderr, ran.exit.stderr_bytes_total)
    return ScriptExecution(results=results, logs=ScriptLogs(stdout=out, stderr=err), error=fault)


def _log(kept: bytes, total: int) -> list[str]:
    parts = [kept.decode(errors="replace")] if kept else []
    return [*parts, f"[cut: {len(kept)} of {total} bytes]"] if len(kept) < total else parts


def _no_verdict(why: str) -> ScriptResult:
    return ScriptResult(execution=None, exception_str=why)
