"""Health, and what there is."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

from aviato.server.operations.reply import JSON, Reply, answer
from aviato.server.operations.table import Operation
from aviato.wire.sandboxes import Health

if TYPE_CHECKING:
    from aviato.server.operations.call import Call


async def health(call: Call) -> Reply:
    """Say that the server is there."""
    return answer(call.service.health())


async def describe(_: Call) -> Reply:
    """Say what can be asked."""
    return Reply(_description(), content_type=JSON)


@functools.cache
def _description() -> bytes:
    # Here: few ask for it, and what makes schemas takes a while to import.
    from aviato import __version__
    from aviato.server.operations import OPERATIONS
    from aviato.server.operations.description import document

    return json.dumps(document(OPERATIONS, __version__)).encode()


OPERATIONS = (
    Operation(method="GET", path="/v1/health", handler=health, summary="How the server is", answers={200: Health}, waits=False),
    Operation(
        method="GET",
        path="/v1/openapi.json",
        handler=describe,
        summary="This description",
        answers={200: JSON},
        waits=False,
    ),
)
