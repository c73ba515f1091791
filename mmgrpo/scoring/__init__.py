"""Calls every reward on every sample and distinguishes scores that do not apply, failures and zeros."""

from mmgrpo.scoring.named_rewards import Gate, NamedReward, named_rewards, with_reward_inputs
from mmgrpo.scoring.scorer import PendingScores, Scorer, score
from mmgrpo.scoring.trl_form import as_reward

__all__ = [
    "Gate",
    "NamedReward",
    "PendingScores",
    "Scorer",
    "as_reward",
    "named_rewards",
    "score",
    "with_reward_inputs",
]
