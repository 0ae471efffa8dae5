"""One rollout: the model works on a problem in a sandbox, and what came of it is an `art.Trajectory`."""

from __future__ import annotations

from inference import Conversation
from openai import AsyncOpenAI
from problems import MBPPProblem
from tools import ROLLOUT_TOOLS, Toolbox

import art
from aviato import Session

MAX_TURNS = 10


async def rollout(client: AsyncOpenAI, model: str, problem: MBPPProblem, session: Session) -> art.Trajectory:
    """Let the model call tools until it has submitted a solution, says something without calling one, or has had its turns.

    The reward is 1.0 if the submission passes its tests and 0.0 if not, or if there is none. Where the sandboxes or the model's
    server fail there is no reward to give: the error is raised, and ART keeps it apart from the trajectories.

    Raises:
        AviatoError: the sandboxes failed.
        openai.OpenAIError: the model's server failed.
    """
    trajectory = art.Trajectory(messages_and_choices=problem.messages(), tools=ROLLOUT_TOOLS)
    messages = trajectory.messages_and_choices
    conversation = Conversation(client, model, problem.messages())
    turns = 0
    async with session.sandbox() as sandbox:
        toolbox = Toolbox(problem, session, sandbox)
        while toolbox.outcome is None and turns < MAX_TURNS:
            turn = await conversation.turn()
            turns += 1
            # Plain text: ART trains on it without log-probabilities of the tokens, which this model's replies do not have.
            messages.append({"role": "assistant", "content": str(turn)})
            if not turn.calls:
                break
            for call in turn.calls:
                output = await toolbox.call(call.name, call.arguments)
                conversation.answer(call, output)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})

    outcome = toolbox.outcome
    trajectory.reward = 1.0 if outcome is not None and outcome.passed else 0.0
    trajectory.metrics = {"turns": turns, "submitted": outcome is not None}
    trajectory.metadata = {
        "task_id": problem.task_id,
        "sandbox_id": sandbox.sandbox_id,
        "verdict": "none" if outcome is None else str(outcome.verdict),
    }
    return trajectory.finish()
