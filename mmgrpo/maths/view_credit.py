"""Credit by how other views find what was drawn.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Estimator, Feedback, row_mean
from mmgrpo.maths.terms import ratio_of
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY, REFERENCE, of_view, seen_in

if TYPE_CHECKING:
    from torch import Tensor


def excess_likelihood(*, view: str, weight: float = 1.0) -> Estimator:
    """Less for a sample whose decisions were likelier than a view finds them.

    A <- A - weight mean_t max(old_logprob - logprob_view, 0), the mean over its kept decisions that have the view.

    Units: nats per decision times weight.   Raises: ConfigError for a weight below 0.
    Source: GTR-Turbo, arXiv:2512.13043, the reverse divergence from its merged teacher with each token's held at 0 or
        above, in the reward.
    """
    if weight < 0:
        raise ConfigError(f"excess_likelihood takes away, so that its weight is at least 0, got {weight}")
    return Estimator(assign=partial(_excess, view=view, weight=weight), values=(of_view(view),))


def _excess(feedback: Feedback, advantage_BT: Tensor, *, view: str, weight: float) -> Tensor:
    excess_BT = (feedback.old_logprob_BT - feedback[of_view(view)]).clamp(min=0)
    mean_B = row_mean(excess_BT, feedback.seen(view))
    return advantage_BT - weight * mean_B[:, None].to(advantage_BT)


def returns_in_view(
    *, view: str, base: str | None = None, weight: float = 1.0, limit: float | None = None
) -> Estimator:
    """How much likelier a view finds a decision and those that follow than a base does, against the group's others.

    r_t = clip(weight (logprob_view - logprob_base), -limit, limit) and R_t = sum_{s >= t} r_s over the kept decisions
    that have both;   A_t <- A_t + R_t - mean_G R_t, where members that have ended by then have 0. The base is a view,
    or null: what drew.

    Units: nats times weight; limit in the units of r_t.   Raises: ConfigError for a limit that is not above 0.
    Source: RTO, arXiv:2404.18922, and its code (zkshan2002/RTO, ``experience_maker.py``, ``compute_reward``), with
        gamma 1. Deviation: the group's mean in place of a learned value.
    """
    if limit is not None and limit <= 0:
        raise ConfigError(f"returns_in_view holds what a decision is worth within a limit above 0, got {limit}")
    values = (of_view(view),) if base is None else (of_view(view), of_view(base))
    return Estimator(assign=partial(_returns, view=view, base=base, weight=weight, limit=limit), values=values)


def _returns(
    feedback: Feedback, advantage_BT: Tensor, *, view: str, base: str | None, weight: float, limit: float | None
) -> Tensor:
    seen_BT = feedback.seen(view) if base is None else feedback.seen(view) & feedback.seen(base)
    base_BT = feedback.old_logprob_BT if base is None else feedback[of_view(base)]
    worth_BT = (weight * (feedback[of_view(view)] - base_BT)).where(seen_BT, 0.0)
    worth_BT = worth_BT if limit is None else worth_BT.clamp(-limit, limit)
    to_come_BT = worth_BT.flip(1).cumsum(1).flip(1)
    groups, valid_B = feedback.groups, feedback.valid_B & seen_BT.any(1)
    valid_PG = groups.valid(valid_B)
    to_come_TPG = groups.matrix(to_come_BT.T).where(valid_PG, 0.0)
    mean_TP1 = to_come_TPG.sum(-1, keepdim=True) / valid_PG.sum(-1, keepdim=True).clamp(min=1)
    gain_BT = groups.rows((to_come_TPG - mean_TP1).where(valid_PG, 0.0)).T
    return advantage_BT + gain_BT.where(feedback.mask_BT, 0.0).to(advantage_BT)


def divergence_to_come(*, view: str = REFERENCE, weight: float, every: int = 1) -> Estimator:
    """Less for a decision the further those that follow have gone from a view, counted from the end of its step.

    A_t <- A_t - weight sum_{s >= e(t)} (old_logprob_s - logprob_view_s) over kept decisions that have the view, e(t)
    the last of the ``every`` kept decisions that t is one of, or the sample's last.

    Units: nats times weight; every in decisions.
    Raises: ConfigError for every below 1.
    Source: PRL, arXiv:2601.10201v1, and its code (MaxwellJryao/Process-Reward-Learning, ``ray_trainer.py``), whose eta
        is 1 / weight; with every 1 it is eq. 5.1 of its second version, FRPO.
    """
    if every < 1:
        raise ConfigError(f"divergence_to_come looks from the end of every so many decisions, at least 1, got {every}")
    return Estimator(assign=partial(_divergence, view=view, weight=weight, every=every), values=(of_view(view),))


def _divergence(feedback: Feedback, advantage_BT: Tensor, *, view: str, weight: float, every: int) -> Tensor:
    seen_BT, mask_BT = feedback.seen(view), feedback.mask_BT
    apart_BT = (feedback.old_logprob_BT - feedback[of_view(view)]).where(seen_BT, 0.0)
    to_come_BT = apart_BT.flip(1).cumsum(1).flip(1)
    number_BT, last = mask_BT.cumsum(1), mask_BT.shape[1] - 1
    ends_BT = mask_BT & ((number_BT % every == 0) | (number_BT == feedback.length_B[:, None]))
    place_BT = torch.arange(last + 1, device=mask_BT.device).where(ends_BT, last)
    end_BT = place_BT.flip(1).cummin(1).values.flip(1)
    return advantage_BT - weight * to_come_BT.gather(1, end_BT).where(seen_BT, 0.0).to(advantage_BT)


def within_divergence(*, view: str = REFERENCE, limit: float) -> Estimator:
    """Less of the advantage the further a sample has gone from a view, none from a limit on; less the step's mean.

    x_i = A_i max(1 - d_i / limit, 0), d_i = sum_t (old_logprob - logprob_view) over the kept decisions that have the
    view;   A_i <- x_i - mean_N x, the mean over the job's samples that a reward applied to.

    Units: limit in nats per sample.   Raises: ConfigError for a limit that is not above 0.
    Source: CGPO, arXiv:2409.20370, eq. 11 and 12, with the reward as the advantage.
    """
    if not limit > 0:
        raise ConfigError(f"within_divergence needs a limit above 0, got {limit}")
    return Estimator(assign=partial(_within, view=view, limit=limit), values=(of_view(view),))


def _within(feedback: Feedback, advantage_BT: Tensor, *, view: str, limit: float) -> Tensor:
    apart_BT = (feedback.old_logprob_BT - feedback[of_view(view)]).where(feedback.seen(view), 0.0)
    held_BT = advantage_BT.double() * (1 - apart_BT.double().sum(1, keepdim=True) / limit).clamp(min=0)
    counts_B = feedback.valid_B & (feedback.length_B > 0)
    mean_B = feedback.mean(held_BT).where(counts_B, 0.0)
    count, total = feedback.summed(torch.stack([counts_B.sum().double(), mean_B.sum()]))
    keep_BT = feedback.mask_BT & counts_B[:, None]
    return (held_BT - total / count.clamp(min=1)).where(keep_BT, 0.0).to(advantage_BT)


def outside_view(*, view: str) -> Estimator:
    """No advantage for the samples that have a view: what the view says teaches them, beside the surrogate.

    A <- 0 where the row has the view.

    Units: those of the advantage.
    Source: the routing of SRPO, arXiv:2604.02288, which leaves wrong samples with a right peer to distillation.
    """

    def assign(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
        return advantage_BT.where(~feedback.seen(view), 0.0)

    return Estimator(assign=assign, values=(seen_in(view),))


def bounded_uncertainty(
    *, view: str, weight: float = 1.0, bound: float = 2.0, entropy: float = 0.4, entropy_bound: float = 2.0
) -> Estimator:
    """More for decisions that the view would have taken otherwise, and for unsure ones, each within a share of |A|.

    A_t <- A_t + min(|A_t| / bound, weight u_t) + min(|A_t| / entropy_bound, entropy H_t), H_t the decision's entropy.
    u_t = (r_t - 1) log r_t / 2, r_t = exp(logprob_view - old_logprob): an unbiased estimate of half the sum of the two
    divergences between the view and what drew, at least 0, and 0 for a row that was drawn as the view has it.

    Units: weight and entropy are advantage per nat; the bounds are dimensionless.
    Raises: ConfigError for bounds that are not above 0, or weights below 0.
    Source: VOGUE, arXiv:2510.01444, whose divergences are of the whole distributions.
    """
    if min(bound, entropy_bound) <= 0 or min(weight, entropy) < 0:
        raise ConfigError("bounded_uncertainty needs bounds above 0 and weights of at least 0")

    def assign(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
        log_ratio_BT = (feedback[of_view(view)] - feedback.old_logprob_BT).where(feedback.seen(view), 0.0)
        apart_BT = (0.5 * (ratio_of(log_ratio_BT) - 1) * log_ratio_BT).to(advantage_BT)
        size_BT, unsure_BT = advantage_BT.abs(), feedback[ENTROPY].to(advantage_BT)
        bonus_BT = torch.minimum(size_BT / bound, weight * apart_BT)
        return advantage_BT + bonus_BT + torch.minimum(size_BT / entropy_bound, entropy * unsure_BT)

    return Estimator(assign=assign, values=(of_view(view), ENTROPY))
