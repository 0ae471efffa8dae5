"""Code in, result out: one fresh sandbox for each request, and never a verdict on the code that the machine has caused."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from base64 import b64decode, b64encode
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, AviatoValidationError, SandboxFileError
from aviato.languages import TRIAL, Recipe, limited, recipes
from aviato.server.service.long_polls import stopping_error
from aviato.server.service.one_shot import busy_error
from aviato.wire.run_code import CommandRunResult, RunCode, RunCodeResult

if TYPE_CHECKING:
    from aviato.server.service.commands_of_server import Ran
    from aviato.server.service.long_polls import LongPolls
    from aviato.server.service.one_shot import OneShots, Workplace

log = logging.getLogger(__name__)

RECIPES = recipes("run_code")

PATIENCE_SECONDS = 10.0
"""How much longer than both limits a client waits for the answer."""
MARGIN_SECONDS = 2.0
"""The answer that says "busy" leaves so long before that."""
KEPT_SECONDS = 6.0
"""How long a request that was told "busy" keeps its place, and its result, for the same request coming again."""
TRIAL_SECONDS = 30.0
BROKEN_SECONDS = 30.0
"""How long a language that does not work is not tried again."""
FETCH_SECONDS = 5.0
MAX_FETCH_BYTES = 8 << 20


class CodeRunner:
    """Answers `POST /run_code`.

    Args:
        one_shots: where code runs.
        long_polls: tells when the server goes.
    """

    def __init__(self, one_shots: OneShots, long_polls: LongPolls) -> None:
        self._one_shots = one_shots
        self._long_polls = long_polls
        self._works: set[str] = set()
        self._broken: dict[str, tuple[str, float]] = {}
        self._trials: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting_again: dict[str, deque[tuple[asyncio.Task[RunCodeResult], asyncio.TimerHandle]]] = defaultdict(deque)

    async def run(self, request: RunCode, tenant: str = "") -> RunCodeResult:
        """Run code. A request that was told "busy" and comes again, from the same tenant, takes up where it was.

        Raises:
            SandboxRequestTimeoutError: there is no result yet, and the client's patience is nearly over.
            SandboxUnavailableError: the server goes.
            AviatoValidationError, SandboxFileError: something in the request cannot be honoured; nothing ran.
        """
        self._check(request)
        key = hashlib.sha256(f"{tenant}\0{request.model_dump_json()}".encode(errors="surrogatepass")).hexdigest()
        job = self._take_up(key)
        if job is None:
            job = self._one_shots.begin(self._until_result(request))
        patience = request.compile_timeout + request.run_timeout + PATIENCE_SECONDS - MARGIN_SECONDS
        try:
            done, _ = await asyncio.wait({job}, timeout=patience)
        except asyncio.CancelledError:
            job.cancel()  # Its client has gone.
            raise
        if done:
            if job.cancelled():
                raise stopping_error()
            return job.result()
        self._keep(key, job)
        raise busy_error(patience)

    def _check(self, request: RunCode) -> None:
        recipe = RECIPES.get(request.language)
        if recipe is not None and recipe.file in request.files:
            problem = f"{recipe.file} is the name of the code itself"
            raise AviatoValidationError(f"files: {problem}", field_violations={"files": problem})

    def _take_up(self, key: str) -> asyncio.Task[RunCodeResult] | None:
        jobs = self._waiting_again.get(key)
        if not jobs:
            return None
        job, timer = jobs.popleft()
        timer.cancel()
        if not jobs:
            del self._waiting_again[key]
        return job

    def _keep(self, key: str, job: asyncio.Task[RunCodeResult]) -> None:
        timer = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._give_up, key)
        self._waiting_again[key].append((job, timer))

    def _give_up(self, key: str) -> None:
        """Nobody has come again for the one that waits longest under this key."""
        job = self._take_up(key)
        if job is not None:
            job.cancel()

    async def _until_result(self, request: RunCode) -> RunCodeResult:
        try:
            return await self._one_shots.persist(lambda: self._attempt(request))
        except (SandboxFileError, AviatoValidationError):
            raise
        except AviatoError as error:
            self._long_polls.check()
            log.warning("code could not be run: %s", error)
            return RunCodeResult(status="SandboxError", message=f"{type(error).__name__}: {error}")

    async def _attempt(self, request: RunCode) -> RunCodeResult:
        recipe = RECIPES.get(request.language)
        if recipe is None:
            return _not_there(request.language, f"this server runs {', '.join(sorted(RECIPES))}")
        trouble = await self._trouble(request.language, recipe)
        if trouble:
            return _not_there(request.language, trouble)
        async with self._one_shots.workplace(request.compile_timeout + request.run_timeout) as place:
            try:
                await place.write(recipe.file, request.code.encode(errors="surrogatepass"))
            except SandboxFileError as error:
                return RunCodeResult(status="SandboxError", message=f"the code could not be written: {error}")
            for path, content in request.files.items():
                if content is not None:
                    await place.write(path, b64decode(content))
            return await self._build_and_run(place, request, recipe)

    async def _trouble(self, language: str, recipe: Recipe) -> str:
        """Why a language cannot be run here, empty if it can. A broken compiler would look like the model's failure."""
        if language in self._works:
            return ""
        async with self._trials[language]:
            loop = asyncio.get_running_loop()
            why, until = self._broken.get(language, ("", 0.0))
            if language in self._works or loop.time() < until:
                return why
            why = await self._try(language, recipe)
            if why:
                self._broken[language] = (why, loop.time() + BROKEN_SECONDS)
            else:
                self._works.add(language)
            return why

    async def _try(self, language: str, recipe: Recipe) -> str:
        request = RunCode(code=recipe.trial, language=language, compile_timeout=TRIAL_SECONDS, run_timeout=TRIAL_SECONDS)  # type: ignore[arg-type]
        async with self._one_shots.workplace(2 * TRIAL_SECONDS) as place:
            await place.write(recipe.file, recipe.trial.encode())
            result = await self._build_and_run(place, request, recipe)
        last = result.run_result or result.compile_result
        assert last is not None
        if result.status == "Success" and (last.stdout or "").strip() == TRIAL:
            return ""
        return f"not even {recipe.trial!r} works: {(last.stderr or '').strip()[:500] or last.status}"

    async def _build_and_run(self, place: Workplace, request: RunCode, recipe: Recipe) -> RunCodeResult:
        memory = request.memory_limit_MB << 20 if request.memory_limit_MB > 0 else None
        notes: list[str] = []
        compiled: CommandRunResult | None = None
        if recipe.compile is not None:
            command = limited(recipe.compile, memory)
            compiled = await _run(place, command, None, request.compile_timeout, "compiler", notes)
        ran: CommandRunResult | None = None
        if compiled is None or _fine(compiled):
            stdin = None if request.stdin is None else request.stdin.encode(errors="surrogatepass")
            command = limited(recipe.run, memory)
            ran = await _run(place, command, stdin, request.run_timeout, "program", notes)
        fetched = await self._fetch(place, request.fetch_files, notes) if ran is not None else {}
        return RunCodeResult(
            status="Success" if ran is not None and _fine(ran) else "Failed",
            message="; ".join(notes),
            compile_result=compiled,
            run_result=ran,
            executor_pod_name=place.sandbox_id,
            files=fetched,
        )

    async def _fetch(self, place: Workplace, paths: list[str], notes: list[str]) -> dict[str, str]:
        """What can be read in time of the files that are asked for: what lies there is up to the code that ran."""
        found: dict[str, str] = {}
        room = MAX_FETCH_BYTES
        until = asyncio.get_running_loop().time() + FETCH_SECONDS
        for path in dict.fromkeys(paths):
            try:
                content = await place.read(path, room, until)
            except TimeoutError:
                notes.append(f"{path!r} could not be read in time")
                continue
            except SandboxFileError as error:
                if error.reason != "no_such_file":
                    notes.append(f"{path!r} could not be read: {error.reason}")
                continue
            if content is None:
                notes.append(f"{path!r} was left out: all files together may have {MAX_FETCH_BYTES} bytes")
                continue
            room -= len(content)
            found[path] = b64encode(content).decode()
        return found


async def _run(
    place: Workplace, command: list[str], stdin: bytes | None, timeout_seconds: float, what: str, notes: list[str]
) -> CommandRunResult:
    try:
        ran = await place.run(command, stdin=stdin, timeout_seconds=timeout_seconds)
    except AviatoError as error:
        if error.is_infrastructure:
            raise
        # What came before in this sandbox can be the reason, so this is the code's own failure.
        notes.append(f"the {what} could not be run or ended with its sandbox: {error.reason}")
        return CommandRunResult(status="Finished", return_code=127, stdout="", stderr=str(error), execution_time=0.0)
    notes.extend(f"{what}: {text}" for text in ran.cut)
    if ran.exit.oom_killed:
        notes.append(f"the {what} was killed at the memory limit")
    return _result(ran)


def _result(ran: Ran) -> CommandRunResult:
    over = ran.exit.timed_out
    return CommandRunResult(
        status="TimeLimitExceeded" if over else "Finished",
        execution_time=ran.exit.duration_seconds,
        return_code=None if over else ran.exit.returncode,
        stdout=ran.stdout.decode(errors="replace"),
        stderr=ran.stderr.decode(errors="replace"),
    )


def _fine(result: CommandRunResult) -> bool:
    return result.status == "Finished" and result.return_code == 0


def _not_there(language: str, why: str) -> RunCodeResult:
    return RunCodeResult(status="SandboxError", message=f"{language} cannot be run here: {why}")
