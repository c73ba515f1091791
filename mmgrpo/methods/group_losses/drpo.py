"""DRPO (decoupled reward), arXiv:2510.04474.

The scores of right samples, weighted by shortness, are contrasted with those of wrong ones.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.maths.sequence_scores import score
from mmgrpo.maths.terms import TERMS, Term
from mmgrpo.maths.terms.group_losses import Members, disco_P, group_term

if TYPE_CHECKING:
    from torch import Tensor


@TERMS.register
def drpo(
    *, tau: float = 10.0, spread: float = 0.1, longest: int = 8192, right: float = 0.5, score_by: str = "mean_logprob"
) -> Term:
    """Right members' scores above the wrong ones', as in ``disco``; of the right ones the short count most.

    L = -(sum_right w s - tau log mean_wrong exp(s' / tau)), w = softmax_right((1 - T / longest) / spread).
    T are the member's kept decisions; it is 0 in groups without both kinds.

    Units: tau in the score's units; spread is a share of the longest answer; longest is decisions; right is in the
        reward's units.
    Source: DRPO, arXiv:2510.04474, and its code (Optimization-AI/DRPO, ``compute_policy_loss_drpo``), whose
        log-mean-exp has the same gradient and another value. Its constraint is ``kl_hinge``.
    """
    shorter = partial(_shortness, spread=spread, longest=longest)
    return group_term("drpo", partial(disco_P, tau=tau, right=right, preferred=shorter), score(score_by))


def _shortness(members: Members, *, spread: float, longest: int) -> Tensor:
    return (1 - members.length_PG.to(members.score_PG) / longest) / spread
