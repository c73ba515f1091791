"""Clip-Cov, arXiv:2505.22617.

A few decisions of the highest covariance of advantage and log-probability get no loss, since they reduce the entropy
most.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import (
    ADVANTAGE,
    LOGPROB,
    MODULATIONS,
    OLD_LOGPROB,
    JobValues,
    Modulated,
    Modulation,
    detached,
)
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@MODULATIONS.register
def clip_covariance(
    *,
    share: float = 0.0002,
    at_least: float = 1.0,
    at_most: float = 5.0,
    low: float = 0.2,
    high: float = 0.2,
) -> Modulation:
    """No loss for a few decisions whose advantage and log-probability go together the most: they cost most entropy.

    loss = 0 of the max(share * N, 1) highest c within at_least < c < at_most that the surrogate's bound leaves alone.
    c = (A - mean A) (logprob - mean logprob), means over the update's N kept decisions.

    Units: share is dimensionless; at_least and at_most are advantage times nats; low and high are the surrogate's.
    Source: Clip-Cov, arXiv:2505.22617, and its code (PRIME-RL/Entropy-Mechanism-of-RL,
        ``compute_policy_loss_clip_cov``). Deviation: the highest of them, where its code draws them at random, so that
        the same decisions are taken however the update is cut; decisions that tie with the last are taken too.
    """
    bounds = partial(_covariance_bounds, at_least=at_least, at_most=at_most, low=low, high=high)
    job = (LOGPROB, OLD_LOGPROB, ADVANTAGE)
    return Modulation(of=partial(_clip_covariance, share=share, bounds=bounds), job=job)


def _clip_covariance(
    decisions: Decisions, job_values: JobValues, *, share: float, bounds: Callable[..., Tensor]
) -> Modulated:
    logprob_N, old_N, advantage_N = (job_values[value].double() for value in (LOGPROB, OLD_LOGPROB, ADVANTAGE))
    means = (advantage_N.mean(), logprob_N.mean())
    candidate_N = bounds(logprob_N, old_N, advantage_N, means).sort(descending=True).values
    num = min(max(int(share * len(candidate_N)), 1), int((candidate_N > -torch.inf).sum()))
    if num == 0:
        return Modulated()
    logprob_BT, old_BT, advantage_BT = (
        detached(decisions, value).double() for value in (LOGPROB, OLD_LOGPROB, ADVANTAGE)
    )
    covariance_BT = bounds(logprob_BT, old_BT, advantage_BT, means)
    taken_BT = decisions.mask_BT & (covariance_BT >= candidate_N[num - 1])
    return Modulated(loss_BT=torch.ones_like(decisions.logprob_BT.detach()).masked_fill(taken_BT, 0.0))


def _covariance_bounds(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    means: tuple[Tensor, Tensor],
    *,
    at_least: float,
    at_most: float,
    low: float,
    high: float,
) -> Tensor:
    """The covariances; minus infinity for what may not be taken."""
    covariance = (advantage - means[0]) * (logprob - means[1])
    ratio = (logprob - old_logprob).exp()
    clipped = ((ratio < 1 - low) & (advantage < 0)) | ((ratio > 1 + high) & (advantage > 0))
    may = (covariance > at_least) & (covariance < at_most) & ~clipped
    return covariance.where(may, -torch.inf)
