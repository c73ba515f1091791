"""Asks every reward about every sample, and keeps apart what does not apply, what failed and what is zero."""

from mmgrpo.scoring.named_rewards import Gate, NamedReward, named_rewards
from mmgrpo.scoring.scorer import PendingScores, Scorer, score
from mmgrpo.scoring.trl_form import as_reward

__all__ = ["Gate", "NamedReward", "PendingScores", "Scorer", "as_reward", "named_rewards", "score"]
