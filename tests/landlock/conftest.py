"""Sandboxes of the landlock backend, without a server, and what is alive in one as the machine sees it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aviato.server.backends.landlock import plan, remains, rules
from aviato.server.backends.local import filters
from aviato.server.backends.local import landlock_calls as calls
from tests.real_backend import anyio_backend, box, boxes, make_box, open_backend

__all__ = ["anyio_backend", "backend", "box", "boxes", "make_box"]


@pytest.fixture(scope="module")
async def backend(anyio_backend):
    if not calls.abi():
        pytest.skip("this kernel has no Landlock")
    async for opened in open_backend("landlock"):
        yield opened


class Inside:
    """What lives in a sandbox."""

    def __init__(self, backend, box):
        self.supervisor = remains.pid_of(backend._held[box.id].pidfd)

    def all(self):
        return [int(pid) for pid in remains.descendants(str(self.supervisor))]

    def named(self, name):
        """Numbers of living processes with this in their command line."""
        found = []
        for pid in self.all():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if name.encode() in file.read():
                        found.append(pid)
            except OSError:
                continue
        return found

    async def gone(self, name=None, seconds=5.0):
        deadline = time.monotonic() + seconds
        while left := self.all() if name is None else self.named(name):
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.01)


@pytest.fixture
def inside(backend):
    return lambda box: Inside(backend, box)


@contextmanager
def _without(backend, families=(), steps=()) -> Iterator[None]:
    kept = lambda found: tuple(rule for rule in found if rule.family not in families)  # noqa: E731
    before = backend._filter, backend._command_filter, plan.make_plan
    kind, exact = type(backend), type(backend)._exact
    if "restrict" in steps:
        # A process 1 that Landlock does not bind must not signal "everyone" as an ordinary user: that would be the user's all.
        kind._exact = property(lambda self: self._root)
    backend._filter = filters.compile_rules(kept(rules.supervisor_rules(backend._abi, backend._asks)))
    backend._command_filter = filters.compile_rules(kept(rules.command_rules()))
    plan.make_plan = lambda options: tuple(step for step in before[2](options) if step.operation not in steps)
    try:
        yield
    finally:
        backend._filter, backend._command_filter, plan.make_plan = before
        kind._exact = exact


@pytest.fixture
def without(backend):
    """Sandboxes made meanwhile lack these families of rules and these steps of the plan: no flag of the product does that."""
    return lambda families=(), steps=(): _without(backend, families, steps)


@pytest.fixture
def own_ids():
    return os.geteuid() == 0
