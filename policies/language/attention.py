"""Attention values of the tokens of a row: statistics of attention weights, for one row at a time.

Axes: H heads, h heads of all inspected layers, T tokens of the row, L tokens of the row and its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError
from mmgrpo.maths.internals import attention_distance, attention_influence
from mmgrpo.values import Value

from .encoding import EncodedPrompt
from .transformer import Transformer

NUM_LAYERS = 5
SHARE = 0.3

ATTENTION_VALUES: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {"attention_distance": attention_distance, "attention_influence": attention_influence}
)
"""Functions of each head's weights. The first is averaged over the heads with the shortest mean distance, the second
over those with the longest.
"""


@torch.no_grad()
def attention_values(
    transformer: Transformer, prompt: EncodedPrompt, token_T: Tensor, values: Sequence[Value], *, fill: int = 0
) -> list[Tensor]:
    """Attention values of each token of a row, from a forward with eager attention.

    The heads are those of five layers of the middle third. The 30 % with the shortest mean attention distance are
    the local heads, the 30 % with the longest the global ones.

    Args:
        transformer: the model.
        prompt: prompt of the row.
        token_T: tokens of the row.
        values: values of ``ATTENTION_VALUES``, with their parameters.
        fill: value of the prompt's per-token tensors at tokens of a completion.

    Returns:
        For each value (T,), float32.

    Raises:
        ConfigError: no layer of the model returns attention weights.

    Source: arXiv:2510.13554, sec. 4.1 and 5.1.
    """
    layer_values: list[list[Tensor]] = []

    def record_weights(weight_HTL: Tensor) -> None:
        numbers = [ATTENTION_VALUES[value.name](weight_HTL, *value.numbers) for value in values]
        layer_values.append([attention_distance(weight_HTL, inf).mean(1), *numbers])

    with _observed_attention(transformer.model, len(token_T), record_weights):
        transformer.full_states([prompt], [token_T], fill=fill)
    if not layer_values:
        name = type(transformer.model).__name__
        raise ConfigError(f"{values[0]}: the layers of {name} hand out no attention weights: use another model")
    layers = torch.linspace(len(layer_values) // 3, 2 * len(layer_values) // 3, NUM_LAYERS).long().unique().tolist()
    span_h, *layer_outputs = (
        torch.cat(parts) for parts in zip(*(layer_values[min(n, len(layer_values) - 1)] for n in layers), strict=True)
    )
    num, order_h = max(round(SHARE * len(span_h)), 1), span_h.argsort()
    heads = {"attention_distance": order_h[:num], "attention_influence": order_h[-num:]}
    return [value_hT[heads[value.name]].mean(0) for value, value_hT in zip(values, layer_outputs, strict=True)]


@contextmanager
def _observed_attention(model: PreTrainedModel, num_tokens: int, observe: Callable[[Tensor], None]) -> Iterator[None]:
    """A context that passes each layer's weights at a row's last tokens to ``observe``, first layer first, and stores
    none.
    """
    text: Any = model.config.get_text_config(decoder=True)
    implementation, last_weight = text._attn_implementation, [torch.empty(0)]

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        for weight in output[1:2] if isinstance(output, tuple) else ():
            if isinstance(weight, Tensor) and weight is not last_weight[0] and _is_attention(weight, num_tokens):
                last_weight[0] = weight
                observe(weight[0, :, -num_tokens:].float())

    text_modules = [
        module for module in model.modules() if getattr(module, "config", None) is text
    ]  # not a vision tower's
    hooks = [module.register_forward_hook(hook) for module in text_modules]
    text._attn_implementation = "eager"
    try:
        yield
    finally:
        text._attn_implementation = implementation
        for handle in hooks:
            handle.remove()


def _is_attention(weight: Tensor, num_tokens: int) -> bool:
    """Whether the tensor is (1, H, L, L) with more positions than these tokens."""
    return weight.ndim == 4 and weight.shape[-1] == weight.shape[-2] > num_tokens
