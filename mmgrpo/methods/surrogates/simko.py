"""SimKO (simple pass@K optimization), arXiv:2510.14807.

Right samples also raise the top candidates at uncertain tokens, and wrong ones are penalized most at their first
choice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import (
    MODULATIONS,
    JobValues,
    Modulated,
    above_row_quantile,
    detached,
    modulation,
    require_quantile,
)
from mmgrpo.maths.surrogates import clipped
from mmgrpo.maths.terms import ROW, TERMS, Loss, SurrogateTerm, term, weighted_decisions
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY, RANK, top_logprob


def _check_clipped_with_candidates(quantile: float, num: int) -> None:
    require_quantile(quantile)
    if num < 1:
        raise ConfigError(f"the likeliest candidates are 1 or more, got {num}")


@TERMS.register
@term(
    values=lambda num: (ENTROPY, top_logprob(num)),
    couples=ROW,
    active=lambda decisions: weighted_decisions(decisions, coupled=True),
    check=_check_clipped_with_candidates,
)
def clipped_with_candidates(
    decisions: Decisions,
    *,
    low: float = 0.2,
    high: float = 0.2,
    num: int = 3,
    share: float = 0.01,
    quantile: float = 0.8,
    right: float = 1.0,
) -> Loss:
    """The clipped surrogate, where uncertain decisions of right samples also train the likeliest candidates.

    L = sum w max(-A r, -A clip(r, 1 - low, 1 + high)).
    grad log r = (1 - share) grad logprob + share grad mean_k logprob_k where the sample is right and H > quantile(H of
    the sample's kept decisions), k the ``num`` likeliest tokens; elsewhere grad logprob. The value of r is the token's.

    Units: low, high and share are dimensionless; right in the reward's units.
    Raises: ConfigError for a quantile outside 0 .. 1, or fewer than one candidate.
    Source: SimKO, arXiv:2510.14807, and its code (CLR-Lab/SimKO, ``core_algos.py``, compute_policy_loss_simko): each
        candidate's ratio counts as the token's, so that its old probability is not needed.
    """
    if decisions.reward_BT is None:
        raise ConfigError("clipped_with_candidates needs reward_BT: the rewards of the samples")
    unsure_BT = above_row_quantile(decisions[ENTROPY].detach(), decisions.mask_BT, quantile)
    shared_BT = unsure_BT & (decisions.reward_BT >= right)
    difference_BT = (decisions[top_logprob(num)] - decisions.logprob_BT).where(shared_BT, 0.0)
    surrogate = SurrogateTerm(
        surrogate=partial(clipped, low=low, high=high),
        ratio_level="token",
        bound=None,
        normalized=False,
        name="clipped_with_candidates",
    )
    zero_BT = difference_BT - difference_BT.detach()
    return surrogate(replace(decisions, logprob_BT=decisions.logprob_BT + share * zero_BT))


@MODULATIONS.register
@modulation(values=(ENTROPY, RANK), check=require_quantile)
def likeliest_of_wrong(
    decisions: Decisions, job_values: JobValues, *, loss: float = 1.1, quantile: float = 0.8
) -> Modulated:
    """Tokens of wrong samples count more where the policy was unsure and they are its first choice.

    loss = the argument where A < 0, no token is likelier, and H > quantile(H of the sample's kept decisions); else 1.

    Units: loss is a factor.   Raises: ConfigError for a quantile outside 0 .. 1.
    Source: SimKO, arXiv:2510.14807, and its code (CLR-Lab/SimKO, ``core_algos.py``, compute_policy_loss_simko): 1.1.
    """
    del job_values
    unsure_BT = above_row_quantile(detached(decisions, ENTROPY), decisions.mask_BT, quantile)
    first_BT = unsure_BT & (detached(decisions, RANK) == 0) & (decisions.advantage_BT < 0)
    return Modulated(loss_BT=torch.ones_like(decisions.logprob_BT.detach()).masked_fill(first_BT, loss))
