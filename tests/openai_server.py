"""A stand-in for an OpenAI-compatible server: it plays scripted replies, right and wrong ones, and checks what it is sent.

::

    with OpenAIServer([tool("execute_code", code="print(1)"), text("done")]) as api:
        ...  # base URL api.url, key api.key
    assert [request.path for request in api.requests] == ["/v1/chat/completions"] * 2

The script is a list, played in the order of the requests with the last reply for ever, or a function from a `Request` to a
`Reply`, which suits conversations side by side: `lambda request: turns[request.turn]`.

It serves `/v1/chat/completions`, `/v1/responses` (with `previous_response_id`) and `/v1/models`. Like the real one it refuses a
wrong key (401), a body that is no JSON, a stream, and a conversation that leaves a tool call without its answer (400).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

from aiohttp import web


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool. Arguments that are a `str` are sent as they are, broken JSON too."""

    name: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True)
class Reply:
    """One reply of the model, or of a server in trouble."""

    text: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str | None = None
    reasoning: str | None = None  # an item of /v1/responses alone
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None  # sent in place of the body
    delay_seconds: float = 0.0


def text(content: str | None) -> Reply:
    return Reply(text=content)


def tool(name: str, **arguments: Any) -> Reply:
    """One call; `Reply(tool_calls=[…])` makes several."""
    return Reply(tool_calls=[ToolCall(name, arguments)])


def broken_tool(name: str, arguments: str = '{"code": "print(1') -> Reply:
    """A call whose arguments are no JSON."""
    return Reply(tool_calls=[ToolCall(name, arguments)])


def error(status: int, retry_after_seconds: float = 0.01) -> Reply:
    """A server in trouble: 429, 500, 503; the client may try again soon."""
    return Reply(status=status, headers={"retry-after-ms": str(int(retry_after_seconds * 1000))})


def malformed() -> Reply:
    """200 and a body that is no JSON."""
    return Reply(raw=b'{"id": "chatcmpl-1", "choices": [{"mess')


@dataclass(frozen=True)
class Request:
    """What came in."""

    path: str
    body: dict[str, Any]
    conversation: list[dict[str, Any]]  # messages, or the items of /v1/responses with those before them

    @property
    def turn(self) -> int:
        """How often the model has had its say in this conversation."""
        groups = [_of_the_model(item) for item in self.conversation]
        return sum(now and not before for before, now in zip([False, *groups], groups, strict=False))

    @property
    def prompt(self) -> str:
        """The text of the last message that is no one's but the user's."""
        return next(_text(item["content"]) for item in reversed(self.conversation) if item.get("role") == "user")

    @property
    def observations(self) -> list[str]:
        """What the tools have answered."""
        outputs = (item.get("output", item.get("content")) for item in self.conversation if _answered(item) is not None)
        return [_text(output) for output in outputs]


Script = Sequence[Reply] | Callable[[Request], Reply]


class OpenAIServer:
    """The server, on a thread of its own while the `with` block lasts."""

    def __init__(
        self,
        script: Script,
        *,
        key: str | None = "sk-stand-in",
        models: Sequence[str] = ("stand-in",),
        responses: bool = True,
        adapters: bool = False,
    ) -> None:
        """`key=None` takes any key; `responses=False` has no `/v1/responses`, as many; `adapters` takes them as vLLM does."""
        self.adapters: dict[str, str] = {}
        """Name → path of those that were loaded."""
        self.key = key
        self.requests: list[Request] = []
        self.refused: list[str] = []
        """Why requests were refused, in words."""
        self._script, self._models = script, models
        self._responses, self._adapters = responses, adapters
        self._numbers = count(1)
        self._stored: dict[str, list[dict[str, Any]]] = {}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="openai-server", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10), "the server did not start"
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        """The base URL, `/v1` and all."""
        return f"http://127.0.0.1:{self._port}/v1"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        app = web.Application(middlewares=[self._checked])
        if self._models:
            app.router.add_get("/v1/models", self._list_models)
        app.router.add_post("/v1/chat/completions", self._chat)
        if self._responses:
            app.router.add_post("/v1/responses", self._respond)
        if self._adapters:
            app.router.add_post("/v1/load_lora_adapter", self._load_adapter)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._port = runner.addresses[0][1]
        self._ready.set()
        await self._ended.wait()
        await runner.cleanup()

    @web.middleware
    async def _checked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return self._refused(401, "Incorrect API key provided", "invalid_api_key")
        if request.method == "POST":
            try:
                body = json.loads(await request.read())
                assert isinstance(body, dict), "the body is no object"
            except (ValueError, AssertionError) as problem:
                return self._refused(400, f"We could not parse the JSON body of your request: {problem}")
            if body.get("stream"):
                return self._refused(400, "this server does not stream")
            if not (body.get("model") or "lora_name" in body):
                return self._refused(400, "you must provide a model parameter", "missing_required_parameter")
        response: web.StreamResponse = await handler(request)
        return response

    def _refused(self, status: int, message: str, code: str | None = None) -> web.Response:
        self.refused.append(message)
        body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
        return web.json_response(body, status=status)

    async def _list_models(self, request: web.Request) -> web.Response:
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "tests"} for name in self._models]
        return web.json_response({"object": "list", "data": data})

    async def _load_adapter(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, path = body.get("lora_name"), body.get("lora_path")
        if not name or not path:
            return self._refused(400, "Both 'lora_name' and 'lora_path' must be provided.")
        self.adapters[name] = path
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        messages = body.get("messages")
        if self.adapters and body["model"] not in (*self.adapters, *self._models):
            return self._refused(404, f"The model `{body['model']}` does not exist.", "model_not_found")
        if not isinstance(messages, list) or not messages:
            return self._refused(400, "messages must be a list with at least one message")
        reply, problem = await self._play(Request(request.path, body, messages))
        if problem is not None:
            return problem
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.tool_calls:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
                for call_id, call, arguments in self._calls(reply)
            ]
        reason = reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        head = {"id": f"chatcmpl-{next(self._numbers)}", "object": "chat.completion", "created": int(time.time())}
        return web.json_response({**head, "model": body["model"], "choices": [choice], "usage": usage})

    async def _respond(self, request: web.Request) -> web.Response:
        body = await request.json()
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if not isinstance(items, list) or not items:
            return self._refused(400, "input must be a text or a list with at least one item")
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self._stored:
            return self._refused(400, f"Previous response with id {previous!r} not found.", "previous_response_not_found")
        items = [*self._stored.get(previous, []), *items]
        reply, problem = await self._play(Request(request.path, body, items))
        if problem is not None:
            return problem
        output: list[dict[str, Any]] = []
        if reply.reasoning is not None:
            summary = [{"type": "summary_text", "text": reply.reasoning}]
            output.append({"type": "reasoning", "id": f"rs_{next(self._numbers)}", "summary": summary})
        if reply.text is not None:
            content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
            head = {"type": "message", "id": f"msg_{next(self._numbers)}", "role": "assistant", "status": "completed"}
            output.append({**head, "content": content})
        for call_id, call, arguments in self._calls(reply):
            head = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "status": "completed"}
            output.append({**head, "name": call.name, "arguments": arguments})
        response_id = f"resp_{next(self._numbers)}"
        self._stored[response_id] = [*items, *output]
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        return web.json_response(
            {
                "id": response_id,
                "object": "response",
                "created_at": time.time(),
                "status": "completed",
                "model": body["model"],
                "output": output,
                "error": None,
                "incomplete_details": None,
                "instructions": body.get("instructions"),
                "metadata": {},
                "previous_response_id": previous,
                "parallel_tool_calls": True,
                "tool_choice": "auto",
                "tools": body.get("tools", []),
                "usage": {"input_tokens": 10, "output_tokens": 10, "total_tokens": 20, **details},
            }
        )

    async def _play(self, request: Request) -> tuple[Reply, web.Response | None]:
        """The next reply, and the response if it is none of the model's."""
        self.requests.append(request)
        asked = {call_id for item in request.conversation for call_id in _asked(item)}
        open_calls = asked ^ {call_id for item in request.conversation if (call_id := _answered(item)) is not None}
        if open_calls:
            return Reply(), self._refused(400, f"No tool output found for function call {', '.join(sorted(open_calls))}.")
        if callable(self._script):
            reply = self._script(request)
        else:
            reply = self._script[min(len(self.requests), len(self._script)) - 1]
        await asyncio.sleep(reply.delay_seconds)
        if reply.status != 200:
            body = {"error": {"message": f"scripted error {reply.status}", "type": "server_error", "param": None, "code": None}}
            return reply, web.json_response(body, status=reply.status, headers=reply.headers)
        if reply.raw is not None:
            return reply, web.Response(body=reply.raw, content_type="application/json")
        return reply, None

    def _calls(self, reply: Reply) -> list[tuple[str, ToolCall, str]]:
        return [
            (
                f"call_{next(self._numbers)}",
                call,
                call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
            )
            for call in reply.tool_calls
        ]


def _of_the_model(item: dict[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning")


def _asked(item: dict[str, Any]) -> list[str]:
    if item.get("type") == "function_call":
        return [item["call_id"]]
    return [call["id"] for call in item.get("tool_calls") or ()]


def _answered(item: dict[str, Any]) -> str | None:
    if item.get("type") == "function_call_output":
        return str(item["call_id"])
    return str(item["tool_call_id"]) if item.get("role") == "tool" else None


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""
