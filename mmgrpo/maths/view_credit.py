"""Credit by how other views find what was drawn.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Estimator, Feedback, row_mean
from mmgrpo.values import of_view, seen_in

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
