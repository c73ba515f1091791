"""DAPO (direct advantage policy optimization), arXiv:2412.18279.

The log-ratio of each segment is regressed on its advantage.
"""

from __future__ import annotations

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, total
from mmgrpo.maths.ratios import segment_sum_BT
from mmgrpo.maths.terms import ROW, TERMS, Loss, log_ratio, term
from mmgrpo.system.lazy import torch


def _check_advantage_regression(beta: float) -> None:
    if not beta > 0:
        raise ConfigError(f"beta, by which advantages are divided, must be above 0, got {beta}")


@TERMS.register
@term(couples=ROW, check=_check_advantage_regression)
def advantage_regression(decisions: Decisions, *, beta: float) -> Loss:
    """The log-ratio of each segment, fitted to its advantage.

    L = sum over segments of v (sum_t log r_t - sum_t A_t / beta)^2 / 2, t over the segment's kept decisions, v the
    aggregate's weight of a decision; log r is the ratio to the policy that sampled.

    Units: beta is advantage per nat; nats squared.   Raises: ConfigError for a beta of 0 or less.
    Source: DAPO, arXiv:2412.18279: a quadratic loss of log-ratios and scaled advantages, a segment a step of reasoning.
    """
    keep_BT, segment_BT = decisions.mask_BT, decisions.segment_BT
    difference_BT = log_ratio(decisions) - decisions.advantage_BT / beta
    count_BT = segment_sum_BT(torch.ones_like(difference_BT), keep_BT, segment_BT).clamp(min=1)
    square_BT = segment_sum_BT(difference_BT, keep_BT, segment_BT).square() / (2 * count_BT)
    value = (decisions.plain_weight_BT.where(keep_BT, 0.0) * square_BT.where(keep_BT, 0.0)).sum()
    sums = {"advantage_regression": value.detach().double()}
    return Loss(value, Diagnostics(loss_sums=sums, num_weighed=total(keep_BT)))
