"""OpenEnv: a provider that runs an environment's server in a sandbox.

::

    provider = AviatoProvider("dir:coding_env")
    with CodingEnv(provider=provider).sync() as env:
        env.reset()
"""

from __future__ import annotations

import math
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from aviato.api.sandbox import Sandbox
from aviato.exceptions import AviatoError, AviatoValidationError
from aviato.integrations import missing
from aviato.log import logger

try:
    import yaml
    from openenv.core.containers.runtime import ContainerProvider
except ImportError as error:
    raise missing("openenv", "openenv", error) from error

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from aviato.api.process import Process

    T = TypeVar("T")

APP = "/app/env"
DESCRIPTION = f"{APP}/openenv.yaml"
START_SECONDS = 120.0
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.1


class AviatoProvider(ContainerProvider):
    """One sandbox that serves one environment. OpenEnv calls it blockingly, from coroutines too.

    Args:
        image: a root directory that the server has, `dir:NAME`, made from the environment's image; or `host`, `python:3.N`.
        command: that serves the environment on `port`; None is uvicorn with the `app` of `/app/env/openenv.yaml`.
        files: local files and directory trees to copy in before that, by their paths inside.
        env_vars: of the server.
        port: that it listens on.
        base_url: the aviato server; None is that of the environment, or the embedded one.
        options: of `aviato.Sandbox`, such as `network=`.
    """

    def __init__(
        self,
        image: str | None = None,
        *,
        command: Sequence[str] | None = None,
        files: Mapping[str | os.PathLike[str], str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        port: int = 8000,
        base_url: str | None = None,
        **options: Any,
    ) -> None:
        self._image = image
        self._command = list(command) if command is not None else None
        self._files = dict(files or {})
        self._env_vars = dict(env_vars or {})
        self._port = port
        self._options = {**options, "base_url": base_url}
        self._sandbox: Sandbox | None = None
        self._process: Process | None = None

    def start_container(
        self, image: str | None = None, port: int | None = None, env_vars: dict[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Start the sandbox and the server in it; what is given here takes the place of the constructor's.

        Returns:
            The URL of the server, on the machine of the aviato server.

        Raises:
            RuntimeError: it could not be started; nothing is left.
        """
        if kwargs:
            raise TypeError(f"start_container() has no parameter {', '.join(map(repr, sorted(kwargs)))}")
        if self._sandbox is not None:
            raise RuntimeError(f"this provider runs {self._sandbox.sandbox_id} already: stop_container() first")
        port = self._port if port is None else port
        options = {**self._options, "tags": ["openenv", *self._options.get("tags", ())], "ports": [port]}
        sandbox = self._sandbox = Sandbox(container_image=image or self._image, **options)
        try:
            return _elsewhere(lambda: self._start(sandbox, port, {**self._env_vars, **(env_vars or {})}))
        except (AviatoError, OSError) as error:
            self.stop_container()
            if isinstance(error, AviatoValidationError):
                raise
            raise RuntimeError(f"the environment could not be started: {error}") from error
        except BaseException:
            self.stop_container()
            raise

    def _start(self, sandbox: Sandbox, port: int, env_vars: dict[str, str]) -> str:
        sandbox.wait(START_SECONDS)
        for copy in [sandbox.upload(local, remote) for local, remote in self._files.items()]:
            copy.result(START_SECONDS)
        command, cwd = self._command, None
        if command is None:
            command, cwd = [*_described(sandbox), "--port", str(port)], APP
        self._process = sandbox.exec(command, cwd=cwd, env=env_vars, timeout_seconds=math.inf)
        return sandbox.service_urls[port]

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Wait until `/health` answers.

        Raises:
            TimeoutError: it has not within `timeout_s`.
            RuntimeError: the server has ended; the message has its last words.
        """
        deadline = time.monotonic() + timeout_s
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            if self._process is not None and self._process.done():
                raise RuntimeError(f"the environment's server has ended: {_elsewhere(lambda: _last_words(self._process))}")
            left = deadline - time.monotonic()
            try:
                with opener.open(f"{base_url.rstrip('/')}/health", timeout=max(0.05, min(2.0, left))) as answer:
                    if answer.status == 200:
                        return
            except (OSError, urllib.error.URLError):
                pass
            if left <= 0:
                raise TimeoutError(f"the environment at {base_url} did not answer /health within {timeout_s:g} s")
            time.sleep(LOOK_SECONDS)

    def stop_container(self) -> None:
        """End the sandbox; without one, or again, a no-op. What cannot be ended now ends with the process."""
        sandbox, self._sandbox, self._process = self._sandbox, None, None
        if sandbox is None:
            return
        try:
            _elsewhere(lambda: sandbox.stop(0, missing_ok=True).result(STOP_SECONDS))
        except (AviatoError, RuntimeError) as error:
            logger.warning("%s was left to the server: %s", sandbox.sandbox_id, error)

    def close(self) -> None:
        """As `stop_container()`."""
        self.stop_container()


def _elsewhere(work: Callable[[], T]) -> T:
    """Block on a thread of its own: OpenEnv's client calls from within coroutines, knowing that this blocks its loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _described(sandbox: Sandbox) -> list[str]:
    try:
        found = yaml.safe_load(sandbox.read_file(DESCRIPTION).result(START_SECONDS))
    except yaml.YAMLError as error:
        raise OSError(f"{DESCRIPTION} is not YAML: {error}") from None
    app = found.get("app") if isinstance(found, dict) else None
    if not isinstance(app, str):
        raise OSError(f"{DESCRIPTION} names no app; give the provider a command=")
    return ["python", "-m", "uvicorn", app, "--host", "0.0.0.0"]


def _last_words(process: Process | None) -> str:
    assert process is not None
    try:
        result = process.result()
    except AviatoError as error:
        return str(error)
    return f"exit code {result.returncode}\n{(result.stderr or result.stdout)[-2000:]}"
