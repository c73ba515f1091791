"""From what the rewards said to the advantage of each sample, over the groups of the whole job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmgrpo.config import AdvantageConfig
from mmgrpo.maths.advantages import ADVANTAGES, clamp_advantage, gdpo_advantage
from mmgrpo.maths.combinations import COMBINATIONS, weighted_sum
from mmgrpo.types import Rollout, Scores


@dataclass(frozen=True, slots=True)
class Credit:
    """What each sample of the job earned.

    Attributes:
        advantage_B: float32; 0 where the sample is not trained on.
        keep_B: bool, whether the sample is trained on and counts: whether any reward applied to it, and with
            ``equal_groups: drop``, whether its group teaches anything.
        zero_std_frac: share of the groups that teach nothing, all their advantages being 0.
        total_B: float64, the rewards as one, where any applied: what was compared, or their weighted sum where rewards
            are normalised first.
        scored_B: bool, whether any reward of a weight other than 0 applied to the sample.
    """

    advantage_B: Tensor
    keep_B: Tensor
    zero_std_frac: float
    total_B: Tensor
    scored_B: Tensor


def merged_scores(parts: Sequence[Scores]) -> Scores:
    """The scores of all processes, in rank order."""
    return Scores(
        names=parts[0].names,
        weight_R=parts[0].weight_R,
        value_BR=torch.cat([part.value_BR for part in parts]),
        valid_BR=torch.cat([part.valid_BR for part in parts]),
        failures={name: sum(part.failures.get(name, 0) for part in parts) for name in parts[0].names},
        explanations={
            name: [said for part in parts for said in part.explanations.get(name, [None] * len(part.value_BR))]
            for name in parts[0].names
            if any(name in part.explanations for part in parts)
        },
        cached={name: sum(part.cached[name] for part in parts) for name in parts[0].cached},
        took_s={name: max(part.took_s[name] for part in parts) for name in parts[0].took_s},
    )


def penalised(scores: Scores, divergence_B: Tensor, kl_beta: float) -> Scores:
    """The scores with a further column ``kl`` to report: the divergence of each scored sample, at the weight -kl_beta.

    Shapes: (B,) divergences summed over the samples' decisions.
    """
    return replace(
        scores,
        names=(*scores.names, "kl"),
        weight_R=torch.cat([scores.weight_R, torch.tensor([-kl_beta])]),
        value_BR=torch.cat([scores.value_BR, divergence_B[:, None].to(scores.value_BR)], dim=1),
        valid_BR=torch.cat([scores.valid_BR, scores.scored_B[:, None]], dim=1),
    )


@dataclass(frozen=True, slots=True)
class Counted:
    """A rollout without what is not trained on, and what still counts in means over samples.

    Attributes:
        rollout: its mask keeps what is trained on.
        zero_B: bool, samples that count as zeros although nothing of them is trained on.
    """

    rollout: Rollout
    zero_B: Tensor


def counted(rollout: Rollout, keep_B: Tensor, truncated: str) -> Counted:
    """Leaves out samples that are not kept, and truncated ones as ``objective.truncated`` says: keep, zero or drop."""
    rollout = rollout.keep(keep_B[:, None])
    truncated_B = torch.tensor([not sample.finished for sample in rollout.samples])
    if truncated == "keep":
        return Counted(rollout, torch.zeros_like(truncated_B))
    zero_B = truncated_B & rollout.mask_BT.any(1) if truncated == "zero" else torch.zeros_like(truncated_B)
    return Counted(rollout.keep(~truncated_B[:, None]), zero_B)


def form_credit(scores: Scores, group_size: int, config: AdvantageConfig, divergence_B: Tensor | None = None) -> Credit:
    """Group-relative advantages of whole groups, prompt-major.

    Args:
        scores: of the whole job.
        group_size: members per prompt.
        config: the ``advantage:`` section.
        divergence_B: from the reference, summed over each sample's decisions; kl_beta times it is taken off what the
            rewards combine to, after any reward was normalised, so that it keeps its size (RLOO, arXiv:2402.14740).

    Returns:
        The advantages, float32; they are formed in float64, where no finite float32 reward overflows.
    """
    R = len(scores.names)
    reward_RPG, valid_RPG = (matrix.T.reshape(R, -1, group_size) for matrix in (scores.value_BR, scores.valid_BR))
    reward_RPG, weight_R = reward_RPG.double(), scores.weight_R.double()
    valid_PG = scores.scored_B.reshape(-1, group_size)
    penalty_PG = torch.zeros(valid_PG.shape, dtype=torch.float64)
    if divergence_B is not None:
        penalty_PG = config.kl_beta * divergence_B.double().reshape(-1, group_size).where(valid_PG, 0.0)
    total_PG = weighted_sum(reward_RPG, weight_R, valid_RPG) - penalty_PG
    if config.scale == "gdpo":
        part_RPG = valid_RPG & (weight_R != 0)[:, None, None]
        advantage_PG = gdpo_advantage(reward_RPG, weight_R, part_RPG, penalty_PG, **config.numbers)
    else:
        combine = COMBINATIONS[config.combine.name]
        reward_PG = combine(reward_RPG, weight_R, valid_RPG, **config.combine.numbers) - penalty_PG
        advantage_PG = ADVANTAGES[config.scale](reward_PG, valid_PG, **config.numbers)
        total_PG = total_PG if config.combine.name == "normalised_sum" else reward_PG
    if config.clamp is not None:
        advantage_PG = clamp_advantage(advantage_PG, limit=config.clamp)
    dead_P = (advantage_PG == 0).all(1)
    keep_B = scores.scored_B
    if config.equal_groups == "drop":
        keep_B = keep_B & ~dead_P.repeat_interleave(group_size)
    return Credit(
        advantage_PG.flatten().float(),
        keep_B,
        float(dead_P.float().mean()),
        total_PG.flatten(),
        scored_B=scores.scored_B,
    )


def reward_metrics(scores: Scores, credit: Credit) -> dict[str, float]:
    """What a run logs of its rewards: what each gave, over the samples it applied to, and what they came to."""
    total = credit.total_B[credit.scored_B]
    metrics = {
        "reward/mean": float(total.mean()) if len(total) else 0.0,
        "reward/std": float(total.std(correction=0)) if len(total) else 0.0,
    }
    for column, name in enumerate(scores.names):
        values = scores.value_BR[scores.valid_BR[:, column], column].double()
        if len(values):
            metrics[f"reward/{name}/mean"] = float(values.mean())
            metrics[f"reward/{name}/std"] = float(values.std(correction=0))
        metrics[f"reward/{name}/applies_frac"] = len(values) / len(scores.value_BR)
        metrics[f"reward/{name}/failed_frac"] = scores.failures.get(name, 0) / len(scores.value_BR)
        if name in scores.cached:
            metrics[f"reward/{name}/cached_frac"] = scores.cached[name] / len(scores.value_BR)
        if name in scores.took_s:
            metrics[f"time/reward/{name}_s"] = scores.took_s[name]
    return metrics
