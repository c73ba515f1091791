"""DPPO-Binary-KL, arXiv:2602.04879.

Decisions too far from the behavior policy by the divergence of two outcomes have no loss that moves them further.
"""

from __future__ import annotations

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import LOGPROB, MODULATIONS, OLD_LOGPROB, JobValues, Modulated, detached, modulation
from mmgrpo.system.lazy import torch


@MODULATIONS.register
@modulation()
def within_binary_kl(decisions: Decisions, job_values: JobValues, *, low: float, high: float) -> Modulated:
    """No loss for decisions whose divergence is too large and would grow.

    loss = 0 where A > 0, p > q and D > high, or A <= 0, p < q and D > low, p the probability, q that of the behavior
    policy, D = q log(q / p) + (1 - q) log((1 - q + 1e-8) / (1 - p + 1e-8)).

    Units: low and high in nats (0.05). For decisions that have a probability.
    Source: DPPO, arXiv:2602.04879, and verl, ``compute_policy_loss_dppo_kl``. Used with a ratio that is no bound.
    """
    del job_values
    keep_BT, advantage_BT = decisions.mask_BT, decisions.advantage_BT
    logprob_BT = detached(decisions, LOGPROB).where(keep_BT, 0.0).double()
    old_BT = detached(decisions, OLD_LOGPROB).where(keep_BT, 0.0).double()
    p_BT, q_BT = logprob_BT.exp(), old_BT.exp()
    others_BT = (1 - q_BT) * ((1 - q_BT + 1e-8) / (1 - p_BT + 1e-8)).log()
    divergence_BT = q_BT * (old_BT - logprob_BT) + others_BT
    gains_BT, falls_BT = (divergence_BT > high) & (p_BT > q_BT), (divergence_BT > low) & (p_BT < q_BT)
    far_BT = torch.where(advantage_BT > 0, gains_BT, falls_BT)
    return Modulated(loss_BT=torch.ones_like(decisions.logprob_BT.detach()).masked_fill(keep_BT & far_BT, 0.0))
