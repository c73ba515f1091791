"""Where the tokens of a row look, and how they are looked at: numbers of attention weights, of one row at a time.

Axes: H heads, h heads of all layers that are looked at, T tokens of the row, L those and its prompt.
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
"""Numbers of each head's weights; of the first a mean over the heads that look the least far back is taken, of the
second over those that look the furthest."""


@torch.no_grad()
def attention_values(
    transformer: Transformer, prompt: EncodedPrompt, token_T: Tensor, values: Sequence[Value], *, fill: int = 0
) -> list[Tensor]:
    """Numbers of the attention that each token of a row pays or is paid, from a forward with eager attention.

    Heads are those of five layers of the middle third. The three tenths of them whose tokens look the least far back,
    on average, are the local ones, the three tenths that look the furthest the global ones.

    Args:
        transformer: the model.
        prompt: of the row.
        token_T: what the row wrote.
        values: names of ``ATTENTION_VALUES``, with their numbers.
        fill: what the prompt's per-token tensors say of a completion's tokens.

    Returns:
        For each value (T,), float32.

    Raises:
        ConfigError: no layer of the model hands out attention weights.

    Source: arXiv:2510.13554, sec. 4.1 and 5.1.
    """
    layer_values: list[list[Tensor]] = []

    def record_weights(weight_HTL: Tensor) -> None:
        numbers = [ATTENTION_VALUES[value.name](weight_HTL, *value.numbers) for value in values]
        layer_values.append([attention_distance(weight_HTL, inf).mean(1), *numbers])

    with _looking(transformer.model, len(token_T), record_weights):
        transformer.whole([prompt], [token_T], fill=fill)
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
def _looking(model: PreTrainedModel, num_tokens: int, look: Callable[[Tensor], None]) -> Iterator[None]:
    """Within it each layer's weights of a row's last tokens are looked at, first layer first, and none are kept."""
    text: Any = model.config.get_text_config(decoder=True)
    implementation, last_weight = text._attn_implementation, [torch.empty(0)]

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        for weight in output[1:2] if isinstance(output, tuple) else ():
            if isinstance(weight, Tensor) and weight is not last_weight[0] and _is_attention(weight, num_tokens):
                last_weight[0] = weight
                look(weight[0, :, -num_tokens:].float())

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
    """Whether it is (1, H, L, L), of places that hold these tokens and more."""
    return weight.ndim == 4 and weight.shape[-1] == weight.shape[-2] > num_tokens
