"""ROVER (random policy valuation), arXiv:2509.24981.

The log-ratio is regressed as the value of a token under a uniformly random policy.
"""

from __future__ import annotations

from dataclasses import replace

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import total
from mmgrpo.maths.terms import ROW, TERMS, Loss, log_ratio, term
from mmgrpo.maths.terms.view_terms import mean_of
from mmgrpo.system.lazy import torch
from mmgrpo.values import LOGPROB_MEAN


@TERMS.register
@term(values=lambda before: (LOGPROB_MEAN, replace(LOGPROB_MEAN, view=before)), couples=ROW)
def uniform_policy_value(decisions: Decisions, *, before: str, rho: float = 1.0) -> Loss:
    """The log-ratio as the value of a token under a uniformly random policy, learned by regression.

    L = sum v (Q - sg(A + V'))^2, Q = rho (logprob - old_logprob), v the aggregate's weight.
    V' = rho mean over the vocabulary of log pi - log pi_before in the next state, 0 after a row's last token;
    sg = no gradient.

    Units: rho is advantage per nat; ``before`` names the view of the weights that sampled.
    Source: ROVER, arXiv:2509.24981, and its code (yuxiaooye/ROVER, ``dp_actor.py``, sum_log_softmax). Deviation: the
        mean is over the tokens that can be sampled, there over the full vocabulary.
    """
    at_first = replace(LOGPROB_MEAN, view=before)
    keep_BT = decisions.mask_BT
    value_BT = rho * (decisions[LOGPROB_MEAN] - decisions[at_first]).detach().where(keep_BT, 0.0)
    next_BT = torch.cat([value_BT[:, 1:], torch.zeros_like(value_BT[:, :1])], dim=1)
    error_BT = rho * log_ratio(decisions) - (decisions.advantage_BT + next_BT)
    result = mean_of("uniform_policy_value", decisions, error_BT.square())
    return replace(result, diagnostics=replace(result.diagnostics, num_weighed=total(keep_BT)))
