"""Values of a token besides its log-probability.

Axes: m tokens of a chunk, V vocabulary, D model width, N rows, T tokens of a row, M tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.divergences import generalized_jsd, sorted_distance
from mmgrpo.maths.internals import (
    effective_rank,
    gradient_curvature,
    gradient_square,
    rank_acceleration,
    rank_velocity,
)
from mmgrpo.types import LogitsPart
from mmgrpo.values import ACROSS_TOKENIZERS, PEERS, Value

from ..distribution import LOGIT_VALUES
from ..sampling import SamplingDistribution
from .attention import ATTENTION_VALUES


def end_logprob(logits_EV: Tensor, token: float) -> Tensor:
    """Log-probability of a token by its id. Raises ConfigError for an id outside the vocabulary.

    Shapes: (E, V) -> (E,).   Units: nats.
    """
    if not 0 <= token < logits_EV.shape[-1]:
        raise ConfigError(f"there is no token {token:g}: the vocabulary has the numbers 0 to {logits_EV.shape[-1] - 1}")
    return logits_EV[:, int(token)] - logits_EV.logsumexp(-1)


LAST_LAYER_VALUES: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {"gradient_square": gradient_square, "gradient_curvature": gradient_curvature}
)
"""Values of the layer that makes the logits: functions of its input states, the logits, and the token."""


END_VALUES: Mapping[str, Callable[..., Tensor]] = MappingProxyType({"end_logprob": end_logprob})
"""Values at the position after the end of a text: functions of its logits and the value's parameters."""

ROW_VALUES: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {"effective_rank": effective_rank, "rank_velocity": rank_velocity, "rank_acceleration": rank_acceleration}
)
"""Values of a row: functions of its hidden states and the value's parameters."""

STATE_VALUES = frozenset((*LAST_LAYER_VALUES, *ROW_VALUES, *ATTENTION_VALUES))
"""Names of values that need hidden states or attention, which the plain model does not return."""


def token_value(value: Value, state_mD: Tensor, logits_mV: Tensor, token_m: Tensor) -> Tensor:
    """A value of the distribution, or of the layer that makes it; without grad with respect to the states.

    Shapes: (m, D), (m, V), (m,) -> (m,).
    """
    if value.name in LOGIT_VALUES:
        return LOGIT_VALUES[value.name](logits_mV, token_m, *value.numbers)
    return LAST_LAYER_VALUES[value.name](state_mD.detach(), logits_mV.detach(), token_m)


def pair_value(
    value: Value, other: LogitsPart, sampling: SamplingDistribution, logits_mV: Tensor, start: int
) -> Tensor:
    """A value of the distribution and of a view's, under the sampling settings of the former.

    A divergence is over the tokens of both; a distance of sorted probabilities knows no tokens.

    Shapes: tempered logits (m, V) -> (m,).
    """
    other_mV = other(start, start + len(logits_mV)).to(logits_mV.device)
    if value.name in ACROSS_TOKENIZERS:
        other_mV = replace(sampling, suppressed=sampling.suppressed[:0]).tempered(other_mV)
        return sorted_distance(logits_mV, other_mV)
    V = min(logits_mV.shape[-1], other_mV.shape[-1])
    suppressed = sampling.suppressed[sampling.suppressed < V]
    other_mV = replace(sampling, suppressed=suppressed).tempered(other_mV[:, :V])
    (beta,) = value.numbers
    return generalized_jsd(logits_mV[:, :V], other_mV, beta)


@torch.no_grad()
def row_value(value: Value, state_NTD: Tensor, keep_NT: Tensor) -> Tensor:
    """A value of each row's hidden states at its unmasked tokens, repeated for each of them.

    Shapes: (N, T, D), bool (N, T) -> (M,).
    """
    rows = (state_TD[keep_T].float() for state_TD, keep_T in zip(state_NTD, keep_NT, strict=True))
    return torch.cat([ROW_VALUES[value.name](row, *value.numbers).expand(len(row)) for row in rows])


TOKEN_VALUES = (PEERS.name, *END_VALUES, *sorted(STATE_VALUES), *LOGIT_VALUES)
"""Names of all values of tokens besides the log-probability."""
