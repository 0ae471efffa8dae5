"""Section 8: what a sandbox may use."""

from __future__ import annotations

import pytest

import aviato
from tests.surface.harness import Place, acheck, check

BOMB = ["python3", "-c", "import time; kept = bytearray(b'x') * (150 << 20); time.sleep(20)"]


@check("Sandbox(resources=)", "SandboxDefaults.resources", "ProcessResult.oom_killed", "Sandbox.limits")
def resources(place: Place) -> None:
    defaults = aviato.SandboxDefaults(resources={"memory": "64Mi"})
    with aviato.Sandbox(defaults=defaults, resources={"processes": 100}) as box:
        assert box.exec(BOMB).result().oom_killed
        assert (box.limits["memory"].value, box.limits["processes"].value) == (64 << 20, 100)


@acheck("Sandbox(resources=)", "ProcessResult.oom_killed")
async def resources_async(place: Place) -> None:
    async with aviato.Sandbox(resources={"memory": "64Mi"}) as box:
        assert (await box.exec(BOMB)).oom_killed


@check("ResourceOptions.requests", "ResourceOptions.limits")
def resource_options(place: Place) -> None:
    options = aviato.ResourceOptions(requests={"disk": "5Gi"}, limits={"memory": "64Mi"})
    assert (options.requests, options.limits) == ({"disk": "5Gi"}, {"memory": "64Mi"})
    with aviato.Sandbox(resources=options) as box:
        box.wait()
        assert (box.limits["memory"].value, box.limits["disk"].value) == (64 << 20, 5 << 30)


@check("Sandbox(strict_limits=)")
def strict_limits(place: Place) -> None:
    with aviato.Sandbox(resources={"cpu": 1}) as box:
        enforced = box.wait().limits["cpu"].strength != "none"
    strict = aviato.Sandbox(resources={"cpu": 1}, strict_limits=True)
    if enforced:
        with strict:
            assert strict.wait().limits["cpu"].strength == "hard"
    else:
        with pytest.raises(aviato.AviatoValidationError, match="cpu"):
            strict.start().result()
