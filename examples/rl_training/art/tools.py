"""The agent's tools: `execute_code` tries code out, `submit_solution` grades it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from openai.types.chat import ChatCompletionToolParam
from problems import MBPPProblem

from aviato import Sandbox, SandboxCommandTimeoutError, SandboxError, Session
from aviato.rl import Outcome, Task, evaluate

SCRIPT = "/tmp/script.py"
EXECUTION_TIMEOUT_SECONDS = 10.0
GRADING_TIMEOUT_SECONDS = 30.0
MAX_OUTPUT_BYTES = 4_000


def describe(name: str, description: str, code: str) -> ChatCompletionToolParam:
    """A tool that takes code, in the form of the chat completions API."""
    parameters = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": code}},
        "required": ["code"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


ROLLOUT_TOOLS: list[ChatCompletionToolParam] = [
    describe(
        "execute_code",
        "Execute Python code in an isolated sandbox and see its exit code, stdout and stderr. "
        "Files that it writes stay there for the next call; variables do not.",
        "A whole Python program",
    ),
    describe(
        "submit_solution",
        "Submit the final solution. All test cases are run on it, once: it cannot be changed afterwards.",
        "Python source that defines what the task asks for",
    ),
]
NAMES = [tool["function"]["name"] for tool in ROLLOUT_TOOLS]


@dataclass
class Toolbox:
    """The tools of one rollout. Its sandbox stays the same throughout; a submission is graded in a fresh one.

    Attributes:
        outcome: of the submission, once there is one.
    """

    problem: MBPPProblem
    session: Session
    sandbox: Sandbox
    outcome: Outcome | None = None

    async def call(self, name: str, arguments: str) -> str:
        """What the model is told. Its own mistakes are told too; what raises is infrastructure."""
        if self.outcome is not None:
            return "Error: a solution has been submitted already."
        if name not in NAMES:
            return f"Error: there is no tool {name!r}. The tools are {' and '.join(NAMES)}."
        try:
            code = code_of(arguments)
        except ValueError as error:
            return f'Error: {error}. Send a JSON object such as {{"code": "print(1)"}}.'
        return await (self._execute(code) if name == "execute_code" else self._submit(code))

    async def _execute(self, code: str) -> str:
        try:
            # A lone surrogate is legal in JSON: Python inside will say what is wrong with it.
            await self.sandbox.write_file(SCRIPT, code.encode(errors="surrogatepass"))
            result = await self.sandbox.exec(
                ["python", SCRIPT], timeout_seconds=EXECUTION_TIMEOUT_SECONDS, max_output_bytes=MAX_OUTPUT_BYTES
            )
        except SandboxCommandTimeoutError as error:
            partial = error.exec_result
            shown = "" if partial is None else f"\n{partial.stdout}{partial.stderr}"
            return f"Error: the code ran longer than {EXECUTION_TIMEOUT_SECONDS:g} s and was stopped.{shown}"
        except SandboxError as error:
            if error.is_infrastructure:
                raise
            return f"Error: {error}"
        return f"exit code: {result.returncode}\n{result.stdout}{result.stderr}"

    async def _submit(self, code: str) -> str:
        await self.sandbox.stop(graceful_shutdown_seconds=0, missing_ok=True)  # makes room for the one that grades
        task = Task(code=code, tests=self.problem.cases, timeout_seconds=GRADING_TIMEOUT_SECONDS)
        [outcome] = await evaluate([task], session=self.session)
        if outcome.error is not None:
            raise outcome.error
        self.outcome = outcome
        return "All tests passed." if outcome.passed else f"Not solved: {outcome.message}"


def code_of(arguments: str) -> str:
    """The code in a call's arguments, which are whatever the model wrote.

    Raises:
        ValueError: there is none, in words for the model.
    """
    try:
        parsed: Any = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the arguments are no valid JSON ({error})") from None
    code = parsed.get("code") if isinstance(parsed, dict) else None
    if not isinstance(code, str) or not code.strip():
        raise ValueError("the arguments need a text 'code' that is not empty")
    return code
