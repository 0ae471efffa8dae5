"""The interface of registries, as OCI's distribution has it: manifests by tag or digest, and blobs from any byte on."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from aviato.exceptions import SandboxImageError
from aviato.server.images.image_errors import image_error, quoted
from aviato.server.images.image_sources import RawManifest
from aviato.server.images.manifests import ACCEPTED, LARGEST_BYTES
from aviato.server.images.oci_reference import DEFAULT_REGISTRY, is_digest
from aviato.server.images.registry_credentials import find_credentials
from aviato.server.images.registry_requests import RegistryRequests, is_allowed
from aviato.server.images.registry_tokens import RegistryTokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    import aiohttp

    from aviato.server.images.manifests import Descriptor
    from aviato.server.images.oci_reference import OciReference
    from aviato.server.images.patience import Patience

_T = TypeVar("_T")

HUB = "https://registry-1.docker.io"
MOST_TAGS = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Endpoint:
    """A host that has the repository, and the repository's path there."""

    requests: RegistryRequests
    host: str
    repository: str


class Registry:
    """The source of an image in a registry.

    Args:
        reference: what is wanted.
        mirrors: by registry, the hosts that are asked before it: `HOST[:PORT][/PATH]`, or a URL.
        patience: with each of them.

    Raises:
        SandboxImageError: a mirror is none.
    """

    def __init__(self, reference: OciReference, *, mirrors: Mapping[str, tuple[str, ...]], patience: Patience) -> None:
        self._what = reference.name
        self._reference = reference
        self._patience = patience
        self._endpoints = [self._mirror(mirror) for mirror in mirrors.get(reference.registry, ())]
        base = HUB if reference.registry == DEFAULT_REGISTRY else reference.registry
        self._endpoints.append(self._endpoint(base, reference.registry, reference.repository))
        self._opened = tuple(self._endpoints)

    async def digest(self) -> str | None:
        """See `ImageSource`."""

        async def ask(endpoint: _Endpoint) -> str | None:
            response = await self._ask_for_manifest(endpoint, self._wanted, "HEAD")
            with closing_response(response):
                digest = response.headers.get("Docker-Content-Digest")
                return digest if response.status == 200 and is_digest(digest) else None

        return await self._first(ask)

    async def manifest(self, digest: str | None = None) -> RawManifest:
        """See `ImageSource`."""

        async def ask(endpoint: _Endpoint) -> RawManifest:
            response = await self._ask_for_manifest(endpoint, digest or self._wanted, "GET")
            with closing_response(response):
                body = await endpoint.requests.read(response, LARGEST_BYTES, f"the manifest of {self._what}")
                if response.status != 200:
                    raise await self._refused(endpoint, response, body)
                media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
                self._check_kind(endpoint, media_type, body)
            found = f"sha256:{hashlib.sha256(body).hexdigest()}"
            wanted = digest or self._reference.digest
            if wanted is not None and wanted != found:
                raise image_error("wrong_digest", f"{endpoint.host} sent a manifest of {self._what} with the digest {found}")
            return RawManifest(data=body, digest=found, media_type=media_type)

        return await self._first(ask)

    async def blob(self, descriptor: Descriptor, offset: int = 0) -> AsyncIterator[bytes]:
        """See `ImageSource`."""

        async def ask(endpoint: _Endpoint) -> tuple[_Endpoint, aiohttp.ClientResponse]:
            headers = {"Range": f"bytes={offset}-"} if offset else {}
            response = await endpoint.requests.get(f"/v2/{endpoint.repository}/blobs/{descriptor.digest}", headers)
            if response.status in (200, 206):
                return endpoint, response
            with closing_response(response):
                raise await self._refused(endpoint, response, await endpoint.requests.read(response, LARGEST_BYTES, self._what))

        endpoint, response = await self._first(ask)
        with closing_response(response):
            skip = self._to_skip(endpoint, response, offset)
            try:
                while piece := await endpoint.requests.next_piece(response):
                    skipped = min(skip, len(piece))
                    skip -= skipped
                    if skipped < len(piece):
                        yield piece[skipped:]
            except SandboxImageError as error:
                self._avoid(endpoint, error)
                raise

    async def close(self) -> None:
        """See `ImageSource`."""
        for endpoint in self._opened:
            await endpoint.requests.close()

    @property
    def _wanted(self) -> str:
        return str(self._reference.digest or self._reference.tag)

    def _mirror(self, mirror: str) -> _Endpoint:
        scheme, separator, rest = mirror.rpartition("://")
        host, _, path = rest.strip("/").partition("/")
        if not host or (separator and not is_allowed(f"{scheme}://{host}")):
            raise image_error("bad_reference", f"the mirror {quoted(mirror)} is none: HOST[:PORT][/PATH], spoken to by https")
        return self._endpoint(f"{scheme}{separator}{host}", host, "/".join(filter(None, (path, self._reference.repository))))

    def _endpoint(self, base: str, host: str, repository: str) -> _Endpoint:
        async def tokens(requests: RegistryRequests) -> RegistryTokens:
            credentials = await find_credentials(host, repository)
            return RegistryTokens(host, f"repository:{repository}:pull", credentials, requests.ask_for_token)

        return _Endpoint(RegistryRequests(base, host, tokens, self._patience), host, repository)

    async def _first(self, ask: Callable[[_Endpoint], Awaitable[_T]]) -> _T:
        """What the first of the endpoints says that has it; of the registry itself, which is the last, also an error."""
        for endpoint in self._endpoints[:-1]:
            try:
                return await ask(endpoint)
            except SandboxImageError as error:
                self._avoid(endpoint, error)
        for attempt in range(self._patience.attempts - 1):
            try:
                return await ask(self._endpoints[-1])
            except SandboxImageError as error:
                if error.reason != "interrupted":
                    raise
            await asyncio.sleep(self._patience.backoff(attempt))
        return await ask(self._endpoints[-1])

    def _avoid(self, endpoint: _Endpoint, error: SandboxImageError) -> None:
        """Ask a mirror that has failed no more for this image."""
        if endpoint in self._endpoints[:-1]:
            log.info("%s is got from elsewhere: %s", self._what, error)
            self._endpoints.remove(endpoint)

    async def _ask_for_manifest(self, endpoint: _Endpoint, wanted: str, method: str) -> aiohttp.ClientResponse:
        path = f"/v2/{endpoint.repository}/manifests/{wanted}"
        return await endpoint.requests.get(path, {"Accept": ", ".join(ACCEPTED)}, method=method)

    def _check_kind(self, endpoint: _Endpoint, media_type: str, body: bytes) -> None:
        if media_type.startswith("text/html") or body.lstrip()[:1] != b"{":
            raise image_error(
                "not_a_registry",
                f"{endpoint.host} is no registry: it answered {quoted(media_type or 'something')} where a manifest was wanted",
            )

    def _to_skip(self, endpoint: _Endpoint, response: aiohttp.ClientResponse, offset: int) -> int:
        """How many bytes come that are here already."""
        if response.status == 200:
            return offset
        if not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            raise image_error("interrupted", f"{endpoint.host} sent another part of a layer than was asked for")
        return 0

    async def _refused(self, endpoint: _Endpoint, response: aiohttp.ClientResponse, body: bytes) -> SandboxImageError:
        codes = codes_of(body)
        repository = f"{endpoint.host}/{endpoint.repository}"
        if response.status == 403 or "DENIED" in codes:
            return image_error("denied", f"the registry {endpoint.host} does not let anybody like you have {self._what}")
        if response.status == 416:
            return image_error(
                "truncated_layer", f"the registry {endpoint.host} has less of a layer of {self._what} than it says"
            )
        if response.status != 404:
            return image_error("not_a_registry", f"{endpoint.host} answered HTTP {response.status} for {self._what}")
        if not codes:
            return image_error("not_a_registry", f"{endpoint.host} does not know {self._what}, and answers as no registry does")
        if "MANIFEST_UNKNOWN" in codes and (tags := await self._tags(endpoint)) is not None:
            there = f"there are {', '.join(map(quoted, tags))}" if tags else "it has no tags"
            return image_error("unknown_tag", f"{repository} has no {self._wanted}; {there}")
        if "BLOB_UNKNOWN" in codes:
            return image_error("damaged_layout", f"the registry {endpoint.host} has lost a part of {self._what}")
        return image_error("unknown_name", f"the registry {endpoint.host} has no {endpoint.repository}")

    async def _tags(self, endpoint: _Endpoint) -> list[str] | None:
        """Some tags of the repository; None if there is no such repository."""
        try:
            response = await endpoint.requests.get(f"/v2/{endpoint.repository}/tags/list?n={MOST_TAGS}", {})
            with closing_response(response):
                if response.status == 404:
                    return None
                tags = json.loads(await endpoint.requests.read(response, LARGEST_BYTES, self._what))["tags"]
        except (SandboxImageError, ValueError, RecursionError, LookupError, TypeError):
            return []  # Not everybody may list them.
        return [tag for tag in tags if isinstance(tag, str)][:MOST_TAGS] if isinstance(tags, list) else []


class closing_response:
    """Ends a response."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, *_: object) -> None:
        self._response.close()


def codes_of(body: bytes) -> set[str]:
    """The codes of a registry's error."""
    with suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return {str(error["code"]) for error in json.loads(body)["errors"]}
    return set()
