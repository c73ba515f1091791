"""DPPO-Binary-TV, arXiv:2602.04879.

Decisions whose probability has moved too far from that of the behavior policy have no loss that moves it further.
"""

from __future__ import annotations

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import LOGPROB, MODULATIONS, OLD_LOGPROB, JobValues, Modulated, detached, modulation
from mmgrpo.system.lazy import torch


@MODULATIONS.register
@modulation()
def within_binary_tv(decisions: Decisions, job_values: JobValues, *, low: float, high: float) -> Modulated:
    """No loss for decisions whose probability has moved too far and would move further.

    loss = 0 where A > 0 and p - q > high, or A <= 0 and p - q < -low, p the probability, q that of the behavior policy:
    the total variation of the two outcomes "this decision" and "another".

    Units: low and high are in probability (0.15). For decisions that have a probability.
    Source: DPPO, arXiv:2602.04879, and verl, ``compute_policy_loss_dppo_tv``. Used with a ratio that is no bound.
    """
    del job_values
    keep_BT, advantage_BT = decisions.mask_BT, decisions.advantage_BT
    probability_BT = detached(decisions, LOGPROB).where(keep_BT, 0.0).double().exp()
    change_BT = probability_BT - detached(decisions, OLD_LOGPROB).where(keep_BT, 0.0).double().exp()
    far_BT = torch.where(advantage_BT > 0, change_BT > high, change_BT < -low)
    return Modulated(loss_BT=torch.ones_like(decisions.logprob_BT.detach()).masked_fill(keep_BT & far_BT, 0.0))
