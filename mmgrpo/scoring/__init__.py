"""Asks every reward about every sample, and keeps apart what does not apply, what failed and what is zero."""

from mmgrpo.scoring.named import Gate, NamedReward, named_rewards
from mmgrpo.scoring.scorer import Scorer, Scoring, score
from mmgrpo.scoring.trl_form import as_reward

__all__ = ["Gate", "NamedReward", "Scorer", "Scoring", "as_reward", "named_rewards", "score"]
