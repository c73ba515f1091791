"""Credit by how other views find what was drawn.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Estimator, Feedback
from mmgrpo.system.lazy import torch
from mmgrpo.values import REFERENCE, of_view

if TYPE_CHECKING:
    from torch import Tensor


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
