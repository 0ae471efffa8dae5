"""The two readings of a model: a server refuses fields it does not know, a client ignores them."""

from __future__ import annotations

import json
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

CACHED: Literal["keys"] = "keys"
"""The strings that pydantic keeps. Values are ids for the most part: it would hold thousands that never come again."""
LATE = True
"""A model is built when it is first used: to build all of them is a sixth of what client and server take to be imported."""


def empty(kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    """The default of a field that may be left out: a new one each time.

    One that stood there itself would be copied in depth for each request, which took more than all the rest of its reading.
    """
    return Field(default_factory=kind, json_schema_extra={"default": kind()})


class RequestModel(BaseModel):
    """What a server reads: an unknown field is refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, cache_strings=CACHED, defer_build=LATE)

    @classmethod
    def from_record(cls, text: str) -> tuple[Self, list[str]]:
        """What a server put on record, perhaps one of another version.

        Returns:
            The model, and the fields that were left out since they are not known.

        Raises:
            ValueError: it cannot be read.
        """
        values = json.loads(text)
        try:
            return cls.model_validate_json(text), []
        except ValidationError as error:
            unknown = [one["loc"] for one in error.errors(include_input=False) if one["type"] == "extra_forbidden"]
        for place in unknown:
            holder: Any = values
            for step in place[:-1]:
                holder = holder[step]
            del holder[place[-1]]
        return cls.model_validate_json(json.dumps(values)), [".".join(map(str, place)) for place in unknown]


class ResponseModel(BaseModel):
    """What a client reads: a field from a newer server is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, cache_strings=CACHED, defer_build=LATE)
