"""How somebody shows a registry who they are: what its challenges ask for, and what is answered."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aviato.server.images.bounded_json import read_object
from aviato.server.images.image_errors import image_error, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aviato.server.images.registry_credentials import Credentials

LEAST_SECONDS = 60.0
"""A token that says nothing of its end holds so long, as the protocol has it."""
EARLY_SECONDS = 10.0
LARGEST_ANSWER_BYTES = 1 << 20

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)(?:\s+|$|(?=,))")
_PARAMETER = re.compile(r'\s*([A-Za-z][A-Za-z0-9_-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)')
_TOKEN = re.compile(r"[!-~]{1,65536}")


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """One way in.

    Attributes:
        scheme: in lower case: `bearer`, `basic` or another.
        parameters: their names in lower case.
    """

    scheme: str
    parameters: dict[str, str]


class Ask(Protocol):
    """Asks a token server."""

    async def __call__(
        self, url: str, *, query: dict[str, str] | None, form: dict[str, str] | None, login: str | None
    ) -> Answer:
        """Its answer.

        Raises:
            SandboxImageError: there is none.
        """
        ...


@dataclass(frozen=True)
class Answer:
    """A status and a body."""

    status: int
    body: bytes


def read_challenges(headers: Iterable[str]) -> list[Challenge]:
    """What the WWW-Authenticate headers of an answer ask for; what cannot be read ends its header."""
    found = []
    for header in headers:
        position = 0
        while (scheme := _SCHEME.match(header, position)) is not None:
            position = scheme.end()
            parameters: dict[str, str] = {}
            while (parameter := _PARAMETER.match(header, position)) is not None:
                name, text, word = parameter.groups()
                parameters[name.lower()] = re.sub(r"\\(.)", r"\1", text) if text is not None else word
                position = parameter.end()
            found.append(Challenge(scheme=scheme[1].lower(), parameters=parameters))
            if position >= len(header):
                break
    return found


class RegistryTokens:
    """The Authorization headers for one repository at one host.

    Args:
        host: of the registry, for messages.
        scope: of the repository.
        credentials: of the user, or None.
        ask: asks a token server.
    """

    def __init__(self, host: str, scope: str, credentials: Credentials | None, ask: Ask) -> None:
        self._host = host
        self._scope = scope
        self._credentials = credentials
        self._ask = ask
        self._header: str | None = None
        self._until = 0.0

    @property
    def has_credentials(self) -> bool:
        """Whether there is anything to log in with."""
        return self._credentials is not None

    def header(self) -> str | None:
        """What requests say, as far as that is known."""
        return self._header if time.monotonic() < self._until else None

    async def meet(self, challenges: list[Challenge]) -> bool:
        """Do what a registry asks for; False if that cannot be done, or is done already.

        Raises:
            SandboxImageError: the token server refuses, or fails.
        """
        by_scheme = {challenge.scheme: challenge for challenge in reversed(challenges)}
        before = self.header()
        if (bearer := by_scheme.get("bearer")) is not None and "realm" in bearer.parameters:
            self._header, self._until = await self._token(bearer.parameters)
        elif "basic" in by_scheme and self._credentials is not None:
            self._header, self._until = self._credentials.basic, float("inf")
        return self.header() != before

    async def _token(self, parameters: dict[str, str]) -> tuple[str, float]:
        realm, credentials = parameters["realm"], self._credentials
        asked = {"scope": parameters.get("scope") or self._scope}
        if service := parameters.get("service"):
            asked["service"] = service
        now = time.monotonic()
        if credentials is not None and credentials.identity_token is not None:
            form = {"grant_type": "refresh_token", "client_id": "aviato", "refresh_token": credentials.identity_token, **asked}
            answer = await self._ask(realm, query=None, form=form, login=None)
        else:
            answer = await self._ask(realm, query=asked, form=None, login=credentials.basic if credentials else None)
        if answer.status in (400, 401, 403):
            if credentials is not None:
                raise image_error("denied", f"the registry {self._host} does not take the credentials there are: log in again")
            raise image_error("needs_credentials", f"the registry {self._host} asks for credentials: {login(self._host)}")
        if answer.status != 200:
            raise image_error("registry_failed", f"the token server of {self._host} answered HTTP {answer.status}")
        return _read(read_object(answer.body, f"the token of {self._host}"), self._host, now)


def login(host: str) -> str:
    """What somebody without credentials does next."""
    return f"log in with `docker login {host}` or `podman login {host}`"


def _read(said: dict[str, Any], host: str, now: float) -> tuple[str, float]:
    token = said.get("token") or said.get("access_token")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise image_error("not_a_registry", f"the token server of {host} sent no token but {quoted(token)[:20]}")
    seconds = said.get("expires_in")
    lasts = float(seconds) if isinstance(seconds, (int, float)) and seconds > 0 else LEAST_SECONDS
    return f"Bearer {token}", now + max(lasts - EARLY_SECONDS, EARLY_SECONDS)
