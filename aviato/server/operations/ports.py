"""Exposed ports: wait until something listens. The connections themselves go to listeners of their own, not through here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from aviato.exceptions import AviatoValidationError
from aviato.server.operations.reply import Reply, answer
from aviato.server.operations.table import Operation
from aviato.wire.base import RequestModel
from aviato.wire.sandboxes import PortInfo

if TYPE_CHECKING:
    from aviato.server.operations.call import Call


class LookQuery(RequestModel):
    """Query of a look at a port."""

    timeout_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 0.0


async def look(call: Call) -> Reply:
    """Say whether something listens, maybe after a wait."""
    query: LookQuery = call.query or LookQuery()
    text = call.variables["port"]
    port = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    if not 1 <= port <= 65535:
        problem = "must be 1 to 65535"
        raise AviatoValidationError(f"port {problem}, got {text!r}", field_violations={"port": problem})
    return answer(await call.service.ports.wait(call.variables["sandbox_id"], port, query.timeout_seconds))


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/sandboxes/{sandbox_id}/ports/{port}",
        handler=look,
        summary="Look whether something listens on an exposed port, or wait for it",
        query=LookQuery,
        answers={200: PortInfo},
        errors=(404, 409),
    ),
)
