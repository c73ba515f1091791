"""What a token can be asked beside its log-probability.

Axes: m tokens of a chunk, V vocabulary, D model width, N rows, T tokens of a row, M tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.maths.internals import (
    effective_rank,
    gradient_curvature,
    gradient_square,
    rank_acceleration,
    rank_velocity,
)
from mmgrpo.policies.language.attention import OF_ATTENTION
from mmgrpo.policies.language.sampling import entropies, logprob_means
from mmgrpo.values import PEERS, Value


def nucleus_entropies(logits_mV: Tensor, mass: float) -> Tensor:
    """Entropy of each distribution within its nucleus: the likeliest tokens that hold at most ``mass`` together.

    The likeliest token is always in it; what is outside has no probability, and none of the gradient.

    Shapes: (m, V) -> (m,).   Units: mass is a probability; nats.
    """
    if mass >= 1:
        return entropies(logits_mV)
    with torch.no_grad():
        probability_mV, order_mV = logits_mV.softmax(-1).sort(descending=True)
        inside_mV = probability_mV.cumsum(-1) <= mass
        inside_mV[:, 0] = True
        keep_mV = torch.zeros_like(inside_mV).scatter(-1, order_mV, inside_mV)
    return entropies(logits_mV.masked_fill(~keep_mV, -torch.inf))


def top_logprobs(logits_mV: Tensor, num: float) -> Tensor:
    """Mean log-probability of the ``num`` likeliest tokens, of as many as there are.

    Shapes: (m, V) -> (m,).   Units: nats.
    """
    top_mK = logits_mV.topk(min(int(num), logits_mV.shape[-1])).values
    there_mK = top_mK > -torch.inf
    return top_mK.where(there_mK, 0.0).sum(-1) / there_mK.sum(-1) - logits_mV.logsumexp(-1)


def ranks(logits_mV: Tensor, token_m: Tensor) -> Tensor:
    """How many tokens are likelier than the one that was taken.

    Shapes: (m, V), (m,) -> (m,).
    """
    return (logits_mV > logits_mV.gather(-1, token_m[:, None])).sum(-1).to(logits_mV)


def end_logprobs(logits_EV: Tensor, token: float) -> Tensor:
    """Log-probability of a token by its number. Raises ConfigError for one that the vocabulary does not have.

    Shapes: (E, V) -> (E,).   Units: nats.
    """
    if not 0 <= token < logits_EV.shape[-1]:
        raise ConfigError(f"there is no token {token:g}: the vocabulary has the numbers 0 to {logits_EV.shape[-1] - 1}")
    return logits_EV[:, int(token)] - logits_EV.logsumexp(-1)


OF_LOGITS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "entropy": lambda logits_mV, token_m: entropies(logits_mV),
        "logprob_mean": lambda logits_mV, token_m: logprob_means(logits_mV),
        "nucleus_entropy": lambda logits_mV, token_m, mass: nucleus_entropies(logits_mV, mass),
        "rank": ranks,
        "top_logprob": lambda logits_mV, token_m, num: top_logprobs(logits_mV, num),
    }
)
"""Values of the distribution that a token is drawn from: of its logits, the token, and the value's own numbers."""


OF_LAST_LAYER: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {"gradient_square": gradient_square, "gradient_curvature": gradient_curvature}
)
"""Values of the layer that makes the logits: of the states that it makes them of, those, and the token."""


OF_ENDS: Mapping[str, Callable[..., Tensor]] = MappingProxyType({"end_logprob": end_logprobs})
"""Values of what would follow the end of a text: of its logits and the value's own numbers."""

OF_ROWS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {"effective_rank": effective_rank, "rank_velocity": rank_velocity, "rank_acceleration": rank_acceleration}
)
"""Numbers of a row's hidden states, and of the value's own."""

OF_STATES = frozenset((*OF_LAST_LAYER, *OF_ROWS, *OF_ATTENTION))
"""Names of what the plain model does not say: of hidden states or attention."""


def of_token(value: Value, state_mD: Tensor, logits_mV: Tensor, token_m: Tensor) -> Tensor:
    """A value of the distribution, or of the layer that makes it; without grad by the states.

    Shapes: (m, D), (m, V), (m,) -> (m,).
    """
    if value.name in OF_LOGITS:
        return OF_LOGITS[value.name](logits_mV, token_m, *value.numbers)
    return OF_LAST_LAYER[value.name](state_mD.detach(), logits_mV.detach(), token_m)


@torch.no_grad()
def of_rows(value: Value, state_NTD: Tensor, kept_NT: Tensor) -> Tensor:
    """A number of each row's hidden states at its kept tokens, on each of these.

    Shapes: (N, T, D), bool (N, T) -> (M,).
    """
    rows = (state_TD[kept_T].float() for state_TD, kept_T in zip(state_NTD, kept_NT, strict=True))
    return torch.cat([OF_ROWS[value.name](row, *value.numbers).expand(len(row)) for row in rows])


def views_of(values: Collection[Value], kept: Collection[str]) -> list[str]:
    """The other views that are asked. Raises ConfigError for a value that tokens do not have, or not of that view."""
    named, own = ("logprob", *LOGPROB_DIVERGENCES), (PEERS.name, *OF_ENDS, *sorted(OF_STATES), *OF_LOGITS)
    for value in values:
        known = value.name in own if value.view is None else value.view in kept and value.name in named
        if not known:
            raise ConfigError(
                f"tokens have no value {value}: leave out what asks for it; known are {', '.join(own)}, and "
                f"{', '.join(named)} of {', '.join(sorted(kept))}"
            )
    return sorted({value.view for value in values if value.view is not None})
