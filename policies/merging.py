"""Merging of adapters into the weights, so that the model's own library can write and read the model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from .lora import LoraSettings
from .model_source import DTYPES
from .named_weights import ADAPTER
from .quantization import dequantize_layers, dequantized_state, quantized_layers, remove_quantizer
from .weights import Weights, inject


@torch.no_grad()
def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of a module as if its trained adapters were merged, in float32, into its dequantized weights; the
    module does not change.
    """
    state = base_state(module)
    for path, layer in module.named_modules():
        if isinstance(layer, BaseTunerLayer):
            adapted: Any = layer
            weight = state[f"{path}.weight"]
            state[f"{path}.weight"] = (weight.float() + adapted.get_delta_weight(ADAPTER).float()).to(weight.dtype)
    return state


@torch.no_grad()
def base_state(module: nn.Module) -> dict[str, Tensor]:
    """The dequantized state dict of a module as if it had no adapters; the module does not change."""
    return {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in dequantized_state(module).items()
        if ".lora_" not in name
    }


def save_with_state(model: Any, state: Mapping[str, Tensor], folder: Path) -> None:
    """Writes a transformers model as if it had the weights of a state dict; the model does not change."""
    copied = copy.copy(model)
    copied.config = copy.deepcopy(model.config)
    remove_quantizer(copied)
    copied.save_pretrained(folder, state_dict=state)


def checkpoint_tensors(model: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a transformers model's files, by name, if it had the weights of a state dict.

    Shared ones are there once, and merged ones (of experts) are parts.
    """
    return revert_weight_conversion(model, remove_tied_weights_from_state_dict(dict(state), model))


@torch.no_grad()
def merge_adapters(weights: Weights, dtype: str | None) -> Mapping[str, nn.Module]:
    """Merges the trained adapters into the modules' weights, in float32, and removes all adapters; full weights do not
    change. Quantized weights are dequantized first: the sum of weights and adapters has no exact quantized form.

    Args:
        weights: weights of a policy, which cannot be used afterwards.
        dtype: dtype of the merged modules, by name; None: their original dtype.

    Returns:
        The modules by component name.
    """
    for name, module in weights.modules.items():
        if weights.lora is not None and quantized_layers(module):
            _dequantize(name, module, weights.lora)
        for path, layer in list(module.named_modules()):
            if isinstance(layer, BaseTunerLayer):
                base = layer.get_base_layer().float()
                layer.merge(safe_merge=True, adapter_names=[ADAPTER])
                module.set_submodule(path, base)
        _forget_adapters(module)
        module.to(weights.dtype if dtype is None else DTYPES[dtype])
    return weights.modules


def _dequantize(name: str, module: nn.Module, lora: LoraSettings) -> None:
    """Dequantizes the weights of a module, and puts its trained adapters, without others, on the new layers."""
    adapters = get_peft_model_state_dict(module, adapter_name=ADAPTER)
    for path, layer in list(module.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            module.set_submodule(path, layer.get_base_layer())
    _forget_adapters(module)
    dequantize_layers(module)
    inject(name, module, lora)
    set_peft_model_state_dict(module, adapters, adapter_name=ADAPTER)


def _forget_adapters(module: nn.Module) -> None:
    if "peft_config" in vars(module):
        object.__delattr__(module, "peft_config")
