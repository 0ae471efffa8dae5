"""An environment for TRL's `environment_factory`: a sandbox per episode, with a shell and files as the model's tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from aviato import defaults as checks
from aviato.bridge.operation import OperationRef
from aviato.calls import sandbox_config
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxCommandTimeoutError
from aviato.log import logger
from aviato.rl import datasets
from aviato.rl.evaluation import evaluate
from aviato.rl.graders import let_go
from aviato.rl.grading import grade_command
from aviato.rl.outcome import Outcome, Verdict
from aviato.rl.task import Task
from aviato.rl.trl import hidden_tests
from aviato.rl.trl.hidden_tests import FILES, SHELL, TEST_COMMAND, TEST_FILES, Hidden
from aviato.rl.trl.observations import cut
from aviato.rl.trl.rows import TESTS, cases, warn_once
from aviato.rl.trl.sessions import options_without_session, shared_session
from aviato.rl.trl.verdicts import Scale

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from aviato.api.sandbox import Sandbox
    from aviato.api.session import Session
    from aviato.calls.sandbox_config import SandboxOptions
    from aviato.results import ProcessResult
    from aviato.rl.cases import TestCase

T = TypeVar("T")

UNAVAILABLE = "The tool is not available now."
MAX_SOLUTION_BYTES = 1 << 20


class SandboxEnvironment:
    """One rollout's sandbox. Its public methods are the model's tools; the trainer calls `reset` before each episode.

    Give the class, or a `functools.partial` of it, as `environment_factory`, and `environment_reward()` as a reward function.
    The row's columns say what an episode is about. `files` (path → text) are there before its first tool call. What judges it
    is the first of these that the row has:

    * `test_files` (path → text), which the model never sees, and `test_command`, a line or a list: what the model made is
      copied out and graded in new sandboxes, as `Sandbox.grade` does. `result_paths` (paths, patterns, directories),
      `result_changes` (a repository, with `base_commit`) and `grading` are columns too, or arguments here.
    * With `dataset`, the row as that data set has it: the file at `solution_path` is the answer, judged in sandboxes that the
      model never touched.
    * `tests`, which are run with the file at `solution_path`, in a sandbox that the model never touched.
    * `test_command`: its returncode in the model's own sandbox.

    A row that cannot be graded so, whatever the model does, is skipped, and a warning says why.

    Tools are plain functions, since calls of one message would else run side by side. A failure of the machine marks the
    episode: the model reads a neutral text, and there is no reward.
    """

    def __init__(
        self,
        *,
        solution_path: str = "solution.py",
        dataset: str | None = None,
        grading: str | None = None,
        result_paths: Sequence[str] | None = None,
        result_changes: str | None = None,
        base_commit: str | None = None,
        grading_env: Mapping[str, str] | None = None,
        command_timeout_seconds: float = 30.0,
        grading_timeout_seconds: float = 30.0,
        observation_bytes: int = 4096,
        session: Session | None = None,
        **options: Unpack[SandboxOptions],
    ) -> None:
        """Make an environment; nothing starts before `reset`.

        Args:
            solution_path: the file that `tests` are run with, and the result for `test_files` where no other is named.
            dataset: a name of `aviato.rl.datasets.NAMES`: what the rows are.
            grading: `"separate"` or `"in_process"`, as `Sandbox.grade` and `Task` have it. None is `"separate"` for
                `test_files` and `"in_process"` for `tests`. A row's column of this name comes first, as with the next three.
            result_paths: what the model made, for `test_files`: paths, patterns (`src/**/*.py`) and directories (`src/`).
            result_changes: a directory of which all is taken that the model changed.
            base_commit: that the repository there is at when an episode begins.
            grading_env: variables of the grader's command, for `test_files`.
            command_timeout_seconds: of each `bash` call.
            grading_timeout_seconds: of the tests, or the test command.
            observation_bytes: what the model reads of a tool's output, at most; keep it well below the completion's length.
            session: whose sandboxes they are, in this process; a pickle carries its defaults only. None is one a process.
            options: of the sandboxes, as the constructor of `Sandbox`.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant.
        """
        if isinstance(observation_bytes, bool) or not isinstance(observation_bytes, int) or observation_bytes < 1:
            raise AviatoValidationError(f"observation_bytes must be 1 or more, got {observation_bytes!r}")
        if dataset is not None and dataset not in datasets.NAMES:
            raise AviatoValidationError(f"dataset must be one of {', '.join(datasets.NAMES)}, got {dataset!r}")
        sandbox_config.config(options)
        self._dataset = dataset
        self._hidden = Hidden(
            grading=grading,
            result_paths=result_paths,
            result_changes=result_changes,
            base_commit=base_commit,
            env=grading_env,
        )
        self._solution_path = solution_path
        self._command_timeout_seconds = checks.seconds("command_timeout_seconds", command_timeout_seconds)
        self._grading_timeout_seconds = checks.seconds("grading_timeout_seconds", grading_timeout_seconds)
        self._observation_bytes = observation_bytes
        self._session = session
        self._options = options
        self._forget()

    def _forget(self) -> None:
        self._sandbox: Sandbox | None = None
        self._prepared: OperationRef[None] | None = None
        self._row: Mapping[str, Any] = {}
        self._lost: AviatoError | None = None

    def __getstate__(self) -> dict[str, Any]:
        """How it was made, without its session and its episode."""
        options = options_without_session(self._session, self._options)
        kept = {name: value for name, value in self.__dict__.items() if name not in ("_sandbox", "_prepared", "_row", "_lost")}
        return {**kept, "_session": None, "_options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # -- the trainer's

    def reset(self, **row: Any) -> None:
        """Begin an episode. Returns at once: the last sandbox ends and the next one starts in the background.

        Args:
            row: of the dataset.
        """
        self._let_go()
        self._row = row
        self._sandbox = (self._session or shared_session()).sandbox(**self._options)
        if isinstance(row.get(FILES), Mapping):
            self._prepared = OperationRef.start(self._prepare(self._sandbox, row), name="prepare an episode", shared=True)
            self._prepared._when_done(lambda ref: ref.exception())

    async def _prepare(self, sandbox: Sandbox, row: Mapping[str, Any]) -> None:
        """What happens before the first tool call; override it for more."""
        for path, content in hidden_tests.contents(row[FILES]).items():
            await sandbox.write_file(path, content)

    def _let_go(self) -> None:
        if self._sandbox is not None:
            let_go(self._session or shared_session(), self._sandbox._state)
        self._forget()

    # -- the model's tools

    def bash(self, command: str) -> str:
        """Run a command in a Linux shell and read what it prints.

        Each call is a new shell: files stay, variables and the current directory do not.

        Args:
            command: The command line, for example: python3 solution.py

        Returns:
            The exit code, then what the command printed.
        """
        return self._use("command", command, self._bash)

    def read_file(self, path: str) -> str:
        """Read a text file.

        Args:
            path: The path of the file, for example: solution.py

        Returns:
            The text of the file.
        """
        return self._use("path", path, self._read)

    def write_file(self, path: str, content: str) -> str:
        """Write a text file. A file that exists is replaced.

        Args:
            path: The path of the file, for example: solution.py
            content: The whole text of the file.

        Returns:
            Whether it was written.
        """
        if not isinstance(content, str):
            return "Error: content must be text"
        return self._use("path", path, lambda sandbox, name: self._write(sandbox, name, content))

    # -- inside the tools

    def _use(self, name: str, value: Any, work: Callable[[Sandbox, str], str]) -> str:
        """One tool call. Whatever the model does is text; what the machine does marks the episode."""
        if not isinstance(value, str):
            return f"Error: {name} must be text"
        if self._lost is not None:
            return UNAVAILABLE
        if self._sandbox is None:
            return "Error: there is no episode; reset() begins one"
        try:
            if self._prepared is not None:
                self._prepared.result()
            return work(self._sandbox, value)
        except AviatoError as error:
            if error.is_infrastructure:
                self._lost = error
                logger.warning("an episode has no verdict: %s", error)
                return UNAVAILABLE
            return cut(f"Error: {error}".encode(errors="replace"), None, self._observation_bytes)

    def _bash(self, sandbox: Sandbox, command: str) -> str:
        limit = self._observation_bytes
        try:
            result = sandbox.exec(
                [*SHELL, command], timeout_seconds=self._command_timeout_seconds, max_output_bytes=4 * limit
            ).result()
        except SandboxCommandTimeoutError as error:
            note = f"The command ran longer than {self._command_timeout_seconds:g} seconds and was ended."
            return note if error.exec_result is None else f"{note}\n{_printed(error.exec_result, limit)}"
        return f"exit={result.returncode}\n{_printed(result, limit)}"

    def _read(self, sandbox: Sandbox, path: str) -> str:
        size = sandbox.stat(path).result().size_bytes
        found = b""
        chunks = iter(sandbox.read_file_streaming(path))
        for chunk in chunks:
            found += chunk
            if len(found) > self._observation_bytes:
                chunks.close()
                return cut(found, max(size, len(found)), self._observation_bytes, tail=False)
        return cut(found, None, self._observation_bytes)

    def _write(self, sandbox: Sandbox, path: str, content: str) -> str:
        data = content.encode(errors="replace")
        sandbox.write_file(path, data).result()
        return f"{len(data)} bytes written"

    # -- grading

    async def _grade(self) -> Outcome:
        """What became of the episode, after the model's last call."""
        if self._lost is None and self._sandbox is not None:
            try:
                return await self._judge(self._sandbox)
            except AviatoValidationError as error:
                # Of the row's making: nothing that a model does makes its episode another kind of task.
                warn_once(f"a row cannot be graded: {error}; its episodes get the reward of skipped ones")
                return Outcome(verdict=Verdict.SKIPPED, message=str(error))
            except AviatoError as error:
                if not error.is_infrastructure:
                    return Outcome(verdict=Verdict.FAILED, message=str(error), attempts=1)
                self._lost = error
        if self._lost is None:
            return Outcome(verdict=Verdict.SKIPPED, message="there was no episode")
        message = f"{type(self._lost).__name__}: {self._lost}"
        return Outcome(verdict=Verdict.INFRASTRUCTURE, message=message, error=self._lost, attempts=1)

    async def _judge(self, sandbox: Sandbox) -> Outcome:
        if self._prepared is not None:
            await self._prepared
        if hidden_tests.contents(self._row.get(TEST_FILES)):
            limit = self._grading_timeout_seconds
            return await hidden_tests.judge(sandbox, self._row, self._hidden, self._solution_path, limit)
        tests = cases(self._row.get(TESTS)) if self._dataset is None else None
        if self._dataset is not None or tests:
            return await self._evaluate(sandbox, tests or [])
        argv = _argv(self._row.get(TEST_COMMAND))
        if argv:
            grading = grade_command(sandbox._state, Task(command=argv), self._grading_timeout_seconds, 1)
            return await OperationRef.start(grading, name="grade an episode")
        warn_once(
            f"a row has neither {TEST_FILES!r}, {TESTS!r} nor {TEST_COMMAND!r}; its episodes get the reward of skipped ones"
        )
        return Outcome(verdict=Verdict.SKIPPED, message="the row has nothing to test with")

    async def _evaluate(self, sandbox: Sandbox, tests: list[TestCase]) -> Outcome:
        """The file that the model left, in a sandbox that it never touched."""
        found = await sandbox.stat(self._solution_path)
        if found.size_bytes > MAX_SOLUTION_BYTES:
            return Outcome(verdict=Verdict.FAILED, message=f"{self._solution_path} has {found.size_bytes} bytes")
        # What is no text stays none, so that it is no Python here either.
        code = (await sandbox.read_file(self._solution_path)).decode(errors="surrogateescape")
        grading = self._hidden.of_row(self._row).grading
        if self._dataset is None:
            task = Task(code=code, tests=tests, grading=grading or "in_process")
        else:
            task = datasets.problem_of(self._dataset, self._row).with_code(code)
            if task.kind == "test" and grading is not None:
                task = replace(task, grading=grading)
        session, limit = self._session or shared_session(), self._grading_timeout_seconds
        run = evaluate([task], session=session, timeout_seconds=limit, progress=False, **self._options)
        return (await run)[0]


class SelfGradingEnvironment(SandboxEnvironment):
    """The same, for trainers that ask each environment for its reward (TRL 1.8 and later; the only way with AsyncGRPO)."""

    async def get_reward(self) -> float | None:
        """1.0 if the episode passed, 0.0 if not, None if the machine failed."""
        return Scale(on_infrastructure="none").rewards("get_reward", [await self._grade()])[0]


def _argv(command: Any) -> list[str] | None:
    if isinstance(command, str):
        return [*SHELL, command] if command.strip() else None
    if isinstance(command, (list, tuple)) and all(isinstance(part, str) for part in command):
        return list(command)
    return None


def _printed(result: ProcessResult, limit: int) -> str:
    total = result.stdout_bytes_total + result.stderr_bytes_total
    return cut(result.stdout_bytes + result.stderr_bytes, total, limit)
