"""Credit by another source: a learned value, another policy, a column of the data.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.critics import generalized_advantage
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.sources import ON_POLICY
from mmgrpo.system.lazy import torch
from mmgrpo.values import REFERENCE, VALUE, Value, of_view

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(values=lambda value, view: (Value(value, view),))
def gae(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    gamma: float = 1.0,
    decay: float = 0.95,
    value: str = VALUE.name,
    view: str | None = None,
) -> Tensor:
    """Generalized advantages of a learned value; the sample's reward is that of its last decision.

    delta_t = r_t + gamma V_{t+1} - V_t;   A_t = delta_t + gamma decay A_{t+1}, over kept decisions, 0 after the last.
    It replaces the advantage.

    Units: those of the reward; gamma and decay are dimensionless (1 and 0.95).
    Source: GAE, arXiv:1506.02438, eq. 16.
    """
    return gae_BT(feedback, advantage_BT, gamma=gamma, decay=decay, value=Value(value, view))


def gae_BT(feedback: Feedback, advantage_BT: Tensor, *, gamma: float, decay: float, value: Value) -> Tensor:
    """Generalized advantages of a value. Shapes: (B, T) -> (B, T)."""
    reward_B = feedback.reward_B.where(feedback.valid_B, 0.0)
    gae_BT = generalized_advantage(feedback[value], reward_B, feedback.mask_BT, gamma=gamma, decay=decay)
    return gae_BT.where(feedback.valid_B[:, None], 0.0).to(advantage_BT)


@ESTIMATORS.register
@estimator()
def whitened(feedback: Feedback, advantage_BT: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Advantages standardized over all decisions of the job's on-policy samples that a reward applied to, or that
    continue at the next step.

    A <- (A - mean_N A) / sqrt(var_N A + eps), sample variance, over their kept decisions of the step; of fewer than two
    the advantage is 0, and so it is of off-policy samples.

    Units: any -> standard deviations; eps in the square of the advantage's units.
    Source: verl, torch_functional.py, ``masked_whiten``, in which fewer than two decisions are an error.
    """
    counts_B = is_sampled_B(feedback)
    counts_B = counts_B if feedback.partial_B is None else counts_B | feedback.partial_B
    return standardize(feedback, advantage_BT, feedback.mask_BT & counts_B[:, None], eps)


def standardize(feedback: Feedback, advantage_BT: Tensor, keep_BT: Tensor, eps: float) -> Tensor:
    """The advantages of some decisions over their mean and deviation on all processes; 0 elsewhere."""
    masked_BT = advantage_BT.double().where(keep_BT, 0.0)
    count, total = feedback.summed(torch.stack([keep_BT.sum().double(), masked_BT.sum()]))
    centered_BT = (masked_BT - total / count.clamp(min=1)).where(keep_BT, 0.0)
    variance = feedback.summed(centered_BT.square().sum()) / (count - 1).clamp(min=1)
    return (centered_BT / (variance + eps).sqrt()).where(keep_BT & (count > 1), 0.0).to(advantage_BT)


@ESTIMATORS.register
@estimator(
    values=lambda view, base, scale: (of_view(view),) if scale == 1 else (of_view(view), of_view(base)), unscored=True
)
def log_ratio(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    view: str,
    base: str = REFERENCE,
    scale: float = 1.0,
    weight: float = 1.0,
    keep: float = 1.0,
) -> Tensor:
    """How much likelier another policy finds a decision than a base does, less how much likelier this one found it.

    A_t <- keep A_t + weight (scale (logprob_view - logprob_base) - (old_logprob - logprob_base)). At scale 1 it is
    logprob_view - old_logprob, on-policy distillation; above 1 it goes beyond the teacher. Samples without a reward
    train too; nothing is added where a sample does not have the view.

    Units: nats times weight; scale (1.25) and keep are dimensionless.
    Source: G-OPD, arXiv:2602.12125, and its code (RUCBM/G-OPD, ``dp_actor.py``), where keep is 0.
    """
    teacher_BT, mask_BT = feedback[of_view(view)], feedback.view_mask(view)
    reward_BT = teacher_BT - feedback.old_logprob_BT
    if scale != 1:
        reward_BT = reward_BT + (scale - 1) * (teacher_BT - feedback[of_view(base)])
        mask_BT = mask_BT & feedback.view_mask(base)
    return keep * advantage_BT + weight * reward_BT.where(mask_BT, 0.0).to(advantage_BT)


@ESTIMATORS.register
@estimator(columns=lambda column: (column,))
def column_weight(
    feedback: Feedback, advantage_BT: Tensor, *, column: str, at_zero: float = 0.0, at_one: float = 1.0
) -> Tensor:
    """The advantage times a number of the data row, the weight of its prompt in the run.

    A <- A (at_zero + (at_one - at_zero) column); without the two it is times the column itself.

    Units: dimensionless.
    Source: a prompt's difficulty in DR-IRL, arXiv:2503.18991; its rank, turned over half way, in Re-Schedule,
        arXiv:2510.24832.
    """
    weight_B = at_zero + (at_one - at_zero) * feedback.column(column)
    return advantage_BT * weight_B[:, None].to(advantage_BT)


@ESTIMATORS.register
@estimator()
def on_policy_baseline(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    """Every member of a group against those that the policy sampled at this step.

    A = r - mean r of the group's on-policy members; 0 in groups without one. Off-policy rows (replayed, demonstrations,
    refined) take part without moving the baseline. It replaces the advantage.

    Units: those of the reward.
    Source: none; Critique-GRPO's code (zhangxy-2019/critique-GRPO) compares with the complete group, its refinements
        included, as the scales of ``advantage.scale`` do.
    """
    groups = feedback.groups
    sampled_PG, valid_PG = groups.valid(is_sampled_B(feedback)), groups.valid(feedback.valid_B)
    reward_PG = groups.matrix(feedback.reward_B)
    count_P1 = sampled_PG.sum(1, keepdim=True)
    mean_P1 = reward_PG.where(sampled_PG, 0.0).sum(1, keepdim=True) / count_P1.clamp(min=1)
    highest_P1 = reward_PG.where(sampled_PG, -torch.inf).amax(1, keepdim=True)
    lowest_P1 = reward_PG.where(sampled_PG, torch.inf).amin(1, keepdim=True)
    # the mean of equal numbers need not be that number in floating point
    mean_P1 = highest_P1.where(lowest_P1 == highest_P1, mean_P1)
    advantage_B = groups.rows((reward_PG - mean_P1).where(valid_PG & (count_P1 > 0), 0.0))
    return advantage_B[:, None].to(advantage_BT).expand_as(advantage_BT)


def is_sampled_B(feedback: Feedback) -> Tensor:
    """(B,) bool, the samples that were sampled at this step and that a reward applied to."""
    return feedback.valid_B if feedback.source_B is None else feedback.valid_B & (feedback.source_B == ON_POLICY)


def _check_within_divergence(limit: float) -> None:
    if not limit > 0:
        raise ConfigError(f"within_divergence needs a limit above 0, got {limit}")


@ESTIMATORS.register
@estimator(values=lambda view: (of_view(view),), check=_check_within_divergence)
def within_divergence(feedback: Feedback, advantage_BT: Tensor, *, view: str = REFERENCE, limit: float) -> Tensor:
    """Less of the advantage the further a sample has gone from a view, none from a limit on; less the step's mean.

    x_i = A_i max(1 - d_i / limit, 0), d_i = sum_t (old_logprob - logprob_view) over the kept decisions that have the
    view;   A_i <- x_i - mean_N x, the mean over the job's samples that a reward applied to.

    Units: limit in nats per sample.   Raises: ConfigError for a limit that is not above 0.
    Source: CGPO, arXiv:2409.20370, eq. 11 and 12, with the reward as the advantage.
    """
    difference_BT = (feedback.old_logprob_BT - feedback[of_view(view)]).where(feedback.view_mask(view), 0.0)
    shrunk_BT = advantage_BT.double() * (1 - difference_BT.double().sum(1, keepdim=True) / limit).clamp(min=0)
    counts_B = feedback.valid_B & (feedback.length_B > 0)
    mean_B = feedback.mean(shrunk_BT).where(counts_B, 0.0)
    count, total = feedback.summed(torch.stack([counts_B.sum().double(), mean_B.sum()]))
    keep_BT = feedback.mask_BT & counts_B[:, None]
    return (shrunk_BT - total / count.clamp(min=1)).where(keep_BT, 0.0).to(advantage_BT)


@ESTIMATORS.register
@estimator()
def imitated(feedback: Feedback, advantage_BT: Tensor, *, reward: str, weight: float = 1.0) -> Tensor:
    """Rows that a single reward applies to form a separate mean, weighted by that reward.

    A = weight v n / sum v on these rows, v the reward of each and n the number of other rows that the job trains; the
    others keep theirs. Under ``sequence_mean``, with the surrogate ``policy_gradient`` or at a ratio of 1, the gradient
    is that of n / N (L + weight M): N all rows, L the loss of the others alone, M the mean over these rows, by v, of
    minus the mean log-probability of their decisions.

    Units: weight is that of M relative to L; v is 0 or more.
    Source: useful texts of the policy are trained by their likelihood in addition to GRPO: MEL, arXiv:2602.10224,
        eq. 9 and 10; ExPO, arXiv:2507.02834.
    """
    column, trains_B = feedback.reward(reward), feedback.length_B > 0
    valid_B = column.valid_B & trains_B
    value_B = column.value_B.where(valid_B, 0.0)
    others, total = feedback.summed(torch.stack([(trains_B & ~valid_B).sum().double(), value_B.sum().double()]))
    share_B1 = (weight * value_B * others / total if total > 0 else value_B)[:, None].to(advantage_BT)
    return share_B1.expand_as(advantage_BT).where(valid_B[:, None], advantage_BT)
