"""`aviato-init zygote`: what it is asked wrongly, and its death in the middle of a create."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from pathlib import Path

import pytest

from aviato.exceptions import AviatoError, SandboxUnavailableError
from aviato.server.backends.base import SandboxSpec
from aviato.server.backends.local import requests
from aviato.wire.ids import new_sandbox_id
from tests.real_backend import open_backend

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 20.0
LIMITS = {"memory": 256 << 20, "processes": 50}


@pytest.fixture(scope="module")
async def backend(anyio_backend):
    async with contextlib.asynccontextmanager(open_backend)("local") as opened:
        if not opened._modern:
            pytest.skip("this kernel is too old for requests that are known from one another")
        yield opened


MADE = []
"""Ids of the sandboxes of this process: others may have groups of theirs meanwhile."""


def spec_of(backend):
    MADE.append(new_sandbox_id())
    return SandboxSpec(sandbox_id=MADE[-1], image=backend.resolve_image(None), limits=LIMITS)


@contextlib.asynccontextmanager
async def destroyed(backend, spec):
    try:
        yield
    finally:
        await backend.destroy(spec.sandbox_id)


async def works(backend):
    spec = spec_of(backend)
    async with destroyed(backend, spec):
        link = await asyncio.wait_for(backend.create(spec), PATIENCE_SECONDS)
        await link.ping()


def children_of(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def left(backend):
    """What a create could leave; once nothing changes."""
    await backend._left.clear()
    return {
        "places": sorted(os.listdir(backend._directories.sandboxes)),
        "trash": sorted(os.listdir(backend._directories.trash)),
        "others": sorted(os.listdir(backend._directories.sandboxes.parent)),
        "mounts": Path("/proc/self/mounts").read_text(),
        "groups": {where: sorted(name for name in os.listdir(where) if is_ours(name)) for _, where in backend._facts.groups},
    }


def is_ours(name):
    """Whether a control group is a sandbox's of this process."""
    return any(sandbox_id in name for sandbox_id in MADE)


async def until_over(pidfds):
    for pidfd in pidfds:
        gone, _, _ = await asyncio.to_thread(select.select, [pidfd], [], [], PATIENCE_SECONDS)
        os.close(pidfd)
        assert gone, "a child of the zygote lives on"


async def test_a_zygote_that_stands_still_and_is_killed_leaves_nothing(backend):
    await works(backend)
    before = await left(backend)
    zygote = backend._zygote
    pid = zygote._process.pid
    spares = [os.pidfd_open(child) for child in children_of(pid)]
    specs = [spec_of(backend) for _ in range(3)]
    os.kill(pid, signal.SIGSTOP)
    creating = [asyncio.create_task(backend.create(spec)) for spec in specs]
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in creating)
    os.kill(pid, signal.SIGKILL)
    ends = await asyncio.wait_for(asyncio.gather(*creating, return_exceptions=True), PATIENCE_SECONDS)
    for end in ends:
        assert isinstance(end, SandboxUnavailableError), end
        assert end.reason == "start_failed" and end.is_infrastructure and "the zygote process ended" in str(end)
    for spec in specs:
        await backend.destroy(spec.sandbox_id)
    await until_over(spares)
    assert await left(backend) == before
    await works(backend)
    assert backend._zygote is not zygote
    assert await left(backend) == before


async def test_a_zygote_that_is_killed_while_it_makes_places_leaves_nothing(backend):
    await works(backend)
    before = await left(backend)
    failed = 0
    for turn in range(8):
        zygote = await backend._live_zygote()
        specs = [spec_of(backend) for _ in range(4)]
        creating = [asyncio.create_task(backend.create(spec)) for spec in specs]
        watched = backend._directories.path(specs[turn % 4].sandbox_id)
        while not os.path.exists(watched) and not all(task.done() for task in creating):
            await asyncio.sleep(0)
        spares = [os.pidfd_open(child) for child in children_of(zygote._process.pid)]
        zygote._process.send_signal(signal.SIGKILL)
        ends = await asyncio.wait_for(asyncio.gather(*creating, return_exceptions=True), PATIENCE_SECONDS)
        for spec, end in zip(specs, ends, strict=True):
            assert not isinstance(end, BaseException) or isinstance(end, SandboxUnavailableError), repr(end)
            failed += isinstance(end, SandboxUnavailableError)
            await backend.destroy(spec.sandbox_id)
        await until_over(spares)
        assert await left(backend) == before
    assert failed
    await works(backend)


async def asked(backend, monkeypatch, change):
    """What comes of a create whose request was changed; None where it was made all the same."""
    spec = spec_of(backend)
    make = type(backend)._request
    with monkeypatch.context() as patch:
        patch.setattr(backend, "_usual_request", lambda *_: None)
        patch.setattr(backend, "_request", lambda *given: change(make(backend, *given)))
        async with destroyed(backend, spec):
            try:
                await asyncio.wait_for(backend.create(spec), PATIENCE_SECONDS)
            except AviatoError as error:
                return error
    return None


async def test_a_step_that_there_is_not_is_named(backend, monkeypatch):
    await works(backend)
    before, zygote = await left(backend), backend._zygote
    for at in (0, 5, -1):

        def change(request, at=at):
            steps = list(request["plan"])
            steps.insert(at, ("dance", [1], "to see"))
            return {**request, "plan": steps}

        error = await asked(backend, monkeypatch, change)
        assert isinstance(error, SandboxUnavailableError) and (error.reason, error.retryable) == ("start_failed", False)
        assert "dance (to see)" in str(error) and "no such step" in str(error)
        assert await left(backend) == before
    await works(backend)
    assert backend._zygote is zygote and zygote.alive


WRONG = [[], [{}], [-1], [2**63], [[[]]], [[[7]]], ["x\0y"], {}, 7, None]


async def test_arguments_of_another_kind_are_refused_and_the_zygote_lives(backend, monkeypatch):
    await works(backend)
    before, zygote = await left(backend), backend._zygote
    seen = []

    def learn(request):
        seen.append([step[0] for step in request["plan"]])
        return request

    assert await asked(backend, monkeypatch, learn) is None
    refused = 0
    for number, name in enumerate(seen[0]):
        for wrong in WRONG[number % 2 :: 2]:

            def change(request, number=number, wrong=wrong):
                steps = [list(step) for step in request["plan"]]
                steps[number][1] = wrong
                return {**request, "plan": steps}

            error = await asked(backend, monkeypatch, change)
            if error is not None:  # Some need none of what they are given.
                assert isinstance(error, SandboxUnavailableError) and error.reason == "start_failed", (name, wrong, error)
                assert "could not be confined" in str(error) and ("cannot be read" in str(error) or "(" in str(error))
                refused += 1
    assert refused > len(seen[0])
    assert await left(backend) == before
    await works(backend)
    assert backend._zygote is zygote and zygote.alive


FIELDS = {
    "place": [7, None, "", "x\0y", "/nowhere/at/all"],
    "owned": [7, None, [7], ["x\0y"], ["a/b/c"]],
    "uid": ["x", None, -1, 2**32, 2**70, 0.5],
    "gid": ["x", None, -1, 2**32],
    "ids": ["x", None, -1, 2**64],
    "groups": [7, None, {}, [7], [{"path": 7}], [{"path": "/nowhere/at/all"}], [{"path": "x", "files": 7, "supervisors": 7}]],
    "trees": [7, None, {}, [7], [[1]], [[1, 2, 3, 4, 5]], [[0, "x", "/nowhere/at/all", 0, [0, 0]]]],
    "plan": [7, None, {}, [7], [[]], [["pivot"]], [["pivot", 7]], [[7, []]], []],
    "lower": [7, None, "/nowhere", [7], ["/nowhere/at/all"], ["x\0y"], ["/"] * 200],
    "earlier": [7, "/nowhere/at/all"],
    "ports": [7, "x"],
    "filter": ["", "zz", "00" * 7, "ff" * 64],
}


@pytest.mark.parametrize("name", FIELDS)
async def test_a_field_of_another_kind_is_refused_and_the_zygote_lives(backend, monkeypatch, name):
    await works(backend)
    before, zygote = await left(backend), backend._zygote
    for wrong in FIELDS[name]:
        error = await asked(backend, monkeypatch, lambda request, wrong=wrong: {**request, name: wrong})
        assert isinstance(error, SandboxUnavailableError) and error.reason == "start_failed", (wrong, error)
        assert await left(backend) == before
    await works(backend)
    assert backend._zygote is zygote and zygote.alive


NOISE = [
    b"{",
    b"\0",
    b"\xff" * 100,
    b"[" * 10_000 + b"]" * 10_000,
    b"[]",
    b'"x"',
    b'{"n": "x"}',
    b'{"n": -1, "uid": 0}',
    requests.BURIAL,
    requests.BURIAL + b"\xff" * 8,
    requests.BURIAL + b"\xff" * 1000,
    requests.OBLIVION,
    requests.OBLIVION + b"\xff" * 8,
    requests.SHARING,
    requests.SHARING + b"\0" * 3,
]


async def test_messages_that_mean_nothing_are_no_harm(backend):
    await works(backend)
    zygote = backend._zygote
    for message in NOISE:
        zygote._send_soon(message, [])
    await asyncio.wait_for(works(backend), 60)
    assert backend._zygote is zygote and zygote.alive
