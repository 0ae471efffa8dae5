"""A connection to the API of a Kubernetes cluster, by kubernetes-asyncio, which is imported with the first.

Objects are plain JSON: a server reads thousands of pods, and most of what they say means nothing to it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxResourceExhaustedError, SandboxUnavailableError
from aviato.installation import extra_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from aviato.exceptions import AviatoError

log = logging.getLogger(__name__)

Object = dict[str, Any]

SECONDS = 30.0
"""So long an API server may take for one answer."""
PATIENCE_SECONDS = 120.0
"""How long a request is repeated that an API server has not taken: one that is overloaded comes to it."""
AGAIN_SECONDS = 0.2
MOST_AT_ONCE = 64
"""Requests on their way."""
PER_SECOND = 100.0
"""Requests that begin, on average: what is beyond that waits here, rather than in the queues of an API server."""
UNREACHABLE = 0
UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE, TOO_MANY = 401, 403, 404, 409, 410, 429
NOT_TAKEN = (400, 413, 422)
"""Of an object that is wrong or too large, and is so each time."""
PORT_FORWARD = "v4.channel.k8s.io"
"""The subprotocol: messages begin with a byte, twice the place of the port in the request, one more for its errors."""
PIECE_BYTES = 256 << 10
NAMES_ALONE = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_NO_RIGHT = re.compile(r"\bcannot \w+ (resource|path)\b")
"""In what a cluster says to who lacks a right, by RBAC and by other authorizers alike."""
WATCH_SECONDS = 240


class ClusterError(Exception):
    """What an API server refused, or that none answers.

    Attributes:
        status: of HTTP; `UNREACHABLE` where there is no answer.
        reason: as Kubernetes has it, such as `Forbidden` or `AlreadyExists`.
        message: in the words of the API server.
        retry_after_seconds: when it may be asked again, if it said so.
    """

    def __init__(self, status: int, message: str, reason: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_seconds = retry_after_seconds

    @property
    def is_unreachable(self) -> bool:
        """Whether nobody answers."""
        return self.status == UNREACHABLE

    @property
    def is_admission(self) -> bool:
        """Whether the user may make such objects, and this one is refused for what it is."""
        if "admission webhook" in self.message:
            return True
        return self.status == FORBIDDEN and "is forbidden:" in self.message and _NO_RIGHT.search(self.message) is None

    def admission_remedy(self, namespace: str = "NAMESPACE") -> str:
        """What to do about that.

        Args:
            namespace: of the object.
        """
        if "RuntimeClass" in self.message:
            return "name one of those that kubectl get runtimeclass lists, by --kubernetes-runtime-class"
        return f"see kubectl describe namespace {namespace}: its Pod Security level, limits and quota"

    def as_error(self, what: str, sandbox_id: str | None = None) -> AviatoError:
        """The error for callers: the cluster is part of the machine, so no sandbox's code is to blame."""
        text = f"{what}: {self.message}"
        if "exceeded quota" in self.message:
            return SandboxResourceExhaustedError(
                f"{text}; free some of it, or have the quota of the namespace raised", sandbox_id=sandbox_id, reason="quota"
            )
        if self.is_unreachable:
            return SandboxUnavailableError(text, sandbox_id=sandbox_id, reason="cluster_unreachable")
        if self.is_admission:
            text += f"; {self.admission_remedy()}"
            return SandboxUnavailableError(text, sandbox_id=sandbox_id, reason="not_admitted", retryable=False)
        if self.status == UNAUTHENTICATED:
            text += "; log in to the cluster again, so that kubectl get pods works as the server's user"
            return SandboxUnavailableError(text, sandbox_id=sandbox_id, reason="unauthenticated", retryable=False)
        if self.status in NOT_TAKEN:
            return SandboxUnavailableError(text, sandbox_id=sandbox_id, reason="not_admitted", retryable=False)
        if self.status == FORBIDDEN:
            overlay = "agent-sandbox" if "agents.x-k8s.io" in self.message else "pods"
            text += f"; the server's service account needs the rights of deploy/kubernetes/overlays/{overlay}/role.yaml"
            return SandboxUnavailableError(text, sandbox_id=sandbox_id, reason="forbidden", retryable=False)
        return SandboxUnavailableError(text, sandbox_id=sandbox_id, reason="cluster")


class NoLibrary(Exception):
    """kubernetes-asyncio is not installed."""

    remedy: str

    def __init__(self) -> None:
        super().__init__("the Python package kubernetes-asyncio is not installed")
        self.remedy = extra_command("kubernetes")


class NoCluster(Exception):
    """There is nothing that says where the cluster is, or it cannot be read."""


class Cluster:
    """One cluster, as one user of it, in one namespace. Made by `connect`."""

    def __init__(self, api: Any, namespace: str, log_in: Callable[[], Awaitable[object]]) -> None:
        self.namespace = namespace
        self.address = str(api.configuration.host)
        self._api = api
        self._log_in = log_in
        self._logging_in = asyncio.Lock()
        self._session = api.rest_client.pool_manager
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._next_at = 0.0
        self._carrying: set[asyncio.Task[None]] = set()
        self._making: dict[str, asyncio.Task[Object]] = {}

    @classmethod
    async def connect(cls, context: str | None, namespace: str | None) -> Cluster:
        """By `KUBECONFIG`, else by the pod's own account, else by the usual file. Asks nothing yet.

        Args:
            context: of that file; None: its current one.
            namespace: None: the pod's or the context's, or `default`.

        Raises:
            NoLibrary: kubernetes-asyncio is not installed.
            NoCluster: no account and no file can be used.
        """
        try:
            from kubernetes_asyncio import client, config
        except ImportError as error:
            raise NoLibrary from error
        configuration = client.Configuration()
        log_in: Callable[[], Awaitable[object]] = _nothing
        own: str | None = None
        try:
            if context is None and not os.environ.get("KUBECONFIG"):
                with suppress(config.ConfigException):
                    config.load_incluster_config(  # type: ignore[no-untyped-call]
                        client_configuration=configuration
                    )
                    own = await asyncio.to_thread(_read, "/var/run/secrets/kubernetes.io/serviceaccount/namespace")
            if own is None:
                file = os.environ.get("KUBECONFIG") or None
                log_in = partial(config.load_kube_config, file, context, configuration)
                await log_in()
                own = await asyncio.to_thread(_namespace_of, config, file, context)
        except (config.ConfigException, OSError, ValueError, TypeError) as error:
            raise NoCluster(str(error) or type(error).__name__) from error
        configuration.connection_pool_maxsize = 0  # What is at once is bounded here; watches and ways to pods stay open.
        return cls(client.ApiClient(configuration), namespace or own or "default", log_in)

    async def close(self) -> None:
        """Let go of its connections."""
        tasks = [*self._carrying, *self._making.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._api.close()

    def path(self, kind: str, name: str | None = None, *, group: str = "api/v1") -> str:
        """Where objects of the namespace are.

        Args:
            kind: in the plural.
            name: of one; None: all.
            group: of the API, with its version.
        """
        own = f"/{group}/namespaces/{self.namespace}/{kind}"
        return own if name is None else f"{own}/{name}"

    async def ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        patch: bool = False,
        makes: str | None = None,
        accept: str | None = None,
    ) -> Object:
        """One request and its answer. One that the API server has not taken is repeated for a while.

        Args:
            method: of HTTP.
            path: see `path`.
            body: as JSON.
            query: of the address.
            patch: the body is a merge patch.
            accept: the form of the answer; None: as the object is.
            makes: the path of the one object that it makes: it may be repeated once taken, and what is there is the answer.

        Raises:
            ClusterError: it was refused, or there is no answer.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                async with self._places:
                    await self._turn()
                    return await self._asked(method, path, body, query, "merge-patch+json" if patch else "json", accept)
            except ClusterError as error:
                taken = method == "POST" and error.status in (UNREACHABLE, 500, 504)  # It may have been.
                if makes is not None and error.status == CONFLICT and error.reason == "AlreadyExists":
                    there = await self.find(makes)
                    if there is not None:
                        return there
                elif error.status not in (UNREACHABLE, TOO_MANY, 500, 503, 504) or (taken and makes is None):
                    raise
                wait = error.retry_after_seconds or AGAIN_SECONDS
                if time.monotonic() + wait > deadline:
                    raise
            await asyncio.sleep(wait)

    async def find(self, path: str) -> Object | None:
        """One object; None if there is none.

        Raises:
            ClusterError: see `ask`.
        """
        try:
            return await self.ask("GET", path)
        except ClusterError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def make(self, path: str, body: Object) -> Object:
        """Make an object of a name of its own; one that an earlier try has made is it.

        Raises:
            ClusterError: see `ask`.
        """
        makes = f"{path}/{body['metadata']['name']}"
        # What an API server has been asked for it makes, whoever waits: `remove` waits for that.
        making = self._making[makes] = asyncio.create_task(self.ask("POST", path, body, makes=makes))
        making.add_done_callback(partial(self._made, makes))
        return await asyncio.shield(making)

    def _made(self, path: str, making: asyncio.Task[Object]) -> None:
        if self._making.get(path) is making:
            del self._making[path]
        if not making.cancelled():
            making.exception()  # Seen: who has asked may have gone.

    async def have(self, path: str, body: Object) -> Object:
        """The object of this name, as it is there; where it is not, made like this.

        Raises:
            ClusterError: see `ask`.
        """
        return await self.find(f"{path}/{body['metadata']['name']}") or await self.make(path, body)

    async def remove(self, path: str, *, grace_seconds: int | None = None) -> None:
        """Take an object away; none is no error.

        Raises:
            ClusterError: see `ask`.
        """
        if (making := self._making.get(path)) is not None:
            await asyncio.wait((making,))
        query = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            query["gracePeriodSeconds"] = str(grace_seconds)
        try:
            await self.ask("DELETE", path, query=query)
        except ClusterError as error:
            if error.status != NOT_FOUND:
                raise

    async def all(self, path: str, selector: str, *, names_alone: bool = False) -> tuple[list[Object], str]:
        """All objects with these labels, and the version of the list.

        Args:
            path: see `path`.
            selector: of their labels.
            names_alone: nothing but their `metadata`: what is in them may be large.

        Raises:
            ClusterError: see `ask`.
        """
        found: list[Object] = []
        query = {"labelSelector": selector, "limit": "500"}
        while True:
            page = await self.ask("GET", path, query=query, accept=NAMES_ALONE if names_alone else None)
            found += page["items"] or []  # Of names alone none is no list.
            if not (more := page["metadata"].get("continue")):
                return found, str(page["metadata"]["resourceVersion"])
            query["continue"] = more

    async def watch(self, path: str, selector: str, version: str) -> AsyncIterator[tuple[str, Object]]:
        """What changes behind a version of a list: `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`, each with the object.

        It ends after some minutes; who goes on begins with the last object's version.

        Raises:
            ClusterError: status `GONE`: the version is too old; another: see `ask`.
        """
        query = {
            "watch": "1",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        import aiohttp

        # One that is silent for longer than it may last has been lost by somebody on the way.
        limits = aiohttp.ClientTimeout(sock_connect=SECONDS, sock_read=WATCH_SECONDS + SECONDS)
        try:
            async with await self._open("GET", path, None, query, "json", limits) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error_of(int(event["object"].get("code", 500)), event["object"])
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error

    async def forward(self, pod: str, port: int) -> socket.socket:
        """A connection to a port of a pod, carried by the API server and the node's kubelet. The caller owns it.

        Raises:
            ClusterError: there is none.
        """
        import aiohttp

        headers, query = await self._allowed({"ports": str(port)})
        url = f"{self.address}{self.path('pods', f'{pod}/portforward')}"
        try:
            web = await self._session.ws_connect(
                url, headers=headers, params=query, protocols=(PORT_FORWARD,), max_msg_size=0, heartbeat=30.0
            )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == UNAUTHENTICATED:
                await self._log_in_again(headers)
            raise ClusterError(error.status, f"no way to port {port} of pod {pod}: HTTP {error.status}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error
        own, theirs = socket.socketpair()
        for one in (own, theirs):
            one.setblocking(False)
        task = asyncio.create_task(_carry(web, theirs), name=f"way to {pod}")
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        return own

    # -- inside ---------------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Wait until one more request may begin."""
        now = time.monotonic()
        self._next_at = max(self._next_at + 1 / PER_SECOND, now - 1.0)  # A second's worth may begin at once.
        if self._next_at > now:
            await asyncio.sleep(self._next_at - now)

    async def _log_in_again(self, refused: Mapping[str, str]) -> bool:
        """Whether there are other credentials now than those that were refused: some hold for minutes.

        Raises:
            ClusterError: there are none.
        """
        async with self._logging_in:
            if await self._allowed(None) != (refused, []):
                return True  # Somebody else has.
            try:
                await self._log_in()
            except Exception as error:  # Whatever a plugin of the user's fails with.
                text = f"the kubeconfig's credentials have come to an end, and there are no new ones: {error}"
                raise ClusterError(UNAUTHENTICATED, text) from error
            return await self._allowed(None) != (refused, [])

    async def _allowed(self, query: Mapping[str, str] | None) -> tuple[dict[str, str], list[tuple[str, str]]]:
        """Headers and query, with what says who asks."""
        headers: dict[str, str] = {}
        pairs = list((query or {}).items())
        await self._api.update_params_for_auth(headers, pairs, ["BearerToken"])
        return headers, pairs

    async def _open(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Mapping[str, str] | None,
        kind: str,
        timeout: Any,
        accept: str | None = None,
    ) -> Any:
        said, data = {} if accept is None else {"Accept": accept}, None
        if body is not None:
            said["Content-Type"] = f"application/{kind}"
            data = json.dumps(body, separators=(",", ":")).encode()
        is_again = False
        while True:
            allowed, pairs = await self._allowed(query)
            answer = await self._session.request(
                method, self.address + path, headers={**allowed, **said}, params=pairs, data=data, timeout=timeout
            )
            if answer.status < 400:
                return answer
            async with answer:
                error = _error_of(answer.status, await _body(answer), answer.headers.get("Retry-After"))
            if error.status != UNAUTHENTICATED or is_again or not await self._log_in_again(allowed):
                raise error
            is_again = True

    async def _asked(
        self, method: str, path: str, body: Object | None, query: Mapping[str, str] | None, kind: str, accept: str | None
    ) -> Object:
        import aiohttp

        try:
            timeout = aiohttp.ClientTimeout(total=SECONDS)
            async with await self._open(method, path, body, query, kind, timeout, accept) as answer:
                found: Object = json.loads(await answer.read())
                return found
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ClusterError:
        why = str(error) or f"no answer in {SECONDS:g} s"
        return ClusterError(UNREACHABLE, f"the API server at {self.address} cannot be reached: {why}")


async def _carry(web: Any, sock: socket.socket) -> None:
    """Move bytes between a forwarded port and a socket until either ends; then both have."""
    loop = asyncio.get_running_loop()

    async def outward() -> None:
        while data := await loop.sock_recv(sock, PIECE_BYTES):
            await web.send_bytes(b"\0" + data)

    async def inward() -> None:
        begun = set()
        async for message in web:
            data = message.data
            if not isinstance(data, bytes) or not data:
                return
            if data[0] not in begun:
                begun.add(data[0])  # The first of each channel says the port.
                data = data[:1] + data[3:]
            if data[0] == 1 and len(data) > 1:
                return  # Nobody listens, or the pod is gone.
            if data[0] == 0:
                await loop.sock_sendall(sock, data[1:])

    tasks = [asyncio.ensure_future(outward()), asyncio.ensure_future(inward())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        sock.close()
        with suppress(Exception):
            await web.close()


async def _body(answer: Any) -> Object:
    try:
        found = json.loads(await answer.read())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _error_of(status: int, body: Object, retry_after: str | None = None) -> ClusterError:
    """From a `Status` of Kubernetes, or from what a proxy between has said."""
    seconds = (body.get("details") or {}).get("retryAfterSeconds")
    if seconds is None and retry_after is not None and retry_after.isdecimal():
        seconds = int(retry_after)
    message = str(body.get("message") or f"HTTP {status}")
    return ClusterError(status, message, str(body.get("reason") or ""), seconds)


async def _nothing() -> None:
    """What a pod does for its credentials: they are read again by themselves."""


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def _namespace_of(config: Any, file: str | None, context: str | None) -> str:
    contexts, active = config.list_kube_config_contexts(config_file=file)
    named = active if context is None else next(one for one in contexts if one["name"] == context)
    return str(named["context"].get("namespace") or "default")
