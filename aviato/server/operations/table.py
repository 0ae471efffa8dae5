"""What an operation is, and how what it is asked with is checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_origin

from pydantic import BaseModel, ValidationError

from aviato.exceptions import AviatoValidationError
from aviato.server.callers import CALLER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aviato.server.operations.call import Call
    from aviato.server.operations.reply import Reply


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """One operation, as a row of the table of all.

    Attributes:
        method, path: as in HTTP; `{name}` is a variable of the path.
        handler: answers a checked call.
        summary: one line for the description.
        answers: status → model of a JSON body, content type of another body, or None for an empty one.
        errors: statuses that it can fail with, beside those that every operation has.
        query: model of the query; None: there is none.
        body: model of a JSON body, or a content type; None: there is none.
        waits: whether the service must be ready first.
        foreign_text: half characters (lone surrogates), as a model's text can have, become U+FFFD; else they are refused.
    """

    method: str
    path: str
    handler: Callable[[Call], Awaitable[Reply]]
    summary: str
    answers: dict[int, type[BaseModel] | str | None]
    errors: tuple[int, ...] = ()
    query: type[BaseModel] | None = None
    body: type[BaseModel] | str | None = None
    waits: bool = True
    foreign_text: bool = False

    async def __call__(self, call: Call) -> Reply:
        """Check what is left to check of a call whose query was read, and answer it."""
        caller = CALLER.get()
        if isinstance(self.body, type):
            call.body = parse_body(self.body, await call.request.read(caller), foreign_text=self.foreign_text)
        if self.waits:
            await call.service.ready()
        if call.service.is_one_of_several and (sandbox_id := call.variables.get("sandbox_id")) is not None:
            await call.service.locate(sandbox_id, caller)
        if caller.tenant is not None and (sandbox_id := call.variables.get("sandbox_id")) is not None:
            call.service.registry.check(caller, sandbox_id)
        return await self.handler(call)


def parse_body(model: type[BaseModel], data: bytes, *, foreign_text: bool = False) -> BaseModel:
    """A JSON body.

    Raises:
        AviatoValidationError: it is not what the model says; each field that is wrong is named.
    """
    try:
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        if foreign_text and b"\\ud" in data.lower() and error.errors(include_input=False)[0]["type"] == "json_invalid":
            return _parse_foreign(model, data)
        raise _wrong("body", error) from None


def _parse_foreign(model: type[BaseModel], data: bytes) -> BaseModel:
    try:
        return model.model_validate(_whole(json.loads(data)), strict=True)
    except ValidationError as error:
        raise _wrong("body", error) from None
    except (ValueError, RecursionError) as error:
        raise AviatoValidationError(f"body: {error}", field_violations={"body": "not JSON"}) from None


def _whole(value: Any) -> Any:
    """Without half characters."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(name): _whole(item) for name, item in value.items()}
    return value


def parse_query(model: type[BaseModel] | None, given: Iterable[tuple[str, str]]) -> BaseModel | None:
    """The query; a list field may be given several times, any other once.

    Raises:
        AviatoValidationError: it is not what the model says, or there should be none.
    """
    found: dict[str, list[str]] = {}
    for name, value in given:
        found.setdefault(name, []).append(value)
    if model is None:
        if not found:
            return None
        names = ", ".join(sorted(found))
        raise AviatoValidationError(f"query: there is none here, got {names}", field_violations=dict.fromkeys(found, "unknown"))
    values: dict[str, Any] = {}
    for name, texts in found.items():
        field = model.model_fields.get(name)
        if field is not None and get_origin(field.annotation) is list:
            values[name] = texts
        elif len(texts) > 1:
            raise AviatoValidationError(f"query: {name} is given {len(texts)} times", field_violations={name: "given twice"})
        else:
            values[name] = texts[0]
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _wrong("query", error) from None


def _wrong(what: str, error: ValidationError) -> AviatoValidationError:
    violations = {".".join(map(str, item["loc"])) or what: item["msg"] for item in error.errors(include_input=False)[:20]}
    text = "; ".join(f"{name}: {message}" for name, message in violations.items())
    return AviatoValidationError(f"{what}: {text}", field_violations=violations)
