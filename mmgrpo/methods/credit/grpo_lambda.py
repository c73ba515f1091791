"""GRPO-lambda (stable reinforcement learning for efficient reasoning), arXiv:2505.18086.

A length penalty on right samples applies only in the groups with the highest success rates.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback, JobFeedback
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_short_where_solved(share: float, strength: float) -> None:
    if not 0 <= share <= 1 or strength < 0:
        raise ConfigError(f"short_where_solved needs 0 <= share <= 1 and strength >= 0, got {share} and {strength}")


@ESTIMATORS.register
@estimator(check=_check_short_where_solved)
def short_where_solved(
    feedback: Feedback, advantage_BT: Tensor, *, share: float, strength: float, right: float = 1.0, eps: float = 1e-4
) -> Tensor:
    """Long right samples earn less in the groups of the job that are right most often; advantages are recomputed.

    In the ceil(``share`` P) groups of the highest share of right members, of equal ones the first, a right sample
    loses ``strength`` / (1 + e^-z), z = (n - mean n) / std n over the group's right members, n a sample's kept
    decisions. Then A = (r - mean r) / (std r + eps) over the group, sample std; other groups keep A.

    Units: share and strength are dimensionless; right and eps in the reward's units.
    Raises: ConfigError unless 0 <= share <= 1 and strength >= 0.
    Source: GRPO-lambda, arXiv:2505.18086, batch-wise top-lambda selection, as a public note has its formulas.
        Deviation: z is 0 where all right members are equally long.
    """
    job = feedback.job
    right_N = job.valid_N & (job.reward_N >= right)
    chosen_N = _most_solved(job, right_N, share)
    length_N = job.length_N.double().where(right_N, torch.nan)
    z_N = standardized_among(length_N, job.group_N, eps=1e-9)
    shaped_N = job.reward_N - (strength * z_N.sigmoid()).where(right_N, 0.0)
    anew_N = standardized_among(shaped_N.where(job.valid_N, torch.nan), job.group_N, eps=eps)
    chosen_B1, anew_B1 = chosen_N[job.local_rows, None], anew_N[job.local_rows, None].to(advantage_BT)
    return anew_B1.where(chosen_B1, advantage_BT)


def _most_solved(job: JobFeedback, right_N: Tensor, share: float) -> Tensor:
    """(N,) bool, the samples of the groups of the highest share of right members."""
    groups, index_N = job.group_N.unique(return_inverse=True)
    num_P, right_P = (
        torch.zeros(len(groups), dtype=torch.float64).scatter_add(0, index_N, flag_N.double())
        for flag_N in (job.valid_N, right_N)
    )
    rate_P = right_P / num_P.clamp(min=1)
    first = rate_P.argsort(descending=True, stable=True)[: math.ceil(share * len(groups))]
    return torch.isin(index_N, first)
