"""The stand-in server, as the real client sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.openai_server import OpenAIServer, Reply, broken_tool, error, malformed, text, tool

openai = pytest.importorskip("openai")
USER = [{"role": "user", "content": "go"}]


def client_of(api: OpenAIServer, **options: Any) -> Any:
    return openai.OpenAI(base_url=api.url, api_key=api.key, **options)


def test_chat_completions() -> None:
    with OpenAIServer([tool("run", code="1"), broken_tool("run"), text("done")]) as api, client_of(api) as client:
        assert [model.id for model in client.models.list()] == ["stand-in"]
        first = client.chat.completions.create(model="m", messages=USER).choices[0]
        [call] = first.message.tool_calls
        assert (first.finish_reason, call.function.name, json.loads(call.function.arguments)) == (
            "tool_calls",
            "run",
            {"code": "1"},
        )
        with pytest.raises(openai.BadRequestError, match="No tool output found"):
            client.chat.completions.create(model="m", messages=[*USER, first.message])
        assert len(api.refused) == 1
        answer = {"role": "tool", "tool_call_id": call.id, "content": "2"}
        last = client.chat.completions.create(model="m", messages=[*USER, first.message, answer]).choices[0]
        assert last.message.content == "done"
        assert [(request.turn, request.prompt, request.observations) for request in api.requests] == [
            (0, "go", []),
            (1, "go", []),
            (1, "go", ["2"]),
        ]


def test_responses() -> None:
    def script(request: Any) -> Reply:
        return [Reply(reasoning="hm", tool_calls=tool("run", code="1").tool_calls), text("done")][request.turn]

    with OpenAIServer(script) as api, client_of(api) as client:
        first = client.responses.create(model="m", input="go")
        assert [item.type for item in first.output] == ["reasoning", "function_call"]
        answer = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "2"}
        assert client.responses.create(model="m", input=[answer], previous_response_id=first.id).output_text == "done"
        again = [{"role": "user", "content": "go"}, *[item.model_dump() for item in first.output], answer]
        assert client.responses.create(model="m", input=again).output_text == "done"
        assert [request.turn for request in api.requests] == [0, 1, 1]
    with OpenAIServer([text("")], responses=False) as api, client_of(api) as client, pytest.raises(openai.NotFoundError):
        client.responses.create(model="m", input="go")


def test_trouble() -> None:
    with OpenAIServer([error(429), error(500), text("at last"), malformed(), error(503)]) as api, client_of(api) as client:
        assert client.chat.completions.create(model="m", messages=USER).choices[0].message.content == "at last"
        with pytest.raises((openai.APIError, ValueError)):
            client.chat.completions.create(model="m", messages=USER)
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=USER)
        with client.with_options(api_key="wrong") as wrong, pytest.raises(openai.AuthenticationError):
            wrong.models.list()
