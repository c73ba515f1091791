"""GTR-Turbo (the merged checkpoint as teacher), arXiv:2512.13043.

Samples that are likelier under the policy than under a view, such as merged weights, earn less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback, row_mean
from mmgrpo.values import of_view

if TYPE_CHECKING:
    from torch import Tensor


def _check_excess_likelihood(weight: float) -> None:
    if weight < 0:
        raise ConfigError(f"excess_likelihood takes away, so that its weight is at least 0, got {weight}")


@ESTIMATORS.register
@estimator(values=lambda view: (of_view(view),), check=_check_excess_likelihood)
def excess_likelihood(feedback: Feedback, advantage_BT: Tensor, *, view: str, weight: float = 1.0) -> Tensor:
    """A penalty for a sample with decisions that are less likely under a view.

    A <- A - weight mean_t max(old_logprob - logprob_view, 0), the mean over its kept decisions that have the view.

    Units: nats per decision times weight.   Raises: ConfigError for a weight below 0.
    Source: GTR-Turbo, arXiv:2512.13043, the reverse divergence from its merged teacher, clamped to 0 or above for each
        token, in the reward.
    """
    excess_BT = (feedback.old_logprob_BT - feedback[of_view(view)]).clamp(min=0)
    mean_B = row_mean(excess_BT, feedback.view_mask(view))
    return advantage_BT - weight * mean_B[:, None].to(advantage_BT)
