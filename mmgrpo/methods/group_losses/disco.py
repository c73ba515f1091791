"""DisCO, arXiv:2505.12366.

The scores of right samples are contrasted with those of wrong ones, the highest of which get the largest weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.terms import TERMS
from mmgrpo.maths.terms.group_losses import Members, disco_P, group_loss

if TYPE_CHECKING:
    from torch import Tensor


@TERMS.register
@group_loss(score_by="mean_ratio", against="old")
def disco(members: Members, *, tau: float | None = 1.0, right: float = 0.5) -> Tensor:
    """Right members' scores above the wrong ones', the highest of which count most.

    L = -mean_right (s - tau log mean_wrong exp(s' / tau)), or with tau null -(mean_right s - mean_wrong s').
    It is 0 in groups without both kinds.

    Units: tau in the score's units (1); right is in the reward's units.
    Source: DisCO, arXiv:2505.12366, and its code (Optimization-AI/DisCO, ``core_algos.py``); its log-mean-exp has the
        same gradient and another value. Its constraint is ``kl_hinge``.
    """
    return disco_P(members, tau=tau, right=right)
