"""Sandboxes that say which job made them: tags from the environment of the job, and how many of a run are active.

Run it with `python examples/tagged_jobs.py`.
"""

import os
from collections import Counter

import aviato
from aviato import Sandbox, SandboxDefaults, SandboxStatus, Session


def make_defaults(model: str, env: str) -> SandboxDefaults:
    """Every sandbox of a session with these can be found by run, job, model or environment."""
    return SandboxDefaults(
        tags=(
            f"wandb-run:{os.environ.get('WANDB_RUN_ID', 'local')}",
            f"slurm-job:{os.environ.get('SLURM_JOB_ID', 'interactive')}",
            f"model:{model}",
            f"env:{env}",
        )
    )


def count_active_sandboxes(run_id: str) -> dict[str, int]:
    """Of all processes of a run, on this server."""
    active = [SandboxStatus.RUNNING, SandboxStatus.PENDING]
    statuses = Counter(sandbox.status for sandbox in Sandbox.list(tags=[f"wandb-run:{run_id}"], status=active).result())
    return {"running": statuses["running"], "pending": statuses["pending"], "total": statuses.total()}


run_id = os.environ.get("WANDB_RUN_ID", "local")
with Session(make_defaults("Qwen/Qwen2.5-3B-Instruct", env="dev")) as session:
    sandboxes = [session.sandbox(tags=[f"problem-{number}"]) for number in range(3)]
    aviato.wait(sandboxes)
    print("\n".join(sandboxes[0].tags))
    print(count_active_sandboxes(run_id))
print(count_active_sandboxes(run_id))
