"""Delta, and clip, of process rewards, arXiv:2410.15115.

The credit of a step is its process reward, optionally clipped, minus that of the next step, so that repeated good steps
earn nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.scoped_credit import with_parts
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(parts=lambda reward: (reward,))
def clipped_differences(
    feedback: Feedback, advantage_BT: Tensor, *, reward: str, weight: float = 1.0, limit: float | None = None
) -> Tensor:
    """The difference of a step's reward from that of the next step: repeating a good step earns nothing.

    A_t <- A_t + weight (v_k - v_{k+1}), k the step of t; of the last step v_k alone.
    Where there is a limit, v_k <- min(v_k - limit, 0) comes before. Summed from a step to the end it is v of that step.

    Units: weight is advantage per reward; limit in the reward's units.
    Source: clip and delta of Gao et al., arXiv:2410.15115, as the catalog of ``research/`` has them.
    """
    scores = feedback.scopes(reward)
    value_BS = scores.value_BS.double().where(scores.valid_BS, 0.0)
    if limit is not None:
        value_BS = (value_BS - limit).clamp(max=0).where(scores.valid_BS, 0.0)
    change_BS = value_BS - torch.nn.functional.pad(value_BS[:, 1:], (0, 1))
    return with_parts(advantage_BT, scores, change_BS, weight)
