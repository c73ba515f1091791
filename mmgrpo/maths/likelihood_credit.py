"""Credit by how likely a sample was under the weights that drew it, and by where in it a decision stands.

Axes: B samples, T decisions, G members of a group.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.maths.feedback import Estimator, Feedback
from mmgrpo.maths.filters import members
from mmgrpo.system.lazy import torch
from mmgrpo.values import end_logprob

if TYPE_CHECKING:
    from torch import Tensor


def perplexity_weight(*, strength: float = 0.01, low: float = 0.8, high: float = 1.2) -> Estimator:
    """Samples that are likelier than the rest of their group count more, for good or ill.

    A <- A clip(1 - strength z, low, high), z = (n - mean_G n) / std_G n, n = -mean_t old_logprob of the sample.
    Mean and population std are over the members within 1.5 interquartile ranges of the quartiles; a std of at most 1e-6
    is taken as 1.

    Units: strength is per standard deviation (0.01); low and high are factors.
    Source: Deng et al., arXiv:2508.02260, perplexity-based advantage shaping, and its code
        (RUCAIBox/Slow_Thinking_with_LLMs, entropy2performance, ``core_algos.py``, calculate_ppl). Of what that code
        multiplies by the factor the branch for likely samples is empty as it was published; the paper's is taken.
    """
    return Estimator(assign=partial(_perplexity_weight, strength=strength, low=low, high=high))


def _perplexity_weight(feedback: Feedback, advantage_BT: Tensor, *, strength: float, low: float, high: float) -> Tensor:
    surprise_B = -feedback.mean(feedback.old_logprob_BT).double()
    factor_B = torch.ones_like(surprise_B)
    for rows in members(feedback):
        surprise_G = surprise_B[rows]
        usual_G = surprise_G[_near_quartiles(surprise_G)]
        std = usual_G.std(correction=0)
        score_G = (surprise_G - usual_G.mean()) / std.where(std > 1e-6, 1.0)
        factor_B[rows] = (1 - strength * score_G).clamp(low, high)
    return advantage_BT * factor_B[:, None].to(advantage_BT)


def _near_quartiles(value_G: Tensor) -> Tensor:
    first, third = value_G.quantile(0.25), value_G.quantile(0.75)
    slack = 1.5 * (third - first)
    return (value_G >= first - slack) & (value_G <= third + slack)


def late_decisions(
    *, strength: float = 0.1, steepness: float = 15.0, start: int = 0, end: int | None = None
) -> Estimator:
    """The later half of a sample counts more, by at most half of its advantage.

    A_t <- A_t + sign(A_t) min(strength sigmoid(steepness (t / n - 0.5)), |A_t| / 2), t from 0 over the sample's n kept
    decisions, at the steps of the run from ``start`` to before ``end``.

    Units: strength is an advantage (0.1); steepness is dimensionless; steps count from 0.
    Source: Deng et al., arXiv:2508.02260, position-based advantage shaping, and its code
        (RUCAIBox/Slow_Thinking_with_LLMs, entropy2performance, ``core_algos.py``, compute_policy_loss).
    """
    assign = partial(_late_decisions, strength=strength, steepness=steepness, start=start, end=end)
    return Estimator(assign=assign, start=start)


def _late_decisions(
    feedback: Feedback, advantage_BT: Tensor, *, strength: float, steepness: float, start: int, end: int | None
) -> Tensor:
    if feedback.step < start or (end is not None and feedback.step >= end):
        return advantage_BT
    place_BT = (feedback.mask_BT.cumsum(1) - 1) / feedback.length_B.clamp(min=1)[:, None]
    bonus_BT = (strength * torch.sigmoid(steepness * (place_BT - 0.5))).to(advantage_BT)
    return advantage_BT + advantage_BT.sign() * bonus_BT.minimum(advantage_BT.abs() / 2)


def confident_mistakes(*, weight: float = 0.25, eps: float = 1e-4) -> Estimator:
    """Wrong samples cost the more the likelier they were, also where the whole group is wrong.

    c = r - (1 - r) p / (G (D - p)), p the geometric mean of the sample's probabilities.
    D = max(1 / mean_G(r / p), 2 max_G p), or 2 max_G p in groups that earned nothing.
    A = (c - mean_G c) / (std_G c + eps), or weight (c - mean_G c) in groups that earned nothing; it replaces what was.

    Units: rewards from 0 to 1; weight is that of groups that earned nothing (0.25).
    Source: LENS, arXiv:2510.08696, sec. 5, of which no code was found. Reading: its eq. 14 takes the likelihoods
        normalised by length too. Deviation: eps in the denominator.
    """
    return Estimator(assign=partial(_confident_mistakes, weight=weight, eps=eps))


def _confident_mistakes(feedback: Feedback, advantage_BT: Tensor, *, weight: float, eps: float) -> Tensor:
    likely_B = feedback.mean(feedback.old_logprob_BT).double().exp()
    advantage_B = torch.zeros_like(feedback.reward_B)
    for rows in members(feedback):
        reward_G, likely_G = feedback.reward_B[rows], likely_B[rows]
        rate = (reward_G / likely_G).mean()
        ceiling = torch.maximum(1 / rate, 2 * likely_G.max()) if rate > 0 else 2 * likely_G.max()
        penalty_G = likely_G / (ceiling - likely_G) / len(rows)
        gain_G = reward_G - (1 - reward_G) * penalty_G
        centred_G = gain_G - gain_G.mean()
        if bool((gain_G != gain_G[0]).any()):
            advantage_B[rows] = centred_G / (gain_G.std() + eps) if rate > 0 else weight * centred_G
    return advantage_B[:, None].to(advantage_BT).expand_as(advantage_BT)


def self_judged(
    *, token: int, share: float = 0.1, scale: float = 0.1, anchor: float = -23.0, least: float = 0.1, start: int = 0
) -> Estimator:
    """What the policy says of its own answers, by a token behind their ends, is a part of the advantage.

    A <- (1 - share) A + share (s - mean_G s) / std_G s, where the sample std_G s of the group is above ``least``, at
    the steps of the run from ``start`` on. s = clip(scale (logprob(token) - anchor), 0, 1), 0 of a text that did not
    come to its own end.

    Units: share is dimensionless, scale reward per nat, anchor nats, least a reward; steps count from 0.
    Source: LaSeR, arXiv:2510.14943, and its code (RUCBM/LaSeR, ``ray_trainer.py``, self_rewarding_advantages).
    """
    value = end_logprob(token)

    def assign(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
        if feedback.step < start:
            return advantage_BT
        end_BT = feedback[value].double()
        said_B = (scale * (end_BT.sum(1) - anchor)).clamp(0, 1).where((end_BT != 0).any(1), 0.0)
        mixed_BT = advantage_BT.clone()
        for rows in members(feedback):
            std = said_B[rows].std() if len(rows) > 1 else said_B.new_zeros(())
            if std > least:
                own_G1 = ((said_B[rows] - said_B[rows].mean()) / std)[:, None].to(advantage_BT)
                mixed_BT[rows] = ((1 - share) * advantage_BT[rows] + share * own_G1).where(feedback.mask_BT[rows], 0.0)
        return mixed_BT

    return Estimator(assign=assign, values=(value,), start=start)
