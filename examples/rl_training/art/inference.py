"""The model that acts: an OpenAI-compatible server, over `/v1/responses` or, where it has only that, `/v1/chat/completions`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import openai
from tools import ROLLOUT_TOOLS

RESPONSES_TOOLS: list[Any] = [{"type": "function", "strict": True, **tool["function"]} for tool in ROLLOUT_TOOLS]
NO_SUCH_ROUTE = (404, 405, 501)


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it; the arguments need not be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Turn:
    """What the model said, and the tools it called."""

    text: str
    calls: list[ToolCall]

    def __str__(self) -> str:
        """The turn as plain text, in the form that Qwen's chat template gives to tool calls."""
        calls = [
            f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
            for call in self.calls
        ]
        return "\n".join([self.text, *calls] if self.text else calls)


class Conversation:
    """One conversation with a model. `turn` and `answer` add to it."""

    def __init__(self, client: openai.AsyncOpenAI, model: str, messages: list[dict[str, str]]) -> None:
        self._client, self._model = client, model
        self._items: list[Any] = list(messages)  # both APIs take them in this form
        self._uses_chat = False

    async def turn(self) -> Turn:
        """What the model does next.

        Raises:
            openai.OpenAIError: the server failed, also when asked again.
        """
        if not self._uses_chat:
            try:
                return await self._respond()
            except openai.APIStatusError as error:
                if error.status_code not in NO_SUCH_ROUTE:
                    raise
            self._uses_chat = True
        return await self._chat()

    def answer(self, call: ToolCall, output: str) -> None:
        """What a tool has answered."""
        if self._uses_chat:
            self._items.append({"role": "tool", "tool_call_id": call.id, "content": output})
        else:
            self._items.append({"type": "function_call_output", "call_id": call.id, "output": output})

    async def _respond(self) -> Turn:
        response = await self._client.responses.create(model=self._model, input=self._items, tools=RESPONSES_TOOLS)
        self._items += response.output  # with its reasoning, which has to come back beside its calls
        calls = [ToolCall(item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"]
        return Turn(response.output_text, calls)

    async def _chat(self) -> Turn:
        completion = await self._client.chat.completions.create(model=self._model, messages=self._items, tools=ROLLOUT_TOOLS)
        message = completion.choices[0].message
        self._items.append(message.model_dump(exclude_none=True))
        found = [call for call in message.tool_calls or [] if call.type == "function"]
        return Turn(message.content or "", [ToolCall(call.id, call.function.name, call.function.arguments) for call in found])
