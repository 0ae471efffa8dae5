"""verifiers: a sandbox as the `Runtime` that an agent runs in.

::

    runtime = AviatoRuntime(AviatoRuntimeConfig())
    await runtime.start()
    trace = await agent.run(task, runtime=runtime)

The runtimes that a configuration can name are a closed list of verifiers, so one of these is made by the program and lent to
the agent. What is inside reaches what `egress_mode` says, by a proxy, and never a loopback outside: a harness that calls the
model from inside needs an address of the model that the mode allows, or another runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from ipaddress import ip_address
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from aviato.api.sandbox import Sandbox
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxExecutionError, SandboxFileError
from aviato.integrations import missing, os_error, settled
from aviato.log import logger
from aviato.options import NetworkOptions, SandboxStatus
from aviato.values import hosts

try:
    from pydantic_config import BaseConfig
    from verifiers.v1.errors import SandboxError
    from verifiers.v1.runtimes import ProgramResult, Runtime, RuntimeProcess, SubprocessRuntimeInfo, register
    from verifiers.v1.runtimes.base import SERVICE_PORT
except ImportError as error:
    raise missing("verifiers", "verifiers", error) from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from typing import TypeVar

    from aviato.api.process import Process
    from aviato.bridge.stream import StreamReader

    T = TypeVar("T")

CLEAN_UP_SECONDS = 5.0


class AviatoRuntimeConfig(BaseConfig):
    """How the sandbox is made; the fields are those of `aviato.Sandbox`.

    Attributes:
        image: `container_image` of the sandbox.
        workdir: where commands start and what relative paths count from; it is made.
        ports: that `expose` can publish. Servers that verifiers places inside listen on 8000.
        egress_mode: that of `aviato.NetworkOptions`: `none`, `internet` or an allow-list of hosts, from the start to the end.
    """

    type: Literal["aviato"] = "aviato"
    image: str | None = None
    workdir: str = "/workspace"
    base_url: str | None = None
    environment_variables: dict[str, str] = {}
    ports: list[int] = [SERVICE_PORT]
    egress_mode: Literal["none", "internet"] | list[str] = "none"
    tags: list[str] = []
    max_lifetime_seconds: float | None = None
    idle_timeout_seconds: float | None = None


class AviatoRuntime(Runtime):
    """One sandbox. What cannot be done because it is gone, or its server is, raises `SandboxError`: a rollout without a reward.

    A program that fails is a result, and what is wrong with a file is the builtin error that any Python program gets.
    """

    config: AviatoRuntimeConfig

    def __init__(self, config: AviatoRuntimeConfig | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.config = config or AviatoRuntimeConfig()
        # A trace is read back by a closed list of types; of those, this one says only where it ran.
        self.info = SubprocessRuntimeInfo()
        self._sandbox: Sandbox | None = None
        register(self)

    async def start(self) -> None:
        """Make the sandbox and wait until it runs."""
        config = self.config
        options = config.model_dump(exclude={"type", "image", "workdir", "tags", "egress_mode"}, exclude_none=True)
        sandbox = Sandbox(
            **options,
            container_image=config.image,
            working_dir=config.workdir,
            tags=["verifiers", self.name, *config.tags],
            network=NetworkOptions(egress_mode=config.egress_mode),
        )
        self._sandbox, self.info.id = sandbox, sandbox.sandbox_id
        await _settle(sandbox)
        await _settle(sandbox.make_directory(config.workdir))

    async def teardown(self) -> None:
        """End the sandbox; whatever went wrong before, and again if asked again."""
        if self._sandbox is None:
            return
        try:
            await self._sandbox.stop(0, missing_ok=True)
        except AviatoError as error:
            logger.warning("%s was left to the server: %s", self.info.id, error)

    def cleanup(self) -> None:
        """End the sandbox at the process's exit. By then it usually has ended: sandboxes end with the process by themselves."""
        if self._sandbox is not None:
            with contextlib.suppress(AviatoError, RuntimeError):
                self._sandbox.stop(0, missing_ok=True).result(CLEAN_UP_SECONDS)

    async def alive(self) -> bool:
        """Whether the server says that it runs; what a command inside says proves nothing."""
        if self._sandbox is None or self.stopped:
            return False
        try:
            seen = await Sandbox.from_id(self._sandbox.sandbox_id, base_url=self.config.base_url)
        except AviatoError:
            return False
        return seen.status is SandboxStatus.RUNNING

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Run a program to its end, without a limit of time; whoever cancels this kills its whole tree."""
        result = await _settle(self._exec(argv, env))
        return ProgramResult(result.returncode, result.stdout, result.stderr)

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        """Start a program that is written to and read while it runs."""
        return AviatoProcess(self._exec(argv, env, stdin=True))

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a program that runs until the sandbox ends, its output in a file."""
        script = 'log=$1; shift; exec >"$log" 2>&1 </dev/null; "$@" &'
        result = await self.run(["/bin/sh", "-c", script, "sh", log, *argv], env)
        if result.exit_code != 0:
            raise SandboxError(f"{argv[0]} was not started: {log} cannot be written: {result.stderr.strip()}")

    def _exec(self, argv: list[str], env: dict[str, str], stdin: bool = False) -> Process:
        where = self.config.workdir
        return self._running.exec(argv, env=self.process_env(env), cwd=where, stdin=stdin, timeout_seconds=math.inf)

    # -- files

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        data = bytearray()
        try:
            async for chunk in self._running.read_file_streaming(self._path(path)):
                data += chunk
                if max_bytes is not None and len(data) >= max_bytes:
                    return bytes(data[:max_bytes])
        except AviatoError as error:
            raise _translated(error, path) from error
        return bytes(data)

    async def write(self, path: str, data: bytes) -> None:
        """Replace a file, atomically; the directories above it are made."""
        await _settle(self._running.write_file(self._path(path), data), path)

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.config.workdir}/{path}"

    # -- network

    @property
    def published_port(self) -> int | None:
        """The port that a server placed here listens on."""
        return self.config.ports[0] if self.config.ports else None

    async def expose(self, port: int) -> str:
        """The URL of a port of `ports`, on the server's machine."""
        try:
            return self._running.service_urls[port]
        except KeyError:
            raise SandboxError(f"port {port} is not among the ports={self.config.ports} of the runtime's config") from None

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """The network stays what `egress_mode` made it: opening it further is refused, and what it does not reach is told."""
        mode = self.config.egress_mode
        if routes is None:
            if mode != "internet":
                raise SandboxError(f"the network of a sandbox cannot be opened later: its egress_mode is {mode!r}")
            return
        if closed := [route for route in routes if not _reached(route, mode)]:
            logger.warning("nothing in %s can reach %s: its egress_mode is %r", self.info.id, closed, mode)

    @property
    def _running(self) -> Sandbox:
        if self._sandbox is None:
            raise SandboxError(f"runtime {self.name!r} was not started")
        return self._sandbox


class AviatoProcess(RuntimeProcess):
    """A program under way; its streams are bytes, and raise `SandboxError` if they break off."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.stdout = _chunks(process.stdout)
        self.stderr = _chunks(process.stderr)

    async def write(self, data: bytes) -> None:
        """Write to its input; one that has ended does not mind."""
        assert self._process.stdin is not None
        try:
            await self._process.stdin.write(data)
        except SandboxExecutionError as error:
            raise BrokenPipeError(str(error)) from error
        except AviatoError as error:
            raise _translated(error, "") from error

    async def wait(self) -> int:
        """Its exit code; whoever stops waiting leaves it running."""
        return (await asyncio.shield(_settle(self._process))).returncode

    async def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    async def terminate(self) -> None:
        """SIGTERM to its process group."""
        await _settle(self._process.send_signal(signal.SIGTERM))

    async def kill(self) -> None:
        """SIGKILL to its process group."""
        await _settle(self._process.send_signal(signal.SIGKILL))


def _reached(route: str, mode: str | list[str]) -> bool:
    """Whether a URL may lead anywhere from inside, as far as its name tells; there the loopback is the sandbox's own."""
    try:
        url = urlsplit(route)
        host = hosts.canonical(url.hostname or "")
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        return False
    if mode == "none" or host == "localhost" or (hosts.is_address(host) and ip_address(host).is_loopback):
        return False
    return mode == "internet" or any(hosts.pattern(item).covers(host, port) for item in mode)


async def _chunks(stream: StreamReader[str]) -> AsyncIterator[bytes]:
    try:
        async for chunk in stream.raw():
            yield chunk
    except AviatoError as error:
        raise _translated(error, "") from error


async def _settle(work: Awaitable[T], name: str = "") -> T:
    return await settled(work, name, _translated)


def _translated(error: AviatoError, name: str) -> Exception:
    if isinstance(error, AviatoValidationError):
        return error
    if isinstance(error, SandboxFileError):
        return os_error(error, name or error.filepath or "")
    return SandboxError(str(error))
