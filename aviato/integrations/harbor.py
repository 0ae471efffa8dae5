"""Harbor: sandboxes for its trials, as `harbor run -e aviato.integrations.harbor:AviatoEnvironment`.

A trial's sandbox ends with the trial, or with the process. Harbor retries by the names of exceptions: the machine's doing is
`AviatoInfrastructureError`, that of what runs inside `AviatoTaskError` and `AviatoCommandTimeoutError`. None of them is a
`TimeoutError`, which Harbor would take for an agent or a verifier that used up its time.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aviato.api.sandbox import Sandbox
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxCommandTimeoutError, SandboxFileError
from aviato.integrations import missing, os_error, settled
from aviato.log import logger
from aviato.options import NetworkOptions

try:
    from harbor.environments.base import BaseEnvironment, ExecResult
    from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
    from harbor.models.task.config import NetworkMode
    from harbor.models.trial.paths import EnvironmentPaths
except ImportError as error:
    if sys.version_info < (3, 12):
        raise ImportError(f"harbor needs Python 3.12 or newer; this is {sys.version.split()[0]}", name="harbor") from error
    raise missing("harbor", "harbor", error) from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from typing import TypeVar

    T = TypeVar("T")

SHELL = ("/bin/bash", "--noprofile", "--norc", "-c")


class AviatoInfrastructureError(RuntimeError):
    """The machine failed, and nothing that runs inside could have brought it about: no reward, try again."""


class AviatoTaskError(RuntimeError):
    """What runs inside brought it about, such as the end of the sandbox at its lifetime."""


class AviatoCommandTimeoutError(AviatoTaskError):
    """A command ran longer than its `timeout_sec` and was killed with its whole tree."""


class AviatoEnvironment(BaseEnvironment):
    """One sandbox of a trial. Keyword arguments are given by `--ek NAME=VALUE`.

    Args:
        image: in place of what the task declares: `host`, `python:3.N` or `dir:NAME`.
        base_url: the server; None is that of the environment, or the embedded one.
        tags: of the sandbox, beside `harbor` and the trial's.
        max_lifetime_seconds: the sandbox ends after so long.
        detached: it outlives the process, for `--no-delete`.
        without_network: run tasks that ask for a public network; they have none.
        options: of every Harbor environment.
    """

    def __init__(
        self,
        *positional: Any,
        image: str | None = None,
        base_url: str | None = None,
        tags: Sequence[str] = (),
        max_lifetime_seconds: float | None = None,
        detached: bool = False,
        without_network: bool = False,
        **options: Any,
    ) -> None:
        # The base class validates while it is built.
        self._image = image
        self._base_url = base_url
        self._tags = [tags] if isinstance(tags, str) else list(tags)
        self._max_lifetime_seconds = max_lifetime_seconds
        self._detached = detached
        self._without_network = without_network
        self._sandbox: Sandbox | None = None
        super().__init__(*positional, **options)

    @staticmethod
    def type() -> str:
        """The name in Harbor's records."""
        return "aviato"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """The network is closed, open to listed hosts, or open, from the start to the end of a trial."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """None can be asked for yet, so a job that insists on one is refused before it starts."""
        return EnvironmentResourceCapabilities()

    def _egress(self) -> str | list[str]:
        policy = self._network_policy
        if policy.network_mode == NetworkMode.PUBLIC:
            return "none" if self._without_network else "internet"
        return list(policy.allowed_hosts) or "none"

    def _validate_definition(self) -> None:
        declared = self.task_env_config.docker_image
        if self._host_mounts:
            raise ValueError("mounts of the host's directories are not supported by aviato")
        if any((self.environment_dir / name).exists() for name in ("docker-compose.yaml", "docker-compose.yml")):
            raise ValueError("docker-compose.yaml is not supported by aviato: an environment is one sandbox")
        if self._image is not None:
            return
        known = "name one: --ek image=host, image=python:3.N, image=dir:NAME or image=registry.example.org/org/task:1"
        if declared is None:
            found = "environment/Dockerfile is" if (self.environment_dir / "Dockerfile").exists() else "no docker_image is"
            raise ValueError(f"{found} what this task has, and aviato builds no images: {known}")

    # -- life

    async def start(self, force_build: bool) -> None:
        """Make the sandbox and wait until it runs."""
        if force_build:
            raise ValueError("force_build is not supported by aviato, which builds no images")
        sandbox = self._sandbox = Sandbox(
            container_image=self._image or self.task_env_config.docker_image,
            base_url=self._base_url,
            tags=["harbor", self.session_id[:256], *self._tags],
            max_lifetime_seconds=self._max_lifetime_seconds,
            detached=self._detached,
            network=NetworkOptions(egress_mode=self._egress()),
        )
        try:
            await _settle(sandbox)
            for path in self._directories():
                await _settle(sandbox.make_directory(path))
            await self._upload_environment_dir_after_start()
        except BaseException:
            sandbox.stop(0, missing_ok=True)
            raise

    def _directories(self) -> list[str]:
        paths = EnvironmentPaths.for_os(self.os)
        own = (paths.agent_dir, paths.verifier_dir, paths.artifacts_dir, paths.tests_dir, paths.solution_dir)
        workdir = [self.task_env_config.workdir] if self.task_env_config.workdir else []
        return list(dict.fromkeys([*map(str, own), *self._mount_targets(writable_only=True), *workdir]))

    async def stop(self, delete: bool) -> None:
        """End the sandbox; without `delete` it lives on until the process ends, or its lifetime if it is detached."""
        if self._sandbox is None:
            return
        if not delete:
            until = "its lifetime is over" if self._detached else "this process ends; --ek detached=true keeps it for longer"
            logger.warning("%s is kept until %s", self._sandbox.sandbox_id, until)
            return
        try:
            await self._sandbox.stop(0, missing_ok=True)
        except AviatoError as error:
            logger.warning("%s was left to the server: %s", self._sandbox.sandbox_id, error)

    # -- commands and files

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a line of shell, without a limit of time unless one is given."""
        work = self._running.exec(
            [*SHELL, command],
            cwd=cwd or self.task_env_config.workdir,
            env=self._merge_env(env),
            user=self._resolve_user(user),
            timeout_seconds=math.inf if timeout_sec is None else timeout_sec,
        )
        result = await _settle(work, cwd or "")
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.returncode)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file in; the directories above it are made."""
        await _settle(self._running.upload(source_path, target_path), target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy what a directory holds in, over what is there."""
        await _settle(self._running.upload(source_dir, target_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out; the directories above it are made."""
        await self._download(source_path, Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy what a directory holds out, over what is there; links that lead out of it are left out."""
        await self._download(source_dir, Path(target_dir))

    async def _download(self, source: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        await _settle(self._running.download(source, target, outside_links="skip"), source)

    @property
    def _running(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError("the environment was not started")
        return self._sandbox


async def _settle(work: Awaitable[T], name: str = "") -> T:
    return await settled(work, name, _translated)


def _translated(error: AviatoError, name: str) -> Exception:
    if isinstance(error, AviatoValidationError):
        return error
    if isinstance(error, SandboxCommandTimeoutError):
        return AviatoCommandTimeoutError(str(error))
    if error.is_infrastructure:
        return AviatoInfrastructureError(str(error))
    if isinstance(error, SandboxFileError) and error.reason != "timeout":
        return os_error(error, name or error.filepath or "")
    return AviatoTaskError(str(error))
