"""GVPO, arXiv:2504.19599.

Centered scores are regressed on centered rewards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.terms import TERMS
from mmgrpo.maths.terms.group_losses import Members, group_loss

if TYPE_CHECKING:
    from torch import Tensor


@TERMS.register
@group_loss(score_by="sum_log_ratio", against="old")
def gvpo(members: Members, *, beta: float = 0.1) -> Tensor:
    """Centered scores regressed on centered rewards.

    L = sum_i (beta (s_i - mean s) - (r_i - mean r))^2 / (2 (n - 1)), n members.

    Units: beta is reward per nat (0.1).
    Source: GVPO, arXiv:2504.19599, and its code (jszkc/GVPO, ``compute_policy_loss_gvpo``), with a score relative to
        the behavior policy; the paper's is relative to the reference.
    """
    error_PG = beta * members.centered(members.score_PG) - members.centered(members.reward_PG).to(members.score_PG)
    return error_PG.square().sum(1) / (2 * (members.count_P - 1)).clamp(min=1)
