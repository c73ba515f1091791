"""REAL (rewards as labels), arXiv:2602.05630.

Right samples' scores are trained to be positive, wrong ones' negative, with a gradient that grows with the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.terms import TERMS
from mmgrpo.maths.terms.group_losses import Members, group_loss
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@TERMS.register
@group_loss(score_by="mean_log_ratio", against="old")
def real(members: Members, *, tau: float = 0.5, right: float = 0.5) -> Tensor:
    """Right members' scores above 0, wrong ones' below, each pulled the harder the further it is.

    L = log(1 + sum_right exp(-s / tau)) + log(1 + sum_wrong exp(s / tau)).
    It is 0 in groups without both kinds.

    Units: tau in the score's units (0.5 nats); right is in the reward's units.
    Source: Rewards as Labels (REAL), arXiv:2602.05630, and its code (Red-RL/REAL, ``core_algos.py``).
    """
    right_PG = members.reward_PG > right
    logit_PG = (members.score_PG / tau).where(~right_PG, -members.score_PG / tau)
    zero_P1 = torch.zeros_like(logit_PG[:, :1])

    def pulled(chosen_PG: Tensor) -> Tensor:
        return torch.cat([zero_P1, logit_PG.masked_fill(~chosen_PG, -torch.inf)], dim=1).logsumexp(1)

    right_PG, wrong_PG = right_PG & members.present_PG, ~right_PG & members.present_PG
    return (pulled(right_PG) + pulled(wrong_PG)).where(right_PG.any(1) & wrong_PG.any(1), 0.0)
