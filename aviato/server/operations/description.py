"""The description of the HTTP API, made from the table of operations and the models that check requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from aviato.server.operations.reply import JSON
from aviato.wire.errors import ErrorResponse
from aviato.wire.ids import ID_PATTERN
from aviato.wire.version import PID_HEADER, WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

    from aviato.server.operations import Operation

_REFERENCE = "#/components/schemas/{model}"
_PATH_SCHEMAS: dict[str, dict[str, Any]] = {
    **{
        name: {"type": "string", "pattern": f"^{prefix}-{ID_PATTERN}$"}
        for name, prefix in {
            "sandbox_id": "sb",
            "exec_id": "ex",
            "lease_id": "ls",
            "snapshot_id": "sn",
            "reset_id": "rs",
            "pool_id": "pl",
        }.items()
    },
    "port": {"type": "integer", "minimum": 1, "maximum": 65535},
}
_ALWAYS = (400, 401, 426, 429, 500, 503)
_TEXTS = {
    200: "Done",
    201: "Accepted and on record",
    204: "Done",
    400: "Something in the request is wrong; each field is named",
    401: "The caller is not known",
    404: "Not known",
    408: "The body did not come in time",
    409: "The sandbox is not in a state for it, or the id was used with another body",
    413: "The body is too large",
    415: "The body is compressed",
    422: "What was asked for cannot be had: a file, a directory, an image",
    426: "The client speaks another version of the wire",
    429: "No capacity now; Retry-After says when to try again",
    500: "The server failed",
    503: "Not possible now or not on this machine",
    504: "No result in time: the same request again goes on where this one was",
}


def document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """The OpenAPI document of these operations."""
    operations = list(operations)
    requests = {route.body for route in operations if isinstance(route.body, type)}
    answers = {model for route in operations for model in route.answers.values() if isinstance(model, type)}
    wanted = [
        *((model, "validation") for model in requests),
        *((model, "serialization") for model in answers | {ErrorResponse}),
    ]
    names, schemas = models_json_schema(sorted(wanted, key=str), ref_template=_REFERENCE)  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for route in operations:
        paths.setdefault(route.path, {})[route.method.lower()] = _described(route, names)
    return {
        "openapi": "3.1.0",
        "info": {"title": "aviato", "version": version, "description": "Sandboxes for code that a model wrote."},
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}, "password": {"type": "http", "scheme": "basic"}},
        },
        "security": [{}, {"key": []}, {"password": []}],
    }


def _described(route: Operation, names: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}{re.sub(r'[^a-z]+', '_', route.path.lower()).rstrip('_')}",
        "parameters": [*_path_parameters(route), *_query_parameters(route), _wire_parameter()],
        "responses": {str(status): _answer(status, body, names) for status, body in route.answers.items()},
    }
    errors = {*_ALWAYS, *route.errors, *((408, 413, 415) if route.body is not None else ())}
    for status in sorted(errors):
        operation["responses"][str(status)] = _answer(status, ErrorResponse, names)
    if route.body is not None:
        content_type, schema = _body(route.body, names, "validation")
        operation["requestBody"] = {"required": isinstance(route.body, type), "content": {content_type: {"schema": schema}}}
    return operation


def _answer(status: int, body: type[BaseModel] | str | None, names: dict[Any, Any]) -> dict[str, Any]:
    headers = {
        WIRE_HEADER: {"schema": {"type": "string"}, "description": "Version of the wire"},
        PID_HEADER: {"schema": {"type": "string"}, "description": "The server's process"},
    }
    answer: dict[str, Any] = {"description": _TEXTS[status], "headers": headers}
    if body is not None:
        content_type, schema = _body(body, names, "serialization")
        answer["content"] = {content_type: {"schema": schema}}
    return answer


def _body(body: type[BaseModel] | str, names: dict[Any, Any], mode: str) -> tuple[str, dict[str, Any]]:
    if isinstance(body, str):
        return body, {"type": "object"} if body == JSON else {"type": "string", "format": "binary"}
    return JSON, names[(body, mode)]


def _path_parameters(route: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _PATH_SCHEMAS[name],
        }
        for name in re.findall(r"{(\w+)}", route.path)
    ]


def _query_parameters(route: Operation) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = route.query.model_json_schema(ref_template=_REFERENCE)
    definitions = schema.get("$defs", {})
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _inlined(item, definitions)}
        for name, item in schema["properties"].items()
    ]


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """A schema without references; null, which no query can say, is left out."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    schema = {key: _inlined(value, definitions) for key, value in schema.items() if not (key == "default" and value is None)}
    choices = [item for item in schema.get("anyOf", []) if item != {"type": "null"}]
    if len(choices) == 1:
        del schema["anyOf"]
        schema.update(choices[0])
    return schema


def _wire_parameter() -> dict[str, Any]:
    schema = {"type": "string", "enum": [str(WIRE_VERSION)]}
    return {"name": WIRE_HEADER, "in": "header", "required": False, "schema": schema}
