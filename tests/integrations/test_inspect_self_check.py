"""The sandbox environment under Inspect's own conformance checks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: pip install -e '.[inspect]'")

from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from aviato.integrations.inspect_ai import AviatoSandboxConfig, AviatoSandboxEnvironment
from tests.conftest import RunningServer

pytestmark = pytest.mark.anyio

AS_ROOT = {"test_read_file_not_allowed": "root inside reads what it likes, as in Inspect's own Docker sandboxes"}


@pytest.fixture
async def sandbox_env(server: RunningServer, request: pytest.FixtureRequest) -> AsyncIterator[AviatoSandboxEnvironment]:
    if (reason := AS_ROOT.get(request.node.originalname)) and os.geteuid() == 0:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    config = AviatoSandboxConfig(base_url=server.url)
    made = await AviatoSandboxEnvironment.sample_init("self check", config, {})
    yield made["default"].as_type(AviatoSandboxEnvironment)
    await AviatoSandboxEnvironment.sample_cleanup("self check", config, made, interrupted=False)
