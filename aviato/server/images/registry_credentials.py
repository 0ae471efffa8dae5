"""Who somebody is at a registry, as the files of Docker and podman have it."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aviato.server.images import programs
from aviato.server.images.image_errors import quoted
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

HELPER_SECONDS = 30.0
LARGEST_BYTES = 1 << 20
_HUB = ("https://index.docker.io/v1/", "docker.io", "index.docker.io", "registry-1.docker.io")
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TOKEN = "<token>"


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """A name and its password, or a token that stands for both.

    Attributes:
        username: of the user.
        password: of the user.
        identity_token: what a token is asked for with in place of the password, or None.
    """

    username: str
    password: str
    identity_token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.username!r})"

    @property
    def basic(self) -> str:
        """What a header says for them."""
        return f"Basic {base64.b64encode(f'{self.username}:{self.password}'.encode()).decode()}"


def files(environment: Mapping[str, str]) -> list[str]:
    """Where credentials may be, in order of preference."""
    home = environment.get("HOME") or os.path.expanduser("~")
    docker, runtime = environment.get("DOCKER_CONFIG"), environment.get("XDG_RUNTIME_DIR")
    config = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    found = [
        environment.get("REGISTRY_AUTH_FILE"),
        f"{docker}/config.json" if docker else None,
        f"{runtime}/containers/auth.json" if runtime else None,
        f"{config}/containers/auth.json",
        None if docker else f"{home}/.docker/config.json",
    ]
    return [path for path in found if path]


async def find_credentials(registry: str, repository: str) -> Credentials | None:
    """The credentials of this process's user for a repository; None if there are none.

    Args:
        registry: host and port; Docker Hub is `docker.io`.
        repository: the path there, since podman may have some for a part of a registry.
    """
    for path in files(os.environ):
        content = await in_thread(_read, path)
        found = await _in_file(content, registry, repository)
        if found is not None:
            return found
    return None


async def _in_file(content: Mapping[str, Any], registry: str, repository: str) -> Credentials | None:
    servers = _HUB if registry == "docker.io" else (registry, f"https://{registry}")
    helpers = _object(content, "credHelpers")
    for server in servers:
        if isinstance(helper := helpers.get(server), str):
            return await _ask(helper, server)
    auths = {_plain(key): value for key, value in _object(content, "auths").items()}
    parts = repository.split("/")
    names = [f"{registry}/{'/'.join(parts[:count])}" for count in range(len(parts), 0, -1)]
    for key in (*names, *map(_plain, servers)):
        if (found := _written(auths.get(key))) is not None:
            return found
    if isinstance(store := content.get("credsStore"), str):
        return await _ask(store, servers[0])
    return None


def _written(entry: object) -> Credentials | None:
    """What one entry of `auths` says."""
    if not isinstance(entry, dict):
        return None
    username, password = entry.get("username"), entry.get("password")
    if isinstance(encoded := entry.get("auth"), str) and encoded:
        try:
            username, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return None
        if not colon:
            return None
    token = entry.get("identitytoken")
    if isinstance(token, str) and token:
        return Credentials(username=str(username or ""), password="", identity_token=token)
    if not isinstance(username, str) or not isinstance(password, str) or not username:
        return None
    return Credentials(username=username, password=password.rstrip("\0"))


async def _ask(helper: str, server: str) -> Credentials | None:
    """What a program of the user's says. One that fails is reported, and nobody is logged in."""
    if not _HELPER.fullmatch(helper):
        log.warning("the credential helper %s has no name of one", quoted(helper))
        return None
    name = f"docker-credential-{helper}"
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(name, "get", stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    except OSError as error:
        log.warning("%s cannot be asked for credentials of %s: %s", name, server, error.strerror)
        return None
    try:
        async with asyncio.timeout(HELPER_SECONDS):
            output, _ = await process.communicate(server.encode())
    except TimeoutError:
        log.warning("%s does not answer for %s", name, server)
        return None
    finally:
        await programs.end(process)
    if process.returncode != 0:
        if b"not found" not in output:
            log.warning("%s failed for %s with status %s", name, server, process.returncode)
        return None
    said = _parse(output)
    username, secret = said.get("Username"), said.get("Secret")
    if not isinstance(username, str) or not isinstance(secret, str) or not secret:
        return None
    if username == _TOKEN:
        return Credentials(username="", password="", identity_token=secret)
    return Credentials(username=username, password=secret)


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return _parse(file.read(LARGEST_BYTES))
    except OSError:
        return {}


def _parse(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _object(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _plain(server: str) -> str:
    """A key of `auths` without its scheme, and without the path of the interface."""
    plain = server.partition("://")[2] or server
    plain = plain.rstrip("/")
    return plain[: -len("/v1")] if plain.endswith("/v1") else plain[: -len("/v2")] if plain.endswith("/v2") else plain
