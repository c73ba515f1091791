"""Merging of adapters into the weights, so that the model's own library can write and read the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from .model_source import DTYPES
from .named_weights import ADAPTER
from .weights import Weights


@torch.no_grad()
def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of a module as if its trained adapters were merged, in float32; the module does not change."""
    layers = {path: layer for path, layer in module.named_modules() if isinstance(layer, BaseTunerLayer)}
    state: dict[str, Tensor] = {}
    for name, tensor in module.state_dict().items():
        path, is_base, parameter = name.partition(".base_layer.")
        if is_base and parameter == "weight":
            delta: Any = layers[path].get_delta_weight  # pyright: ignore[reportAttributeAccessIssue]
            state[f"{path}.weight"] = (tensor.float() + delta(ADAPTER).float()).to(tensor.dtype)
        elif is_base:
            state[f"{path}.{parameter}"] = tensor
        elif ".lora_" not in name:
            state[name] = tensor
    return state


@torch.no_grad()
def merge_adapters(weights: Weights, dtype: str | None) -> Mapping[str, nn.Module]:
    """Merges the trained adapters into the modules' weights, in float32, and removes all adapters; full weights do not
    change.

    Args:
        weights: weights of a policy, which cannot be used afterwards.
        dtype: dtype of the merged modules, by name; None: their original dtype.

    Returns:
        The modules by component name.
    """
    for module in weights.modules.values():
        for path, layer in list(module.named_modules()):
            if isinstance(layer, BaseTunerLayer):
                base = layer.get_base_layer().float()  # pyright: ignore[reportCallIssue] (it is a module)
                layer.merge(safe_merge=True, adapter_names=[ADAPTER])
                module.set_submodule(path, base)
        if "peft_config" in vars(module):
            object.__delattr__(module, "peft_config")
        module.to(weights.dtype if dtype is None else DTYPES[dtype])
    return weights.modules
