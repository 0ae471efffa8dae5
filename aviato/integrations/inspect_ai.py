"""Inspect AI: sandboxes for its evaluations, as `sandbox="aviato"`.

::

    Task(..., sandbox="aviato")
    Task(..., sandbox=SandboxEnvironmentSpec("aviato", AviatoSandboxConfig(container_image="python:3.12")))

Inspect finds it by the entry point group `inspect_ai`. Each sample gets a sandbox of its own, which ends with the sample, or
with the process. A command that times out is not run again, whatever `timeout_retry` says: the server keeps the limit, and a
request that gets lost on its way is repeated without running the command twice.
"""

from __future__ import annotations

import errno
import math
import os
import shlex
from pathlib import Path
from posixpath import join
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from aviato.api.sandbox import Sandbox
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxCommandTimeoutError, SandboxFileError
from aviato.integrations import missing, os_error, settled
from aviato.log import logger
from aviato.options import NetworkOptions

try:
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxConnection,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
except ImportError as error:
    raise missing("inspect_ai", "inspect", error) from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

TAG = "inspect_ai"
WORKING_DIR = "/workspace"
_ROOT = (None, "root", "0", 0)


class AviatoSandboxConfig(BaseModel):
    """How the sandboxes of a task are made; every field but `egress_mode` is that of `aviato.Sandbox`.

    Attributes:
        egress_mode: that of `aviato.NetworkOptions`: `none`, `internet` or an allow-list of hosts.
        working_dir: where commands start and what relative paths count from; it is made.
        detached: the sandbox outlives the process, for `--no-sandbox-cleanup`; `inspect sandbox cleanup aviato` ends it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    container_image: str | None = None
    base_url: str | None = None
    working_dir: str = Field(default=WORKING_DIR, pattern="^/")
    environment_variables: dict[str, str] = {}
    ports: list[int] = []
    egress_mode: Literal["none", "internet"] | list[str] = "none"
    tags: list[str] = []
    max_lifetime_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    detached: bool = False

    def __hash__(self) -> int:
        """Inspect looks configurations up in a dict."""
        return hash(self.model_dump_json())


@sandboxenv(name="aviato")
class AviatoSandboxEnvironment(SandboxEnvironment):
    """One sandbox of a sample.

    What the task brings about is an error that Inspect shows to the model. A sandbox that is not there, for whatever reason, is
    `SandboxUnavailableError`: a scorer that meets it leaves the sample without a score.
    """

    def __init__(self, sandbox: Sandbox, config: AviatoSandboxConfig) -> None:
        super().__init__()
        self.sandbox = sandbox
        self._working_dir = config.working_dir
        self._base_url = config.base_url

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; the contract is that of Inspect. Without `timeout` it may run as long as it likes.

        A stream over Inspect's limit keeps its head and its tail, with a line between them that tells how much is missing. A
        program that prints too much is answered like any other: an error here would spare the sample its score.
        """
        _no_nul(*cmd, cwd or "")
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        work = self.sandbox.exec(
            cmd,
            cwd=join(self._working_dir, cwd or ""),
            env=env,
            user=user,
            stdin=False if input is None else input,
            timeout_seconds=math.inf if timeout is None else timeout,
            max_output_bytes=limit,
        )
        result = await _settle(work, cwd or "")
        # Said by us and not by the command: it was never started.
        if result.returncode == 126 and result.stderr == f"{cmd[0]}: Permission denied\n":
            raise PermissionError(errno.EACCES, "Permission denied", cmd[0])
        return ExecResult(result.returncode == 0, result.returncode, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Replace a file, atomically; the directories above it are made."""
        path = self._path(file)
        try:
            found = await _settle(self.sandbox.stat(path), file)
        except FileNotFoundError:
            found = None
        # Replacing by renaming would not ask for the file's own permission, which Inspect expects to hold.
        if found is not None and found.type == "file" and not found.mode & 0o200:
            raise PermissionError(errno.EACCES, "Permission denied", file)
        data = contents.encode() if isinstance(contents, str) else contents
        await _settle(self.sandbox.write_file(path, data), file)

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """A whole file, newlines untouched; no more than Inspect's limit is fetched."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        chunks = self.sandbox.read_file_streaming(self._path(file))
        data = bytearray()
        try:
            async for chunk in chunks:
                data += chunk
                if len(data) > limit:
                    break
        except AviatoError as error:
            raise _translated(error, file) from error
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else bytes(data)

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """The command that opens a shell in it."""
        if user not in _ROOT:
            raise SandboxUserUnsupportedError(f"aviato opens shells as root, which has no privilege outside, not as {user!r}")
        if self.sandbox.status.is_terminal:
            raise ConnectionError(f"{self.sandbox.sandbox_id} has ended: {self.sandbox.status_reason}")
        where = self._base_url or os.environ.get("AVIATO_BASE_URL")
        command = ["aviato", "sh", *(["--base-url", where] if where else []), self.sandbox.sandbox_id]
        return SandboxConnection(
            type="aviato",
            command=shlex.join(command),
            container=self.sandbox.sandbox_id,
            ports=[_port(port, url) for port, url in self.sandbox.service_urls.items()] or None,
        )

    def default_polling_interval(self) -> float:
        """Seconds between looks at a service inside; a look costs about a millisecond."""
        return 0.2

    def _path(self, file: str) -> str:
        _no_nul(file)
        return join(self._working_dir, file)

    # -- life

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """A sandbox that runs, under the name `default`."""
        chosen = _config(config)
        options = chosen.model_dump(exclude={"tags", "egress_mode"}, exclude_none=True)
        if chosen.working_dir == WORKING_DIR:
            del options["working_dir"]
        network = NetworkOptions(egress_mode=chosen.egress_mode)
        sandbox = Sandbox(**options, network=network, tags=[TAG, f"inspect-task:{task_name}"[:256], *chosen.tags])
        try:
            await _settle(sandbox)
            if chosen.working_dir != WORKING_DIR:
                await _settle(sandbox.make_directory(chosen.working_dir))
        except BaseException:
            sandbox.stop(0, missing_ok=True)
            raise
        return {"default": cls(sandbox, chosen)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End the sample's sandboxes. What cannot be ended now ends with the process, and costs no score."""
        stops = [one.as_type(cls).sandbox.stop(0, missing_ok=True) for one in environments.values()]
        for stop in stops:
            try:
                await stop
            except AviatoError as error:
                logger.warning("a sample's sandbox was left to the server: %s", error)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """End one sandbox, or all that evaluations left behind on the server that the environment names."""
        if id is not None:
            await Sandbox.delete(id, missing_ok=True)
            return
        for stop in [sandbox.stop(0, missing_ok=True) for sandbox in await Sandbox.list(tags=[TAG])]:
            await stop

    @classmethod
    def default_concurrency(cls) -> int | None:
        """None: the server knows how many fit, and further ones wait in its queue."""
        return None

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """The configuration out of a log."""
        return AviatoSandboxConfig.model_validate(config)


def _config(config: BaseModel | str | None) -> AviatoSandboxConfig:
    """A configuration as Inspect hands it over; text is the name of a YAML or JSON file."""
    if isinstance(config, str):
        import yaml

        return AviatoSandboxConfig.model_validate(yaml.safe_load(Path(config).read_text(encoding="utf-8")) or {})
    if config is None or isinstance(config, AviatoSandboxConfig):
        return config or AviatoSandboxConfig()
    raise TypeError(f"the configuration of an aviato sandbox is an AviatoSandboxConfig, not a {type(config).__name__}")


async def _settle(work: Awaitable[T], name: str = "") -> T:
    return await settled(work, name, _translated)


def _translated(error: AviatoError, name: str) -> Exception:
    if isinstance(error, AviatoValidationError):
        return SandboxUserUnsupportedError(str(error)) if error.reason == "user" else error
    if isinstance(error, SandboxCommandTimeoutError):
        late = TimeoutError(str(error))
        if (result := error.exec_result) is not None:
            late.truncated_output = result.stdout + result.stderr  # type: ignore[attr-defined]  # Inspect looks for it
        return late
    if not isinstance(error, SandboxFileError):
        return SandboxUnavailableError(str(error))
    return os_error(error, name)


def _no_nul(*texts: str) -> None:
    """Inspect tells the model of this one by its words; any other ValueError ends the sample."""
    if any("\0" in text for text in texts):
        raise ValueError("embedded null byte")


def _port(port: int, url: str) -> dict[str, Any]:
    where = urlsplit(url)
    return {"container_port": port, "protocol": "tcp", "mappings": [{"host_ip": where.hostname, "host_port": where.port}]}
