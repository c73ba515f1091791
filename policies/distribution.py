"""Values of the sampling distribution of a token.

Axes: m tokens of a chunk, V vocabulary, N rows, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.values import Value

from .sampling import entropy, mean_logprob


def nucleus_entropy(logits_mV: Tensor, mass: float) -> Tensor:
    """Entropy of each distribution within its nucleus: the likeliest tokens with a total probability of at most
    ``mass``.

    The likeliest token is always included; tokens outside have probability 0 and no gradient.

    Shapes: (m, V) -> (m,).   Units: mass is a probability; nats.
    """
    if mass >= 1:
        return entropy(logits_mV)
    with torch.no_grad():
        probability_mV, order_mV = logits_mV.softmax(-1).sort(descending=True)
        inside_mV = probability_mV.cumsum(-1) <= mass
        inside_mV[:, 0] = True
        keep_mV = torch.zeros_like(inside_mV).scatter(-1, order_mV, inside_mV)
    return entropy(logits_mV.masked_fill(~keep_mV, -torch.inf))


def top_logprob(logits_mV: Tensor, num: float) -> Tensor:
    """Mean log-probability of the ``num`` likeliest possible tokens.

    Shapes: (m, V) -> (m,).   Units: nats.
    """
    top_mK = logits_mV.topk(min(int(num), logits_mV.shape[-1])).values
    is_possible_mK = top_mK > -torch.inf
    return top_mK.where(is_possible_mK, 0.0).sum(-1) / is_possible_mK.sum(-1) - logits_mV.logsumexp(-1)


def token_rank(logits_mV: Tensor, token_m: Tensor) -> Tensor:
    """Number of tokens that are likelier than the sampled one.

    Shapes: (m, V), (m,) -> (m,).
    """
    return (logits_mV > logits_mV.gather(-1, token_m[:, None])).sum(-1).to(logits_mV)


LOGIT_VALUES: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "entropy": lambda logits_mV, token_m: entropy(logits_mV),
        "logprob_mean": lambda logits_mV, token_m: mean_logprob(logits_mV),
        "nucleus_entropy": lambda logits_mV, token_m, mass: nucleus_entropy(logits_mV, mass),
        "rank": token_rank,
        "top_logprob": lambda logits_mV, token_m, num: top_logprob(logits_mV, num),
    }
)
"""Values of the sampling distribution: functions of its logits, the token, and the value's parameters."""


def required_views(
    values: Collection[Value], weight_names: Collection[str], *, current_names: Collection[str]
) -> list[str]:
    """The other views that the values need.

    Args:
        values: the requested values.
        weight_names: names of stored weights.
        current_names: names of the values of the current policy.

    Returns:
        Names of weights.

    Raises:
        ConfigError: tokens do not have a value, or not of that view.
    """
    view_names = ("logprob", *LOGPROB_DIVERGENCES)
    for value in values:
        is_supported = (
            value.name in current_names
            if value.view is None
            else value.view in weight_names and value.name in view_names
        )
        if not is_supported:
            raise ConfigError(
                f"tokens have no value {value}: remove the setting that needs it; supported are "
                f"{', '.join(current_names)}, and {', '.join(view_names)} of {', '.join(sorted(weight_names))}"
            )
    return sorted({value.view for value in values if value.view is not None})


def view_values(values: Collection[Value], logprob_NT: Tensor, other: Mapping[str, Tensor]) -> dict[Value, Tensor]:
    """Values of other views, from their log-probabilities: these themselves, or the divergence.

    Shapes: all (N, T).
    """
    result = {}
    for value in values:
        if value.view is not None:
            other_NT = other[value.view]
            is_logprob = value.name == "logprob"
            result[value] = other_NT if is_logprob else LOGPROB_DIVERGENCES[value.name](logprob_NT, other_NT)
    return result
