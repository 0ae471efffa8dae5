"""What is kept of one sandbox's request serves another one, and nothing else of it does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aviato.server.backends.base import MountedFile, SandboxSpec
from aviato.server.backends.local import requests
from aviato.server.backends.local.remembered import MOST, Known
from aviato.wire.ids import new_sandbox_id

pytestmark = pytest.mark.anyio


def made_anew(backend, spec, base_root, uid):
    return requests.example(backend._request(spec, backend._options(spec, base_root), uid))


@pytest.mark.parametrize("ports", [False, True])
async def test_a_request_that_is_known_is_the_one_made_anew(backend, ports, tmp_path):
    for image in (None, f"dir:{tmp_path}"):
        for number in range(2):
            spec = SandboxSpec(
                sandbox_id=new_sandbox_id(),
                image=backend.resolve_image(image),
                environment={"NUMBER": str(number)},
                secrets={"SECRET": "word"},
                exposes_ports=ports,
            )
            base_root = await backend._made_below(spec)
            asked = backend._usual_request(spec, base_root, 1000 + number)
            assert asked is not None and asked == made_anew(backend, spec, base_root, 1000 + number)
            assert b"word" not in asked.behind and spec.sandbox_id.encode() in asked.behind


async def test_other_facts_and_another_filter_make_other_requests(backend, monkeypatch):
    spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=backend.resolve_image(None))
    base_root = await backend._made_below(spec)
    before = backend._usual_request(spec, base_root, 1)
    limits = backend.limits(spec)
    monkeypatch.setattr(backend, "_facts", replace(backend._facts, open_files=77))
    assert backend._usual_request(spec, base_root, 1) == made_anew(backend, spec, base_root, 1) != before
    assert backend.limits(spec)["open_files"].value == 77 != limits["open_files"].value
    monkeypatch.setattr(backend, "_filter", b"no filter at all")
    assert backend._usual_request(spec, base_root, 1) == made_anew(backend, spec, base_root, 1)


async def test_files_of_ones_own_are_asked_for_each_time(backend):
    files = (MountedFile(path="/data/file", content=b"x"),)
    spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=backend.resolve_image(None), mounted_files=files)
    assert backend._usual_request(spec, await backend._made_below(spec), 1) is None


def test_the_oldest_is_forgotten():
    known, made = Known(), []
    for number in [*range(MOST + 1), MOST, 1, 0]:
        assert known.get(number, lambda: made.append(number) or number) == number  # noqa: B023
    assert made == [*range(MOST + 1), 0]
