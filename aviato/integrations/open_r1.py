"""open-r1: a code execution provider, by the shape of its `CodeExecutionProvider`; open-r1 itself is not imported.

open-r1 chooses its providers in a function, so give it another one::

    import open_r1.rewards
    from aviato.integrations.open_r1 import AviatoProvider

    open_r1.rewards.get_provider = lambda **_: AviatoProvider()

The other way in needs no code: `aviato serve` answers its router's requests (`e2b_router_url: KEY@host:port`).
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Literal

from aviato import defaults as checks
from aviato import scripts
from aviato.api.session import Session
from aviato.bridge.operation import OperationRef
from aviato.calls import sandbox_config
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxError
from aviato.log import logger
from aviato.policy.infrastructure import retried

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from aviato.calls.sandbox_config import SandboxOptions

_PYTHON = frozenset({"python", "python3", "py"})


class AviatoProvider:
    """Runs scripts, each in a fresh sandbox; the value of a script's last expression is its reward."""

    def __init__(
        self,
        num_parallel: int = 64,
        *,
        timeout_seconds: float = 30.0,
        retry_budget_seconds: float = 60.0,
        on_infrastructure: Literal["raise", "none"] = "raise",
        **options: Unpack[SandboxOptions],
    ) -> None:
        """Make a provider; nothing starts before the first script.

        Args:
            num_parallel: scripts at a time.
            timeout_seconds: of each script, counted from its start inside.
            retry_budget_seconds: for how long a script is tried again after infrastructure failures, from its first one on.
            on_infrastructure: what a script without a verdict is after that: `"raise"` raises the error; `"none"` is a reward
                of None, which TRL leaves out from version 1.6 on and earlier ones take for 0.
            options: of the sandboxes, as the constructor of `Sandbox`.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant.
        """
        if isinstance(num_parallel, bool) or not isinstance(num_parallel, int) or num_parallel < 1:
            raise AviatoValidationError(f"num_parallel must be 1 or more, got {num_parallel!r}")
        if on_infrastructure not in ("raise", "none"):
            raise AviatoValidationError(f"on_infrastructure must be 'raise' or 'none', got {on_infrastructure!r}")
        sandbox_config.config(options)
        self._num_parallel = num_parallel
        self._timeout_seconds = checks.seconds("timeout_seconds", timeout_seconds)
        self._retry_budget_seconds = (
            checks.seconds("retry_budget_seconds", retry_budget_seconds) if retry_budget_seconds else 0.0
        )
        self._on_infrastructure = on_infrastructure
        self._options = options

    def execute_scripts(self, scripts: Sequence[str], languages: Sequence[str]) -> list[float | None]:
        """The rewards, in order. A script that fails, ends early, takes too long or ends without a finite number has 0.0.

        Args:
            scripts: Python sources, each ending with its score as an expression.
            languages: one for each script; all Python.

        Raises:
            AviatoValidationError: another language, or not as many languages as scripts; nothing ran.
            AviatoError: an infrastructure failure, with `on_infrastructure="raise"`.
        """
        found, said = list(scripts), list(languages)
        if len(found) != len(said):
            raise AviatoValidationError(f"there are {len(found)} scripts and {len(said)} languages")
        for language in said:
            if language.lower() not in _PYTHON:
                raise AviatoValidationError(f"scripts in {language!r} have no value: only Python's last expression is one")
        return OperationRef.start(self._all(found), name=f"execute {len(found)} scripts").result()

    async def _all(self, found: list[str]) -> list[float | None]:
        slots = asyncio.Semaphore(self._num_parallel)

        async def one(session: Session, script: str) -> float | None:
            async with slots:
                return await self._with_retries(session, script)

        session = Session()
        tasks = [asyncio.create_task(one(session, script)) for script in found]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            try:
                await session.close()
            except AviatoError as error:
                # The rewards are there. What could not be stopped ends with this process's lease.
                logger.warning("the provider could not stop its sandboxes: %s", error)

    async def _with_retries(self, session: Session, script: str) -> float | None:
        try:
            return await retried(lambda: self._attempt(session, script), self._retry_budget_seconds)
        except AviatoError as error:
            if error.is_infrastructure and self._on_infrastructure == "none":
                return None
            raise

    async def _attempt(self, session: Session, script: str) -> float:
        nonce = scripts.new_nonce()
        given = scripts.stdin(nonce, script)
        sandbox = session.sandbox(**self._options)
        try:
            try:
                await sandbox.exec(scripts.command(), stdin=given, timeout_seconds=self._timeout_seconds)
            except SandboxError as error:
                if error.is_infrastructure or not error.started:
                    raise
                return 0.0
            try:
                # What lies there is up to what the script has started.
                if (await sandbox.stat(scripts.RECORD_PATH)).size_bytes > scripts.MAX_RECORD_BYTES:
                    return 0.0
                record = await sandbox.read_file(scripts.RECORD_PATH)
            except SandboxError as error:
                if error.is_infrastructure:
                    raise
                return 0.0
            return _score(scripts.read(record, nonce))
        finally:
            sandbox.stop(0, missing_ok=True)._when_done(lambda ref: ref.exception())


def _score(value: scripts.Value | None) -> float:
    try:
        score = float(value.text) if value is not None and value.text is not None else 0.0
    except ValueError:
        return 0.0
    return score if math.isfinite(score) else 0.0
