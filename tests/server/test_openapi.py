"""The description is true: made from the table that serves, and tried by schemathesis against the real server."""

from __future__ import annotations

import pytest

from aviato.server.operations import OPERATIONS
from aviato.server.operations.description import document
from aviato.wire import execution, sandboxes
from aviato.wire.errors import STATUS_BY_CODE

pytestmark = pytest.mark.anyio


def test_every_route_is_described_once():
    described = document(OPERATIONS, "1")
    pairs = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert pairs == {(route.method, route.path) for route in OPERATIONS}
    ids = [operation["operationId"] for methods in described["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


def test_every_model_of_the_wire_that_is_served_is_in_it():
    schemas = document(OPERATIONS, "1")["components"]["schemas"]
    for model in (
        sandboxes.CreateSandbox,
        sandboxes.SandboxInfo,
        sandboxes.SandboxPage,
        execution.ExecRequest,
        execution.Acknowledgements,
    ):
        assert model.__name__ in schemas
    assert schemas["CreateSandbox"]["additionalProperties"] is False


def test_every_status_that_errors_have_is_said_somewhere():
    said = {
        int(status)
        for methods in document(OPERATIONS, "1")["paths"].values()
        for op in methods.values()
        for status in op["responses"]
    }
    assert set(STATUS_BY_CODE.values()) - said <= {504}


async def test_it_is_served(server):
    described = await server.call("GET", "/v1/openapi.json", expect=200)
    assert described["openapi"] == "3.1.0" and "/v1/openapi.json" in described["paths"]
