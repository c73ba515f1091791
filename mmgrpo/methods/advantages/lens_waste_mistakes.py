"""LENS (likelihood estimation with negative samples), arXiv:2510.08696.

Wrong samples get a penalty that grows with their likelihood, also in groups without a right sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import members
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator()
def confident_mistakes(feedback: Feedback, advantage_BT: Tensor, *, weight: float = 0.25, eps: float = 1e-4) -> Tensor:
    """Wrong samples cost more the likelier they were, also where all of the group is wrong.

    c = r - (1 - r) p / (G (D - p)), p the geometric mean of the sample's probabilities.
    D = max(1 / mean_G(r / p), 2 max_G p), or 2 max_G p in groups that earned nothing.
    A = (c - mean_G c) / (std_G c + eps), or weight (c - mean_G c) in groups that earned nothing; it replaces the
    advantage.

    Units: rewards from 0 to 1; weight is that of groups that earned nothing (0.25).
    Source: LENS, arXiv:2510.08696, sec. 5, of which no code was found. Reading: its eq. 14 takes the likelihoods
        normalized by length too. Deviation: eps in the denominator.
    """
    likely_B = feedback.mean(feedback.old_logprob_BT).double().exp()
    advantage_B = torch.zeros_like(feedback.reward_B)
    for rows in members(feedback):
        reward_G, likely_G = feedback.reward_B[rows], likely_B[rows]
        rate = (reward_G / likely_G).mean()
        ceiling = torch.maximum(1 / rate, 2 * likely_G.max()) if rate > 0 else 2 * likely_G.max()
        penalty_G = likely_G / (ceiling - likely_G) / len(rows)
        gain_G = reward_G - (1 - reward_G) * penalty_G
        centered_G = gain_G - gain_G.mean()
        if bool((gain_G != gain_G[0]).any()):
            advantage_B[rows] = centered_G / (gain_G.std() + eps) if rate > 0 else weight * centered_G
    return advantage_B[:, None].to(advantage_BT).expand_as(advantage_BT)
