"""Headers by which callers say who they are, beside `Authorization`."""

from __future__ import annotations

WANDB_KEY_HEADER = "X-Wandb-Api-Key"
WANDB_ENTITY_HEADER = "X-Wandb-Entity"
WANDB_PROJECT_HEADER = "X-Wandb-Project"
