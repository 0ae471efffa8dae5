"""W&B keys: whose they are, asked of the W&B API and remembered for a while."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import re
import ssl
import time
from base64 import b64encode
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp

from aviato.exceptions import AviatoValidationError, SandboxUnavailableError, WandbAuthError
from aviato.server.callers import ENTITY, Caller
from aviato.system.proxies import proxy_of
from aviato.wire.credentials import WANDB_ENTITY_HEADER, WANDB_KEY_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

log = logging.getLogger(__name__)

DEFAULT_BASE_URL = "https://api.wandb.ai"
REMEMBERED_SECONDS = 600.0
REFRESH_SECONDS = 480.0
"""After so long a known key is asked about again while its answer still counts, so that no request waits for it."""
OUTAGE_SECONDS = 4 * 3600.0
"""How long a known key counts while W&B cannot be asked: sandboxes end with the heartbeats of their callers."""
RETRY_SECONDS = 30.0
"""How soon a known key is asked about again where that failed."""
MOST_REMEMBERED = 10_000
MOST_ASKED = 64
"""How many unknown keys are asked about at a time, and how many known ones beside them. Who knows none could otherwise make
the server ask without end."""
ANSWER_SECONDS = 10.0
LARGEST_ANSWER_BYTES = 1 << 20
QUERY = "query Viewer { viewer { id username entity teams { edges { node { name } } } } }"
_KEY = re.compile(r"[!-~]{1,256}")


@dataclass(frozen=True, slots=True)
class _Viewer:
    """Whom W&B knows by a key; an empty name is nobody."""

    username: str
    entities: frozenset[str]


_NOBODY = _Viewer("", frozenset())


@dataclass(slots=True)
class _Answer:
    """What W&B said of a key, and when; `retry_at` is when it may be asked about again."""

    viewer: _Viewer
    at: float
    retry_at: float = 0.0


class WandbKeys:
    """Tells who calls by their W&B key.

    Args:
        base_url: of the W&B API; None is the public one.
        entities: whose members are let in; empty is all that W&B knows, and those may use no secrets.
        clock: in seconds, for what is remembered.

    Raises:
        AviatoValidationError: keys would go there in clear.
    """

    def __init__(
        self, base_url: str | None = None, entities: Iterable[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._entities = frozenset(entities)
        self._url = f"{_checked(base_url or DEFAULT_BASE_URL)}/graphql"
        self._clock = clock
        # Apart, so that made-up keys push no known one out.
        self._known: OrderedDict[str, _Answer] = OrderedDict()
        self._unknown: OrderedDict[str, _Answer] = OrderedDict()
        self._asking: dict[str, asyncio.Task[_Viewer]] = {}
        self._asking_known: set[str] = set()
        self._authorities = ssl.create_default_context()
        self._session: aiohttp.ClientSession | None = None

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who calls. A tenant is a W&B user within an entity.

        Raises:
            WandbAuthError: W&B does not know the key, or its user is not in the entity, or that is not let in.
            SandboxUnavailableError: W&B does not answer.
        """
        key, entity = headers.get(WANDB_KEY_HEADER, ""), headers.get(WANDB_ENTITY_HEADER, "")
        if _KEY.fullmatch(key) is None:
            raise WandbAuthError("the W&B key is none")
        if ENTITY.fullmatch(entity) is None:
            raise WandbAuthError("a W&B entity is needed beside the key: set WANDB_ENTITY_NAME")
        if self._entities and entity not in self._entities:
            # Not which ones are: that is for the operator to say.
            raise WandbAuthError(f"the W&B entity {entity!r} is not let in here: see WANDB_ENTITY_NAME")
        viewer = await self._viewer(key)
        if not viewer.username:
            raise WandbAuthError("W&B does not know this key: see WANDB_API_KEY, or run `wandb login`")
        if entity not in viewer.entities:
            raise WandbAuthError(f"the W&B user {viewer.username!r} is not in the entity {entity!r}: see WANDB_ENTITY_NAME")
        return Caller(tenant=f"wandb:{entity}/{viewer.username}", secrets=None if self._entities else ())

    async def close(self) -> None:
        """Ask no more."""
        for task in self._asking.values():
            task.cancel()
        if self._session is not None:
            await self._session.close()

    async def _viewer(self, key: str) -> _Viewer:
        # By its hash, so that a key does not stay in memory for ten minutes.
        name, now = hashlib.sha256(key.encode()).hexdigest(), self._clock()
        known = self._known.get(name)
        answer = known or self._unknown.get(name)
        if answer is not None and now - answer.at < REMEMBERED_SECONDS:
            if known is not None and now - known.at >= REFRESH_SECONDS and now >= known.retry_at:
                with suppress(SandboxUnavailableError):
                    self._start(name, key)
            return answer.viewer
        if known is None or now - known.at >= OUTAGE_SECONDS:
            return await asyncio.shield(self._start(name, key))
        if now < known.retry_at:
            return known.viewer
        try:
            return await asyncio.shield(self._start(name, key))
        except SandboxUnavailableError:
            return known.viewer

    def _start(self, name: str, key: str) -> asyncio.Task[_Viewer]:
        task = self._asking.get(name)
        if task is None:
            is_known = name in self._known
            if (len(self._asking_known) if is_known else len(self._asking) - len(self._asking_known)) >= MOST_ASKED:
                raise _unavailable(f"too many {'known' if is_known else 'unknown'} W&B keys at a time")
            if is_known:
                self._asking_known.add(name)
            task = self._asking[name] = asyncio.create_task(self._ask(key), name="ask W&B whose a key is")
            task.add_done_callback(lambda done: self._remember(name, done))
        return task

    def _remember(self, name: str, task: asyncio.Task[_Viewer]) -> None:
        del self._asking[name]
        self._asking_known.discard(name)
        now = self._clock()
        if task.cancelled() or task.exception() is not None:
            if name in self._known:
                self._known[name].retry_at = now + RETRY_SECONDS
            return
        for answers in (self._known, self._unknown):
            answers.pop(name, None)
        answers = self._known if task.result().username else self._unknown
        answers[name] = _Answer(task.result(), now)
        while len(answers) > MOST_REMEMBERED:
            answers.popitem(last=False)

    async def _ask(self, key: str) -> _Viewer:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
            # Known keys do not wait for a connection that unknown ones hold.
            connector = aiohttp.TCPConnector(limit=2 * MOST_ASKED, ssl=self._authorities)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        try:
            login = b64encode(f"api:{key}".encode()).decode()
            # Without redirects, which would take the key elsewhere.
            async with self._session.post(
                self._url,
                json={"query": QUERY},
                headers={"Authorization": f"Basic {login}"},
                proxy=proxy_of(self._url),
                allow_redirects=False,
            ) as response:
                if response.status in (401, 403):
                    return _NOBODY
                if response.status != 200:
                    raise _unavailable(f"it answered HTTP {response.status}")
                data = await response.content.read(LARGEST_ANSWER_BYTES)
                while piece := await response.content.read(LARGEST_ANSWER_BYTES):
                    data += piece
                    if len(data) > LARGEST_ANSWER_BYTES:
                        raise _unavailable("its answer is too large")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("the W&B API cannot be asked: %r", error)
            raise _unavailable(type(error).__name__) from None
        return _read(data)


def _read(data: bytes) -> _Viewer:
    """Whom an answer of the API names."""
    import json

    try:
        answer = json.loads(data)
        viewer = answer["data"]["viewer"]
        if viewer is None:
            return _NOBODY
        edges = (viewer.get("teams") or {}).get("edges") or ()
        names = [viewer["username"], viewer.get("entity"), *(edge["node"]["name"] for edge in edges)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _unavailable("its answer cannot be read") from None
    if not isinstance(names[0], str) or not names[0]:
        raise _unavailable("its answer names no user")
    return _Viewer(names[0], frozenset(name for name in names if isinstance(name, str)))


def _checked(base_url: str) -> str:
    parts: Any = urlsplit(base_url)
    host = parts.hostname or ""
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback)):
        raise AviatoValidationError(f"WANDB_BASE_URL is {base_url!r}: keys are sent to https:// only")
    return base_url.rstrip("/")


def _unavailable(why: str) -> SandboxUnavailableError:
    return SandboxUnavailableError(f"the W&B API could not be asked whose the key is: {why}", reason="wandb")
