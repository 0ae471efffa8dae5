"""Rewards and environments for TRL's GRPO trainers; TRL itself is never imported here.

::

    from trl import GRPOTrainer
    from aviato.rl.trl import code_reward

    trainer = GRPOTrainer(model=…, reward_funcs=code_reward(tests_column="tests"), train_dataset=dataset)
"""

from aviato.rl.trl.environment import SandboxEnvironment, SelfGradingEnvironment
from aviato.rl.trl.environment_reward import environment_reward
from aviato.rl.trl.reward import RewardFunction, code_reward

__all__ = ["RewardFunction", "SandboxEnvironment", "SelfGradingEnvironment", "code_reward", "environment_reward"]
