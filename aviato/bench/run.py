"""One run of a benchmark: which server, which sizes."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import aviato

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.bench.report import Report


@dataclass(frozen=True)
class Size:
    """A number that a benchmark takes: what it is, and what it is for `--quick`."""

    value: int
    quick: int
    help: str


@dataclass(frozen=True)
class Run:
    """What a benchmark gets.

    Attributes:
        sizes: by name, as its `SIZES` has them.
        base_url: the server; None is that of `AVIATO_BASE_URL`, or the embedded one.
    """

    sizes: Mapping[str, int]
    base_url: str | None = None
    quick: bool = False

    def __getitem__(self, name: str) -> int:
        return self.sizes[name]

    def session(self) -> aviato.Session:
        """A session on the server."""
        return aviato.Session(aviato.SandboxDefaults(base_url=self.base_url))

    def url(self) -> str:
        """The server's address, for other processes."""
        from aviato.transport.resolution import choose, endpoint

        return endpoint(choose(self.base_url, None)).url

    @cached_property
    def health(self) -> dict[str, Any]:
        """What the server says about itself; starts the embedded one."""
        return asyncio.run(_health(self.base_url))

    def room(self, report: Report, wanted: int) -> int:
        """How many sandboxes of those that are wanted the server takes; the report says where that is fewer."""
        most = int(self.health["max_sandboxes"])
        if most < wanted:
            report.notes.append(
                f"the server has room for {most:,} sandboxes and not for {wanted:,} (--max-sandboxes of `aviato serve`)"
            )
        return min(wanted, most)

    def server_pid(self) -> int | None:
        """The server's process, where it is on this machine and can be seen."""
        from aviato.transport.resolution import choose, endpoint

        if not endpoint(choose(self.base_url, None)).is_loopback:
            return None
        pid = int(self.health["pid"])
        return pid if os.path.exists(f"/proc/{pid}") else None


async def _health(base_url: str | None) -> dict[str, Any]:
    from aviato.transport.http import HttpTransport
    from aviato.transport.resolution import choose

    transport = HttpTransport(choose(base_url, None), request_timeout_seconds=60.0)
    answer: dict[str, Any] = json.loads(await transport.request("GET", "/v1/health"))
    return answer
