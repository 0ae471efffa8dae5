"""Many items, each in a fresh sandbox: as they finish or in order, with infrastructure failures tried again."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aviato import defaults as checks
from aviato.api.session import Session
from aviato.api.waiting import as_completed
from aviato.bridge.operation import OperationRef
from aviato.calls.sandbox_config import SandboxOptions
from aviato.exceptions import AviatoError, AviatoValidationError
from aviato.grading.new_sandboxes import nobody_there
from aviato.log import logger
from aviato.policy.infrastructure import retried
from aviato.progress import Progress
from aviato.rl.blame import Blame
from aviato.rl.graders import graders_of, let_go
from aviato.rl.grading import grade_command, grader_failed
from aviato.rl.in_process import grade_calls, grade_in_process
from aviato.rl.outcome import Outcome, Verdict
from aviato.rl.programs import grade_programs
from aviato.rl.separation import grade_separate
from aviato.rl.task import Task
from aviato.values.parameters import check_names
from aviato.values.text import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from typing import Unpack

    from aviato.api.waiting import AsCompleted
    from aviato.calls.sandbox_config import SandboxConfig
    from aviato.calls.sandbox_state import SandboxState

ITEMS_PER_PROCESSOR = 2
ITEMS_ELSEWHERE = 64


class ItemEvaluation(OperationRef[Outcome]):
    """The evaluation of one item.

    Attributes:
        index: its place among the items.
        task: what is evaluated.
    """

    def __init__(self, index: int, task: Task, work: Any) -> None:
        self.index = index
        self.task = task
        self._start(work, name=f"evaluate item {index}")


class Evaluation(OperationRef[list[Outcome]]):
    """The evaluation of many items: `.result()` or `await` gives their outcomes in order.

    Attributes:
        items: one handle an item, in order.
    """

    def __init__(self, items: list[ItemEvaluation]) -> None:
        self.items = items
        for item in items:
            item._seen = True  # What fails is told by this one, once.
        self._start(self._gather(), name=f"evaluate {len(items)} items")

    def as_completed(self, timeout: float | None = None) -> AsCompleted[ItemEvaluation]:
        """The items in order of completion, for `for` and `async for`; `item.result()` is at once."""
        return as_completed(self.items, timeout, progress=False)

    async def _gather(self) -> list[Outcome]:
        try:
            return [await item for item in self.items]
        except asyncio.CancelledError:
            for item in self.items:
                item.cancel()
            raise


_OWN_OPTIONS = ("tasks", "session", "timeout_seconds", "retry_budget_seconds", "max_concurrency", "progress")


def evaluate(
    tasks: Iterable[Task],
    *,
    session: Session | None = None,
    timeout_seconds: float = 30.0,
    retry_budget_seconds: float = 60.0,
    max_concurrency: int | None = None,
    progress: Callable[[int, int], object] | bool | None = None,
    **options: Unpack[SandboxOptions],
) -> Evaluation:
    """Run items, each in a sandbox of its own.

    Args:
        tasks: code with tests, or commands.
        session: whose sandboxes they use; None makes one that is closed at the end.
        timeout_seconds: of each item that does not state its own, counted from its start inside.
        retry_budget_seconds: for how long an item is tried again after infrastructure failures, from its first one on.
        max_concurrency: items at a time. None is two for each processor where the server is on this machine, so that no
            item's clock runs while it waits for a processor, and else 64.
        progress: None shows a bar on a terminal once it takes longer than a second, one line in a notebook, and lines in the
            log (INFO) elsewhere; False, or `AVIATO_PROGRESS=0` in the environment, shows nothing; True shows it whatever the
            environment says. Or it is called with (items done, items in all) on the event loop's thread, so briefly.
        options: of the sandboxes, as the constructor of `Sandbox`.

    Raises:
        TypeError, AviatoValidationError: an argument that cannot be meant; nothing was started.

    Raises (from the handle):
        AviatoValidationError: a test of a task with `grading="separate"` gives the code what cannot cross. No code can bring
            that about: it is the test's own text.
    """
    check_names("evaluate()", options, (*SandboxOptions.__optional_keys__, *_OWN_OPTIONS))
    if isinstance(tasks, Task):
        raise TypeError("tasks must be a list of tasks, not one: write [task]")
    checks.progress(progress)
    found = list(tasks)
    for index, task in enumerate(found):
        if not isinstance(task, Task):
            raise TypeError(f"item {index} must be a Task, not {type(task).__name__}")
    check_limits(timeout_seconds, retry_budget_seconds, max_concurrency)
    own, session = session is None, session or Session()
    run = _Run(
        session,
        own,
        float(timeout_seconds),
        retry_budget_seconds,
        len(found),
        max_concurrency,
        progress,
        session._config(options),
    )
    return Evaluation([ItemEvaluation(index, task, run.item(task)) for index, task in enumerate(found)])


def check_limits(timeout_seconds: float, retry_budget_seconds: float, max_concurrency: int | None) -> None:
    """The limits of `evaluate`, before anything starts.

    Raises:
        TypeError, AviatoValidationError: one that cannot be meant.
    """
    given = max_concurrency is not None
    if given and (isinstance(max_concurrency, bool) or not isinstance(max_concurrency, int) or max_concurrency < 1):
        raise AviatoValidationError(f"max_concurrency must be 1 or more, got {max_concurrency!r}")
    checks.seconds("timeout_seconds", timeout_seconds)
    if isinstance(retry_budget_seconds, bool) or not isinstance(retry_budget_seconds, (int, float)):
        raise TypeError(f"retry_budget_seconds must be a number of seconds, not {type(retry_budget_seconds).__name__}")
    if not retry_budget_seconds >= 0:
        raise AviatoValidationError(f"retry_budget_seconds must be 0 or more seconds, got {retry_budget_seconds!r}")


def usual_concurrency(config: SandboxConfig) -> int:
    """How many items run at a time where nobody says it."""
    url = config.connection.base_url
    here = url is None or url.startswith("unix:")
    return ITEMS_PER_PROCESSOR * len(os.sched_getaffinity(0)) if here else ITEMS_ELSEWHERE


class _Run:
    """What the items of one call share."""

    def __init__(
        self,
        session: Session,
        own: bool,
        timeout_seconds: float,
        retry_budget_seconds: float,
        total: int,
        max_concurrency: int | None,
        progress: Callable[[int, int], object] | bool | None,
        config: SandboxConfig,
    ) -> None:
        self._session = session
        self._own = own
        self._timeout_seconds = timeout_seconds
        self._retry_budget_seconds = retry_budget_seconds
        self._left = total
        self._slots = asyncio.Semaphore(max_concurrency or usual_concurrency(config))
        self._progress = Progress("evaluate", total, progress)
        self._config = config
        self._kinds: dict[str | None, _Kind] = {}

    async def item(self, task: Task) -> Outcome:
        """One item, whatever happens: only a cancellation and a caller's mistake raise."""
        verdict = ""
        self._progress.tick()
        try:
            found = await self._outcome(task)
            verdict = str(found.verdict)
            return found
        finally:
            self._left -= 1
            self._progress.advance(verdict)
            if self._own and not self._left:
                await self._close()

    async def _outcome(self, task: Task) -> Outcome:
        if task.is_empty:
            return Outcome(verdict=Verdict.SKIPPED, message="no code")
        async with self._slots:
            return await self._with_retries(task)

    async def _close(self) -> None:
        try:
            await self._session.close()
        except AviatoError as error:
            # The outcomes are there. What could not be stopped ends with this process's lease.
            logger.warning("evaluate() could not stop its sandboxes: %s", error)

    async def _with_retries(self, task: Task) -> Outcome:
        attempts = 0

        async def attempt() -> Outcome:
            nonlocal attempts
            attempts += 1
            return await self._attempt(task, attempts)

        try:
            return await retried(attempt, self._retry_budget_seconds)
        except AviatoError as error:
            if not error.is_infrastructure:
                raise
            message = shown(f"{type(error).__name__}: {error}")
            return Outcome(verdict=Verdict.INFRASTRUCTURE, message=message, error=error, attempts=attempts)
        except Exception as error:
            logger.exception("an item of evaluate() has no verdict, by a fault of aviato's own; please report it")
            return grader_failed(f"a fault of aviato's own: {type(error).__name__}: {error}", attempts=attempts)

    async def _attempt(self, task: Task, attempts: int) -> Outcome:
        limit, kind = task.timeout_seconds or self._timeout_seconds, self._kind_of(task)
        if task.kind == "test" and task.grading == "separate":
            graders = graders_of(self._session, kind.config)
            found = await grade_separate(graders, kind.fresh, task, limit, attempts)
        elif task.kind == "program":
            found = await grade_programs(kind.fresh, task, limit, attempts)
        else:
            grade = {"command": grade_command, "call": grade_calls, "test": grade_in_process}[task.kind]
            async with kind.fresh(task.files) as state:
                found = await grade(state, task, limit, attempts)
        return await kind.blame.settled(task, found, attempts)

    def _kind_of(self, task: Task) -> _Kind:
        packages = None if task.packages is None else os.fspath(task.packages)
        if packages not in self._kinds:
            own = {} if packages is None else {"packages": packages}
            config = replace(self._config, create={**(self._config.create or {}), **own})
            self._kinds[packages] = _Kind(self._session, config)
        return self._kinds[packages]


class _Kind:
    """Sandboxes of one kind: those of the call, or with other packages."""

    def __init__(self, session: Session, config: SandboxConfig) -> None:
        self._session = session
        self.config = config
        create = config.create or {}
        self.blame = Blame(self.fresh, f"{config.connection} {create.get('image')} {create.get('packages')}")

    @asynccontextmanager
    async def fresh(self, files: Mapping[str, bytes] | None = None) -> AsyncIterator[SandboxState]:
        """A sandbox for one command, which starts it where there are no files."""
        if files:
            sandbox = self._session._sandbox(self.config)
            state = sandbox._state
        else:
            state = self._session._state(self.config, start=False)
        try:
            with nobody_there():
                for path, content in (files or {}).items():
                    await sandbox.write_file(path, content)
            yield state
        finally:
            let_go(self._session, state)
