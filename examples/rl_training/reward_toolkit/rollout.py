"""One problem, several attempts: the model sees why an attempt failed before it makes the next one."""

from __future__ import annotations

import openai
from openai.types.chat.chat_completion import Choice

from aviato import Session
from aviato.rl import extract_code

from .rewards import MBPPProblem, feedback, grade
from .types import TrainableModel, Trajectory

SYSTEM_PROMPT = "You are a careful Python programmer. Reply with the whole solution in one ```python block."


async def rollout(model: TrainableModel, problem: MBPPProblem, session: Session, max_attempts: int = 3) -> Trajectory:
    """Let the model try until it passes or has had its attempts, each graded in a fresh sandbox of the session.

    A model server or a sandbox that fails ends the rollout without a reward, whatever came before; it raises nothing.
    """
    tests = "\n".join(problem.test_cases)
    trajectory = Trajectory(
        problem.task_id,
        [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": f"{problem.prompt}\n\nYour code has to pass these tests:\n\n{tests}"},
        ],
    )
    for _ in range(max_attempts):
        try:
            choice = await ask(model, trajectory)
        except (openai.OpenAIError, ValueError) as error:
            trajectory.error = f"model server: {type(error).__name__}: {error}"
            # A request refused as bad has most likely outgrown the context. That is the model's doing: its last verdict stands.
            if not isinstance(error, openai.BadRequestError):
                trajectory.reward = None
            return trajectory
        trajectory.messages_and_choices.append(choice)
        outcome = await grade(session, problem, extract_code(choice.message.content))
        trajectory.reward = outcome.reward()
        if outcome.is_infrastructure:
            trajectory.error = f"sandbox: {outcome.message}"
            return trajectory
        trajectory.attempts += 1
        if outcome.passed:
            return trajectory
        trajectory.messages_and_choices.append({"role": "user", "content": feedback(problem, outcome)})
    return trajectory


async def ask(model: TrainableModel, trajectory: Trajectory) -> Choice:
    """The model's next reply.

    Raises:
        openai.OpenAIError, ValueError: the server could not be reached, refused, or answered with something else.
    """
    completion = await model.client.chat.completions.create(model=model.name, messages=trajectory.messages())
    choices = getattr(completion, "choices", None)
    if not choices or choices[0].message is None:
        raise ValueError("its answer has no choices")
    return choices[0]
