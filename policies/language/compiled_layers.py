"""Decoder layers of a language model that torch compiles: one graph for all layers of a model.

Layers of transformers find their cache by their index, so that each would be compiled separately. The compiled function
here takes the stored keys and values of a layer as tensors, and is the same for all layers, in scoring and updates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ..prefix import PrefixLayer

logger = logging.getLogger(__name__)


class _LayerStates:
    """A cache of a single layer, whatever its index: an update returns the stored states and the new ones."""

    def __init__(self, stored: tuple[Tensor, Tensor] | None, index_N: Tensor | None) -> None:
        self.states = stored
        if stored is not None and index_N is not None:
            self.states = (stored[0][index_N], stored[1][index_N])

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        new = (key_states, value_states)
        if self.states is not None:
            new = (torch.cat([self.states[0], key_states], -2), torch.cat([self.states[1], value_states], -2))
        self.states = new
        return new


def _run(
    layer: nn.Module,
    hidden: Tensor,
    stored: tuple[Tensor, Tensor] | None,
    index_N: Tensor | None,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    cache_name: str,
) -> tuple[Any, tuple[Tensor, Tensor] | None]:
    """The output of a layer, and the keys and values of all tokens."""
    cache = _LayerStates(stored, index_N)
    output = type(layer).forward(layer, hidden, *args, **inputs, **{cache_name: cache})
    return output, cache.states


def compile_layers(model: PreTrainedModel, cache_name: str, num_layers: int) -> None:
    """Lets torch compile the layers of a decoder where they read a ``PrefixLayer``: in scoring and in updates.

    Args:
        model: the model, which changes.
        cache_name: name of the cache's argument.
        num_layers: number of layers of its cache.
    """
    layers = [module for module in model.get_decoder().modules() if isinstance(module, GradientCheckpointingLayer)]
    if len(layers) != num_layers:
        logger.warning("policy.compile compiles the sampling of %s and not its updates", type(model).__name__)
        return
    compiled = torch.compile(_run, dynamic=True)
    for number, layer in enumerate(layers):
        layer.forward = MethodType(_forward_of(number, cache_name, compiled), layer)  # copies of the layer run theirs


def _marked(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Lets sharding see that the method runs compiled code."""
    vars(forward)["is_compiled"] = True
    return forward


def _forward_of(number: int, cache_name: str, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A method of layer ``number``."""

    @_marked
    def forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **inputs: Any) -> Any:
        cache = inputs.get(cache_name)
        states = cache.layers[number] if isinstance(cache, Cache) and number < len(cache.layers) else None
        if not isinstance(states, PrefixLayer) or torch.compiler.is_compiling():
            return type(layer).forward(layer, hidden_states, *args, **inputs)
        del inputs[cache_name]
        output, new = compiled(layer, hidden_states, states.stored, states.index_N, args, inputs, cache_name)
        states.grow(*new)
        return output

    return forward
