"""DRPO (decoupled reward), arXiv:2510.04474.

The scores of right samples, weighted by shortness, are contrasted with those of wrong ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.terms import TERMS
from mmgrpo.maths.terms.group_losses import Members, disco_P, group_loss

if TYPE_CHECKING:
    from torch import Tensor


@TERMS.register
@group_loss(score_by="mean_logprob")
def drpo(
    members: Members, *, tau: float = 10.0, spread: float = 0.1, longest: int = 8192, right: float = 0.5
) -> Tensor:
    """Right members' scores above the wrong ones', as in ``disco``; of the right ones the short count most.

    L = -(sum_right w s - tau log mean_wrong exp(s' / tau)), w = softmax_right((1 - T / longest) / spread).
    T are the member's kept decisions; it is 0 in groups without both kinds.

    Units: tau in the score's units; spread is a share of the longest answer; longest is decisions; right is in the
        reward's units.
    Source: DRPO, arXiv:2510.04474, and its code (Optimization-AI/DRPO, ``compute_policy_loss_drpo``); its
        log-mean-exp has the same gradient and another value. Its constraint is ``kl_hinge``.
    """
    shortness_PG = (1 - members.length_PG.to(members.score_PG) / longest) / spread
    return disco_P(members, tau=tau, right=right, logit_PG=shortness_PG)
