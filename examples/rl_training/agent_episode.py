"""Agent episodes: a model works in a sandbox with tools until it is done, and what it leaves there is graded.

    python examples/rl_training/agent_episode.py --model gpt-4o-mini [--base-url http://localhost:8000/v1]

Needs `pip install openai`, and `OPENAI_API_KEY`. Any server will do that speaks the chat completions of OpenAI with tools.
The sandbox lives as long as its episode, so files and processes carry over from call to call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI, OpenAIError

from aviato import AviatoError, Sandbox, Session
from aviato.rl import Task, evaluate

MAX_STEPS = 10
MAX_CHARACTERS = 8000


@dataclass(frozen=True)
class Problem:
    """A file that does not do yet what its tests ask of it."""

    path: str
    content: str
    prompt: str
    tests: tuple[str, ...]


PROBLEMS = [
    Problem(
        "median.py",
        "def median(numbers):\n    return numbers[len(numbers) // 2]\n",
        "median(numbers) in median.py is wrong for lists that are not sorted or of even length. Correct it.",
        ("assert median([3, 1, 2]) == 2", "assert median([4, 1, 3, 2]) == 2.5"),
    ),
    Problem(
        "slug.py",
        "def slug(title):\n    return title.lower()\n",
        "slug(title) in slug.py shall also join the words of a title with hyphens, whatever blank space is between them.",
        ("assert slug('Hello World') == 'hello-world'", "assert slug('  A  b ') == 'a-b'"),
    ),
    Problem(
        "chunks.py",
        "def chunks(items, size):\n    raise NotImplementedError\n",
        "Write chunks(items, size) in chunks.py: lists of `size` items each, the last one with what is left.",
        ("assert chunks([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]", "assert chunks([], 3) == []"),
    ),
]


def schema(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """A tool as the API describes it; all parameters are texts."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    described = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": described}}


TOOLS = [
    schema("bash", "Run a command in bash, for up to 30 seconds.", command="the command"),
    schema("read_file", "Read a text file.", path="relative to the working directory, or absolute"),
    schema("write_file", "Write a text file, with its folders.", path="as of read_file", content="the whole text"),
]


async def execute_tool(sandbox: Sandbox, name: str, arguments: str) -> str:
    """What the model is to see of a call. Its own mistakes are observations; a failure of the infrastructure is raised."""
    try:
        given = json.loads(arguments)
        if name == "bash":
            result = await sandbox.exec(["bash", "-c", given["command"]], timeout_seconds=30)
            observation = f"exit={result.returncode}\n{result.stdout}{result.stderr}"
        elif name == "read_file":
            observation = (await sandbox.read_file(given["path"])).decode(errors="replace")
        elif name == "write_file":
            await sandbox.write_file(given["path"], given["content"].encode())
            observation = "The file is written."
        else:
            observation = f"Error: there is no tool {name!r}. There are bash, read_file and write_file."
    except AviatoError as error:
        if error.is_infrastructure:
            raise
        observation = f"Error: {error}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        observation = f"Error: these are no arguments of {name}: {error!r}"
    left_out = len(observation) - MAX_CHARACTERS
    return observation if left_out <= 0 else f"{observation[:MAX_CHARACTERS]}\n[… {left_out} characters left out …]"


async def run_episode(client: AsyncOpenAI, model: str, problem: Problem, session: Session) -> tuple[list[Any], float | None]:
    """The conversation, and its reward: None where the sandbox or the model server failed, which is no verdict."""
    messages: list[Any] = [{"role": "user", "content": problem.prompt}]
    try:
        async with session.sandbox(tags=[f"episode-{problem.path}"]) as sandbox:
            await sandbox.write_file(problem.path, problem.content.encode())
            for _ in range(MAX_STEPS):
                completion = await client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
                message = completion.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                for call in message.tool_calls or ():
                    observation = await execute_tool(sandbox, call.function.name, call.function.arguments)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": observation})
                if not message.tool_calls:
                    break
            return messages, await grade(sandbox, problem, session)
    except (AviatoError, OpenAIError, ValueError) as error:  # ValueError: a reply that is no JSON
        if isinstance(error, AviatoError) and not error.is_infrastructure:
            return messages, 0.0  # It ended its own sandbox.
        print(f"  {problem.path}: {type(error).__name__}: {error}")
        return messages, None


async def grade(sandbox: Sandbox, problem: Problem, session: Session) -> float | None:
    """Only the file counts, in a fresh sandbox: what else the model has done to its own helps it in nothing."""
    code = (await sandbox.read_file(problem.path)).decode(errors="replace")
    [outcome] = await evaluate([Task(code=code, tests=problem.tests)], session=session)
    return outcome.reward()


async def main() -> None:
    """All episodes side by side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt-4o-mini")
    parser.add_argument("--base-url")
    arguments = parser.parse_args()
    async with AsyncOpenAI(base_url=arguments.base_url) as client, Session() as session:
        episodes = [run_episode(client, arguments.model, problem, session) for problem in PROBLEMS]
        for problem, (messages, reward) in zip(PROBLEMS, await asyncio.gather(*episodes), strict=True):
            calls = sum(message["role"] == "tool" for message in messages)
            print(f"  {problem.path}: reward={reward} after {calls} tool calls")


if __name__ == "__main__":
    asyncio.run(main())
