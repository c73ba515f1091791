"""KL-Cov, arXiv:2505.22617.

A KL penalty applies only to a few decisions of the highest covariance of advantage and log-probability.
"""

from __future__ import annotations

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import (
    ADVANTAGE,
    LOGPROB,
    MODULATIONS,
    JobValues,
    Modulated,
    detached,
    modulation,
    require_share,
)
from mmgrpo.maths.terms import TERMS, Loss, log_ratio, scaled, term
from mmgrpo.maths.terms.view_terms import mean_of


@TERMS.register
@term()
def departure(decisions: Decisions) -> Loss:
    """The mean absolute log-ratio to the behavior policy.

    L = sum v f |logprob - old_logprob|, f the decision's factor of divergences, 1 if no modulation sets it.

    The gradient of |x| at 0 is 0, as PyTorch defines it. Decisions that were recorded under the current weights
    (``Decisions.unchanged_BT``) have exactly that: the sign of a rounding error is no gradient.

    Units: nats.
    Source: the penalty of KL-Cov, arXiv:2505.22617, and its code (PRIME-RL/Entropy-Mechanism-of-RL,
        ``compute_policy_loss_kl_cov``: ``(log_prob - old_log_prob).abs()``), at a weight of 1 with ``kl_covariance``.
    """
    each_BT, unchanged_BT = log_ratio(decisions), decisions.unchanged_BT
    size_BT = (each_BT if unchanged_BT is None else each_BT.where(~unchanged_BT, 0.0)).abs()
    return mean_of("departure", decisions, scaled(size_BT, decisions.divergence_factor_BT))


@MODULATIONS.register
@modulation(job=(LOGPROB, ADVANTAGE), check=require_share)
def kl_covariance(decisions: Decisions, job_values: JobValues, *, share: float = 0.002) -> Modulated:
    """A divergence only for a few decisions with the highest covariance of advantage and log-probability.

    divergence = 1 for the max(share * N, 1) highest c and those that tie with the last, else 0.
    c = (A - mean A) (logprob - mean logprob), means over the update's N kept decisions. Meant for ``departure``.

    Units: share is dimensionless (0.002).   Raises: ConfigError for a share outside 0 .. 1.
    Source: KL-Cov, arXiv:2505.22617, and its code (PRIME-RL/Entropy-Mechanism-of-RL, ``compute_policy_loss_kl_cov``),
        with a k_percent of 0.2; it takes the highest of a micro-batch.
    """
    logprob_N, advantage_N = job_values[LOGPROB].double(), job_values[ADVANTAGE].double()
    if len(logprob_N) == 0:
        return Modulated()
    means = (advantage_N.mean(), logprob_N.mean())
    covariance_N = (advantage_N - means[0]) * (logprob_N - means[1])
    least = covariance_N.topk(max(int(share * len(covariance_N)), 1)).values[-1]
    logprob_BT, advantage_BT = detached(decisions, LOGPROB).double(), detached(decisions, ADVANTAGE).double()
    taken_BT = decisions.mask_BT & ((advantage_BT - means[0]) * (logprob_BT - means[1]) >= least)
    return Modulated(divergence_BT=taken_BT.to(decisions.logprob_BT.detach()))
