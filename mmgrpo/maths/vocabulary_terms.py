"""Terms of the whole distribution that a token is drawn from, beyond the token's own log-probability.

Axes: B samples, T decisions (tokens), P groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, ValueSum, total
from mmgrpo.maths.groups import grouped
from mmgrpo.maths.modulations import above_row_quantile, require_quantile
from mmgrpo.maths.surrogates import clipped
from mmgrpo.maths.terms import GROUP, ROW, Loss, SurrogateTerm, Term, log_ratio
from mmgrpo.maths.view_terms import mean_of
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY, LOGPROB_MEAN, nucleus_entropy, top_logprob

if TYPE_CHECKING:
    from torch import Tensor


def clipped_with_candidates(
    *,
    low: float = 0.2,
    high: float = 0.2,
    num: int = 3,
    share: float = 0.01,
    quantile: float = 0.8,
    right: float = 1.0,
) -> Term:
    """The clipped surrogate, whose unsure decisions of right samples teach the likeliest candidates too.

    L = sum w max(-A r, -A clip(r, 1 - low, 1 + high)).
    grad log r = (1 - share) grad logprob + share grad mean_k logprob_k where the sample is right and H > quantile(H of
    the sample's kept decisions), k the ``num`` likeliest tokens; elsewhere grad logprob. The value of r is the token's.

    Units: low, high and share are dimensionless; right in the reward's units.
    Raises: ConfigError for a quantile outside 0 .. 1, or fewer than one candidate.
    Source: SimKO, arXiv:2510.14807, and its code (CLR-Lab/SimKO, ``core_algos.py``, compute_policy_loss_simko): each
        candidate's ratio counts as the token's, so that what it was before is not needed.
    """
    require_quantile(quantile)
    if num < 1:
        raise ConfigError(f"the likeliest candidates are 1 or more, got {num}")
    candidates = top_logprob(num)
    own = SurrogateTerm(
        surrogate=partial(clipped, low=low, high=high),
        ratio_level="decision",
        bound=None,
        normalised=False,
        name="clipped_with_candidates",
    ).as_term()

    def loss(decisions: Decisions) -> Loss:
        if decisions.reward_BT is None:
            raise ConfigError("clipped_with_candidates needs reward_BT: the rewards of the samples")
        unsure_BT = above_row_quantile(decisions[ENTROPY].detach(), decisions.mask_BT, quantile)
        shared_BT = unsure_BT & (decisions.reward_BT >= right)
        apart_BT = (decisions[candidates] - decisions.logprob_BT).where(shared_BT, 0.0)
        return own.loss(replace(decisions, logprob_BT=decisions.logprob_BT + share * (apart_BT - apart_BT.detach())))

    def active(decisions: Decisions) -> Tensor:
        return decisions.mask_BT & own.active(decisions).any(1, keepdim=True)

    return replace(own, loss=loss, values=(ENTROPY, candidates), couples=ROW, active=active)


def anchored_entropy(*, mass: float = 0.8, quantile: float = 0.8, anchor: float = 0.0) -> Term:
    """The entropy of the nucleus, where it peaks, drawn to an anchor.

    L = mean_P (H - anchor)^2, H = mean over the group's rows of the mean nucleus entropy of those kept decisions where
    it is above its row's quantile. H alone is measured, and L is 0, while the anchor is 0.

    Units: mass is a probability, anchor nats.   Raises: ConfigError for a mass or a quantile outside 0 .. 1.
    Source: SIREN, arXiv:2509.25133, and its code (Linn3a/siren, ``dp_actor.py``): top-p mask, peak-entropy mask and
        anchor. Deviation: H of a group, there of a micro-batch, so that no batch size matters.
    """
    require_quantile(quantile)
    if not 0 < mass <= 1:
        raise ConfigError(f"the nucleus holds a probability above 0 and at most 1, got {mass}")
    value = nucleus_entropy(mass)

    def loss(decisions: Decisions) -> Loss:
        if decisions.group_BT is None:
            raise ConfigError("anchored_entropy needs group_BT: the groups of the samples")
        keep_BT, entropy_BT = decisions.mask_BT, decisions[value]
        peak_BT = above_row_quantile(entropy_BT.detach(), keep_BT, quantile)
        row_B = entropy_BT.where(peak_BT, 0.0).sum(1) / peak_BT.sum(1).clamp(min=1)
        groups = grouped(decisions.group_BT[:, 0])
        there_PG = groups.valid(keep_BT.any(1))
        group_P = groups.matrix(row_B).where(there_PG, 0.0).sum(1) / there_PG.sum(1).clamp(min=1)
        apart_P = (group_P - anchor).where(there_PG.any(1), 0.0)
        loss = apart_P.square().sum() / decisions.num_groups * float(anchor > 0)
        found = ValueSum(total(there_PG), total(row_B.where(keep_BT.any(1), 0.0)))
        name = "anchored_entropy"
        return Loss(loss, Diagnostics(loss_sums={name: total(loss)}, value_sums={name: found}))

    return Term(name="anchored_entropy", loss=loss, values=(value,), couples=GROUP)


def uniform_policy_value(*, before: str, rho: float = 1.0) -> Term:
    """The log-ratio as the value of a token under a policy that writes uniformly at random, learnt by regression.

    L = sum v (Q - sg(A + V'))^2, Q = rho (logprob - old_logprob), v the aggregate's weight.
    V' = rho mean over the vocabulary of log pi - log pi_before in the next state, 0 behind a row's last token;
    sg = no gradient.

    Units: rho is advantage per nat; ``before`` names the view of the weights that sampled.
    Source: ROVER, arXiv:2509.24981, and its code (yuxiaooye/ROVER, ``dp_actor.py``, sum_log_softmax). Deviation: the
        mean is over the tokens that can be drawn, there over the whole vocabulary.
    """
    at_first = replace(LOGPROB_MEAN, view=before)

    def loss(decisions: Decisions) -> Loss:
        keep_BT = decisions.mask_BT
        value_BT = rho * (decisions[LOGPROB_MEAN] - decisions[at_first]).detach().where(keep_BT, 0.0)
        next_BT = torch.cat([value_BT[:, 1:], torch.zeros_like(value_BT[:, :1])], dim=1)
        error_BT = rho * log_ratio(decisions) - (decisions.advantage_BT + next_BT)
        found = mean_of("uniform_policy_value", decisions, error_BT.square())
        return replace(found, diagnostics=replace(found.diagnostics, num_weighed=total(keep_BT)))

    return Term(name="uniform_policy_value", loss=loss, values=(LOGPROB_MEAN, at_first), couples=ROW)


VOCABULARY_TERMS: Mapping[str, Callable[..., Term]] = MappingProxyType(
    {
        "clipped_with_candidates": clipped_with_candidates,
        "anchored_entropy": anchored_entropy,
        "uniform_policy_value": uniform_policy_value,
    }
)
"""Terms of distributions by the name that a method's configuration uses; called with their numbers."""
