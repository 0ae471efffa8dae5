"""The two readings of a model: a server refuses fields it does not know, a client ignores them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RequestModel(BaseModel):
    """What a server reads: an unknown field is refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ResponseModel(BaseModel):
    """What a client reads: a field from a newer server is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)
