"""What a registry is given, as OCI's distribution has it: blobs that it does not have, then a manifest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from aviato.exceptions import SandboxImageError
from aviato.server.images.image_errors import image_error, quoted
from aviato.server.images.manifests import LARGEST_BYTES, OCI_MANIFEST
from aviato.server.images.oci_reference import DEFAULT_REGISTRY
from aviato.server.images.registry import HUB, closing_response, codes_of
from aviato.server.images.registry_credentials import find_credentials
from aviato.server.images.registry_requests import Body, RegistryRequests
from aviato.server.images.registry_tokens import RegistryTokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import aiohttp

    from aviato.server.images.manifests import Descriptor
    from aviato.server.images.oci_reference import OciReference
    from aviato.server.images.patience import Patience

_PASSING = ("interrupted", "registry_failed", "registry_unreachable", "stalled", "too_many_requests")


class RegistryUploads:
    """Uploads to one repository. No mirror gets any.

    Args:
        destination: of a registry.
        patience: with it.
    """

    def __init__(self, destination: OciReference, patience: Patience) -> None:
        self._what = destination.name
        self._tag = str(destination.tag)
        self._host = destination.registry
        self._path = f"/v2/{destination.repository}"
        self._repository = destination.repository
        self._patience = patience
        base = HUB if destination.registry == DEFAULT_REGISTRY else destination.registry
        self._requests = RegistryRequests(base, destination.registry, self._tokens, patience, pushes=True)

    async def has(self, descriptor: Descriptor) -> bool:
        """Whether a blob is there.

        Raises:
            SandboxImageError: the registry does not say so.
        """
        response = await self._requests.get(f"{self._path}/blobs/{descriptor.digest}", {}, method="HEAD")
        with closing_response(response):
            if response.status == 403:
                raise await self._refused(response)
            return response.status == 200

    async def put_blob(self, descriptor: Descriptor, pieces: Callable[[], AsyncIterator[bytes]]) -> None:
        """Have a blob there. What was cut is sent anew.

        Args:
            descriptor: of it.
            pieces: gives it, from its beginning.

        Raises:
            SandboxImageError: the registry does not take it.
        """
        is_again = False

        async def attempt() -> None:
            nonlocal is_again
            # An answer that did not come may have been a good one.
            if not (is_again and await self.has(descriptor)):
                is_again = True
                await self._upload(descriptor, pieces)

        await self._patiently(attempt)

    async def put_manifest(self, descriptor: Descriptor, data: bytes) -> None:
        """Let the tag mean an image all of whose blobs are there.

        Raises:
            SandboxImageError: the registry does not take it.
        """

        async def attempt() -> None:
            body = Body(size_bytes=len(data), pieces=lambda: _one(data))
            headers = {"Content-Type": OCI_MANIFEST}
            response = await self._requests.get(f"{self._path}/manifests/{self._tag}", headers, method="PUT", body=body)
            with closing_response(response):
                if response.status not in (200, 201, 202):
                    raise await self._refused(response)

        await self._patiently(attempt)
        response = await self._requests.get(f"{self._path}/manifests/{self._tag}", {"Accept": OCI_MANIFEST}, method="HEAD")
        with closing_response(response):
            found = response.headers.get("Docker-Content-Digest", descriptor.digest)
            if response.status != 200 or found != descriptor.digest:
                what = quoted(found) if response.status == 200 else f"HTTP {response.status}"
                raise image_error("push_refused", f"the registry {self._host} took {self._what}, and has {what} there")

    async def close(self) -> None:
        """End its connections."""
        await self._requests.close()

    async def _upload(self, descriptor: Descriptor, pieces: Callable[[], AsyncIterator[bytes]]) -> None:
        response = await self._requests.get(f"{self._path}/blobs/uploads/", {}, method="POST")
        with closing_response(response):
            if response.status != 202:
                raise await self._refused(response)
            url = self._requests.onward(response)
        url += f"{'&' if urlsplit(url).query else '?'}digest={quote(descriptor.digest, safe='')}"
        body = Body(size_bytes=descriptor.size_bytes, pieces=pieces)
        headers = {"Content-Type": "application/octet-stream"}
        response = await self._requests.get(url, headers, method="PUT", body=body)
        with closing_response(response):
            if response.status not in (200, 201, 202, 204):
                raise await self._refused(response)

    async def _patiently(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Try again what may pass, as requests without a body are."""
        for number in range(self._patience.attempts):
            try:
                return await attempt()
            except SandboxImageError as error:
                wait = error.retry_delay_seconds
                is_last = number == self._patience.attempts - 1 or (wait or 0.0) > self._patience.most_wait_seconds
                if error.reason not in _PASSING or is_last:
                    raise
            await asyncio.sleep(self._patience.backoff(number) if wait is None else wait)

    async def _tokens(self, requests: RegistryRequests) -> RegistryTokens:
        credentials = await find_credentials(self._host, self._repository)
        return RegistryTokens(self._host, f"repository:{self._repository}:pull,push", credentials, requests.ask_for_token)

    async def _refused(self, response: aiohttp.ClientResponse) -> SandboxImageError:
        codes = codes_of(await self._requests.read(response, LARGEST_BYTES, self._what))
        said = f"HTTP {response.status}" + (f", {quoted(', '.join(sorted(codes)))}" if codes else "")
        if response.status in (401, 403) or "DENIED" in codes:
            return image_error("denied", f"the registry {self._host} does not let you put {self._what} there ({said})")
        if response.status == 404 and codes:
            text = f"the registry {self._host} has no repository {self._repository!r} to put an image into; make it there first"
            return image_error("no_such_repository", f"{text} ({said})")
        if response.status == 404:
            return image_error("not_a_registry", f"{self._host} takes no images: it answers as no registry does ({said})")
        return image_error("push_refused", f"the registry {self._host} does not take {self._what} ({said})")


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data
