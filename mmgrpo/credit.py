"""From what the rewards said to the advantage of each sample, over the groups of the whole job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmgrpo.config import AdvantageConfig
from mmgrpo.maths.advantages import ADVANTAGES, clamp_advantage, gdpo_advantage
from mmgrpo.types import Scores


@dataclass(frozen=True, slots=True)
class Credit:
    """What each sample of the job earned.

    Attributes:
        advantage_B: float32; 0 where the sample is not trained on.
        keep_B: bool, whether any reward applied to the sample.
        zero_std_frac: share of the groups that teach nothing, all their advantages being 0.
    """

    advantage_B: Tensor
    keep_B: Tensor
    zero_std_frac: float


def merged_scores(parts: Sequence[Scores]) -> Scores:
    """The scores of all processes, in rank order."""
    return Scores(
        names=parts[0].names,
        weight_R=parts[0].weight_R,
        value_BR=torch.cat([part.value_BR for part in parts]),
        valid_BR=torch.cat([part.valid_BR for part in parts]),
        failures={name: sum(part.failures.get(name, 0) for part in parts) for name in parts[0].names},
    )


def form_credit(scores: Scores, group_size: int, config: AdvantageConfig) -> Credit:
    """Group-relative advantages of whole groups, prompt-major."""
    if config.scale == "gdpo":
        R = len(scores.names)
        reward_RPG, valid_RPG = (matrix.T.reshape(R, -1, group_size) for matrix in (scores.value_BR, scores.valid_BR))
        advantage_PG = gdpo_advantage(reward_RPG, scores.weight_R, valid_RPG, **config.numbers)
    else:
        reward_PG, valid_PG = scores.total_B.reshape(-1, group_size), scores.scored_B.reshape(-1, group_size)
        advantage_PG = ADVANTAGES[config.scale](reward_PG, valid_PG, **config.numbers)
    if config.clamp is not None:
        advantage_PG = clamp_advantage(advantage_PG, limit=config.clamp)
    dead_P = (advantage_PG == 0).all(1)
    return Credit(advantage_PG.flatten(), scores.scored_B, float(dead_P.float().mean()))


def reward_metrics(scores: Scores) -> dict[str, float]:
    """What a run logs of its rewards: means and spreads over the samples each applied to."""
    total = scores.total_B[scores.scored_B]
    metrics = {
        "reward/mean": float(total.mean()) if len(total) else 0.0,
        "reward/std": float(total.std(correction=0)) if len(total) else 0.0,
    }
    for column, name in enumerate(scores.names):
        values = scores.value_BR[scores.valid_BR[:, column], column]
        if len(values):
            metrics[f"reward/{name}/mean"] = float(values.mean())
            metrics[f"reward/{name}/std"] = float(values.std(correction=0))
        metrics[f"reward/{name}/applies_frac"] = len(values) / len(scores.value_BR)
        metrics[f"reward/{name}/failed_frac"] = scores.failures.get(name, 0) / len(scores.value_BR)
    return metrics
