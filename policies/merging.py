"""Adapters made part of the weights, for good, so that the model's own library writes and reads it as any other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from .model_source import DTYPES
from .named_weights import ADAPTER
from .weights import Weights


@torch.no_grad()
def merge_adapters(weights: Weights, dtype: str | None) -> Mapping[str, nn.Module]:
    """Makes the trained adapters part of the modules' weights, in float32, and leaves no others; full weights stay.

    Args:
        weights: of a policy, which is of no use after that.
        dtype: that the modules have then, by name; None: that in which they were given.

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
