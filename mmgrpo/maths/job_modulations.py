"""Modulations that look at all decisions of an update, on all processes.

Axes: B samples, T decisions (tokens or denoising steps), N kept decisions of the whole job's update.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulation import ADVANTAGE, LOGPROB, OLD_LOGPROB, JobValues, Modulated, Modulation, detached
from mmgrpo.maths.selections import quantile
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


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


def kl_covariance(*, share: float = 0.002) -> Modulation:
    """A divergence for a few decisions whose advantage and log-probability go together the most, and for no others.

    divergence = 1 for the max(share * N, 1) highest c and those that tie with the last, else 0.
    c = (A - mean A) (logprob - mean logprob), means over the update's N kept decisions. Meant for ``departure``.

    Units: share is dimensionless (0.002).   Raises: ConfigError for a share outside 0 .. 1.
    Source: KL-Cov, arXiv:2505.22617, and its code (PRIME-RL/Entropy-Mechanism-of-RL, ``compute_policy_loss_kl_cov``),
        whose k_percent is 0.2; it takes the highest of a micro-batch.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"a share of the decisions is above 0 and at most 1, got {share}")
    return Modulation(of=partial(_kl_covariance, share=share), job=(LOGPROB, ADVANTAGE))


def _kl_covariance(decisions: Decisions, job_values: JobValues, *, share: float) -> Modulated:
    logprob_N, advantage_N = job_values[LOGPROB].double(), job_values[ADVANTAGE].double()
    if len(logprob_N) == 0:
        return Modulated()
    means = (advantage_N.mean(), logprob_N.mean())
    covariance_N = (advantage_N - means[0]) * (logprob_N - means[1])
    least = covariance_N.topk(max(int(share * len(covariance_N)), 1)).values[-1]
    logprob_BT, advantage_BT = detached(decisions, LOGPROB).double(), detached(decisions, ADVANTAGE).double()
    taken_BT = decisions.mask_BT & ((advantage_BT - means[0]) * (logprob_BT - means[1]) >= least)
    return Modulated(divergence_BT=taken_BT.to(decisions.logprob_BT.detach()))


def top_product(*, share: float) -> Modulation:
    """The decisions where much is at stake and little is sure: of an update's, this share of the highest |A| H.

    loss = 0 unless |A| H >= quantile(|A| H over the update's decisions on all processes, 1 - share).
    The quantile is interpolated linearly.

    Units: share is dimensionless, above 0 and at most 1.   Raises: ConfigError for another share.
    Source: D3S's token level, arXiv:2509.22115, abstract.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"a share of the decisions is above 0 and at most 1, got {share}")
    job = (ADVANTAGE, ENTROPY)
    return Modulation(of=partial(_top_product, share=share), values=(ENTROPY,), job=job)


def _top_product(decisions: Decisions, job_values: JobValues, *, share: float) -> Modulated:
    if not bool(decisions.mask_BT.any()):
        return Modulated()
    product_N = job_values[ADVANTAGE].double().abs() * job_values[ENTROPY].double()
    product_BT = detached(decisions, ADVANTAGE).double().abs() * detached(decisions, ENTROPY).double()
    kept_BT = product_BT >= quantile(product_N, 1 - share)
    return Modulated(loss_BT=kept_BT.to(decisions.logprob_BT.detach()))
