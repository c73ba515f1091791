"""Clip-Cov, arXiv:2505.22617.

A few decisions of the highest covariance of advantage and log-probability get no loss, since they reduce the entropy
most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import (
    ADVANTAGE,
    LOGPROB,
    MODULATIONS,
    OLD_LOGPROB,
    JobValues,
    Modulated,
    detached,
    modulation,
)
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@MODULATIONS.register
@modulation(job=(LOGPROB, OLD_LOGPROB, ADVANTAGE))
def clip_covariance(
    decisions: Decisions,
    job_values: JobValues,
    *,
    share: float = 0.0002,
    at_least: float = 1.0,
    at_most: float = 5.0,
    low: float = 0.2,
    high: float = 0.2,
) -> Modulated:
    """No loss for a few decisions with the highest covariance of advantage and log-probability: they cost most entropy.

    loss = 0 of the max(share * N, 1) highest c within at_least < c < at_most that the surrogate's bound leaves alone.
    c = (A - mean A) (logprob - mean logprob), means over the update's N kept decisions.

    Units: share is dimensionless; at_least and at_most are advantage times nats; low and high are the surrogate's.
    Source: Clip-Cov, arXiv:2505.22617, and its code (PRIME-RL/Entropy-Mechanism-of-RL,
        ``compute_policy_loss_clip_cov``). Deviation: the highest of them, where its code samples them at random, so
        that the same decisions are taken for any split of the update; decisions that tie with the last are taken too.
    """
    logprob_N, old_N, advantage_N = (job_values[value].double() for value in (LOGPROB, OLD_LOGPROB, ADVANTAGE))
    advantage_mean, logprob_mean = advantage_N.mean(), logprob_N.mean()

    def eligible(logprob: Tensor, old_logprob: Tensor, advantage: Tensor) -> Tensor:
        """The covariances; minus infinity where the loss stays."""
        covariance = (advantage - advantage_mean) * (logprob - logprob_mean)
        ratio = (logprob - old_logprob).exp()
        clipped = ((ratio < 1 - low) & (advantage < 0)) | ((ratio > 1 + high) & (advantage > 0))
        within = (covariance > at_least) & (covariance < at_most)
        return covariance.where(within & ~clipped, -torch.inf)

    candidate_N = eligible(logprob_N, old_N, advantage_N).sort(descending=True).values
    num = min(max(int(share * len(candidate_N)), 1), int((candidate_N > -torch.inf).sum()))
    if num == 0:
        return Modulated()
    covariance_BT = eligible(*(detached(decisions, value).double() for value in (LOGPROB, OLD_LOGPROB, ADVANTAGE)))
    taken_BT = decisions.mask_BT & (covariance_BT >= candidate_N[num - 1])
    return Modulated(loss_BT=torch.ones_like(decisions.logprob_BT.detach()).masked_fill(taken_BT, 0.0))
