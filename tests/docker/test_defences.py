"""Each wall of a container by itself: what it is for works where it is left out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aviato.server.backends.docker import containers, plan, probe, profile
from aviato.server.backends.local import filters, rules

pytestmark = pytest.mark.anyio

SEES_THE_WAY_IN = "test -S /.aviato-place/s && test -x /.aviato-init"
IS_THE_MACHINES_ROOT = "test $(wc -l < /proc/self/uid_map) = 1 && grep -q 4294967295 /proc/self/uid_map"
MAY_ADMINISTER = "unshare -u true"


@asynccontextmanager
async def without(step: str | None, backend: Any, boxes: Any, image: str, patch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A sandbox whose process 1 leaves out a step."""
    whole = plan.make_plan

    def less(*given: Any) -> tuple[Any, ...]:
        return tuple(one for one in whole(*given) if one.operation != step)

    patch.setattr(plan, "make_plan", less)
    async with boxes.make_box(backend, backend.resolve_image(image)) as box:
        yield box


@pytest.mark.parametrize(
    ("step", "attack"),
    [("clear", SEES_THE_WAY_IN), ("own_user_namespace", IS_THE_MACHINES_ROOT), ("capabilities", MAY_ADMINISTER)],
)
async def test_a_step_that_is_left_out(
    step: str, attack: str, backend: Any, boxes: Any, python_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, info = await backend._engine.about()
    if step == "own_user_namespace" and (info.get("Rootless") or "rootless" in str(info["SecurityOptions"])):
        pytest.skip("the engine has ids of its own")
    async with without(None, backend, boxes, python_image, monkeypatch) as box:
        assert (await box.sh(attack)).returncode != 0
    async with without(step, backend, boxes, python_image, monkeypatch) as box:
        result = await box.sh(attack)
        assert result.returncode == 0, result.stderr


async def test_the_engine_s_half_of_the_filter(
    backend: Any, boxes: Any, python_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = 'python3 -c "import ctypes; exit(ctypes.CDLL(None).syscall(425, 1, 0) == -1 and ctypes.get_errno() >= 0)"'
    clone3 = 'python3 -c "import ctypes as c; l = c.CDLL(None, use_errno=True); l.syscall(435, 0, 0); print(c.get_errno())"'
    async with without(None, backend, boxes, python_image, monkeypatch) as box:
        assert (await box.sh(clone3)).stdout == "38\n" and (await box.sh(attack)).returncode != 0
    monkeypatch.setattr(backend, "_security", ["seccomp=unconfined"])
    async with without(None, backend, boxes, python_image, monkeypatch) as box:
        assert (await box.sh(clone3)).stdout == "22\n"  # The kernel's own answer.


async def test_process_1_s_half_of_the_filter(
    backend: Any, boxes: Any, python_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = "unshare --user true"
    async with without(None, backend, boxes, python_image, monkeypatch) as box:
        assert (await box.sh(attack)).returncode != 0
    monkeypatch.setattr(backend, "_own_filter", filters.compile_rules(profile.split(rules.RULES)[1][:1]))
    async with without(None, backend, boxes, python_image, monkeypatch) as box:
        result = await box.sh(attack)
        assert result.returncode == 0, result.stderr


async def test_an_engine_s_container_has_no_more_than_it_needs(backend: Any, boxes: Any, engine: Any) -> None:
    async with boxes.make_box(backend) as box:
        found = engine.inspect(containers.name_of(box.id))
        host = found["HostConfig"]
        assert not host["Privileged"] and host["NetworkMode"] == "none" and not host["AutoRemove"]
        version, _ = await backend._engine.about()
        if not probe.is_podman(version):  # Which tells of none.
            assert {one.removeprefix("CAP_") for one in host["CapAdd"]} == set(plan.ENGINE_CAPABILITIES)
        mounts = {one["Destination"]: one["RW"] for one in found["Mounts"]}
        assert mounts == {"/.aviato-init": False, "/.aviato-place": True}
        assert "no-new-privileges" in host["SecurityOpt"]
