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
from mmgrpo.values import ENTROPY, of_view, seen_in

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


def outside_view(*, view: str) -> Estimator:
    """No advantage for the samples that have a view: what the view says teaches them, beside the surrogate.

    A <- 0 where the row has the view.

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
