"""Rewards and environments for TRL's GRPO trainers; TRL itself is never imported here.

::

    from trl import GRPOTrainer
    from aviato.rl.trl import code_reward

    trainer = GRPOTrainer(model=…, reward_funcs=code_reward(tests_column="tests"), train_dataset=dataset)
"""

from aviato.rl.trl.reward import RewardFunction, code_reward

__all__ = ["RewardFunction", "code_reward"]
