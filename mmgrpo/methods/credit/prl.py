"""PRL (process reward learning), arXiv:2601.10201.

The credit of a decision is reduced by the log-ratio to a view, summed from the end of its step to the end of the
sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch
from mmgrpo.values import REFERENCE, of_view

if TYPE_CHECKING:
    from torch import Tensor


def _check_kl_to_go(every: int) -> None:
    if every < 1:
        raise ConfigError(f"kl_to_go looks from the end of every so many decisions, at least 1, got {every}")


@ESTIMATORS.register
@estimator(values=lambda view: (of_view(view),), check=_check_kl_to_go)
def kl_to_go(
    feedback: Feedback, advantage_BT: Tensor, *, view: str = REFERENCE, weight: float, every: int = 1
) -> Tensor:
    """Less for a decision the further those that follow have gone from a view, counted from the end of its step.

    A_t <- A_t - weight sum_{s >= e(t)} (old_logprob_s - logprob_view_s) over kept decisions that have the view, e(t)
    the last of the ``every`` kept decisions that t is one of, or the sample's last.

    Units: nats times weight; every in decisions.
    Raises: ConfigError for every below 1.
    Source: PRL, arXiv:2601.10201v1, and its code (MaxwellJryao/Process-Reward-Learning, ``ray_trainer.py``), where eta
        is 1 / weight; with every 1 it is eq. 5.1 of its second version, FRPO.
    """
    view_BT, mask_BT = feedback.view_mask(view), feedback.mask_BT
    difference_BT = (feedback.old_logprob_BT - feedback[of_view(view)]).where(view_BT, 0.0)
    to_come_BT = difference_BT.flip(1).cumsum(1).flip(1)
    number_BT, last = mask_BT.cumsum(1), mask_BT.shape[1] - 1
    ends_BT = mask_BT & ((number_BT % every == 0) | (number_BT == feedback.length_B[:, None]))
    position_BT = torch.arange(last + 1, device=mask_BT.device).where(ends_BT, last)
    end_BT = position_BT.flip(1).cummin(1).values.flip(1)
    return advantage_BT - weight * to_come_BT.gather(1, end_BT).where(view_BT, 0.0).to(advantage_BT)
