"""Frozen layers that wait in the memory of the host until they run, by accelerate's hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module
from torch import Tensor, nn

from mmgrpo.errors import ConfigError
from mmgrpo.layouts import blocks_of

from .lora import LoraSettings
from .quantization import quantized_layers


def require_offloadable(modules: Mapping[str, nn.Module], lora: LoraSettings | None) -> None:
    """Raises ConfigError for modules whose layers cannot be offloaded.

    Args:
        modules: the modules, by component name, for messages.
        lora: the adapters on them, if they are trained.
    """
    for name, module in modules.items():
        if not layers_of(module):
            raise ConfigError(f"policy.offload: {type(module).__name__} of {name} names no layers; do not offload it")
        if quantized_layers(module):
            raise ConfigError(
                f"policy.offload: weights of {name} are quantized, which accelerate does not offload: remove "
                "policy.offload or policy.quantization_config"
            )
    if lora is not None and lora.dora:
        raise ConfigError("policy.offload: DoRA reads weights outside of their layer's forward: set lora.dora: false")


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The outermost layers of a module: those of its lists whose classes its library names as blocks."""
    listed = {layer for part in module.modules() if isinstance(part, nn.ModuleList) for layer in part}
    layers = [layer for layer in blocks_of(module) if layer in listed]
    inner = {part for layer in layers for part in layer.modules() if part is not layer}
    return [layer for layer in layers if layer not in inner]


def offload_layers(modules: Iterable[nn.Module], device: str | torch.device) -> None:
    """Offloads the frozen weights in the layers of modules, in place; trained weights in them move to the device.

    A frozen weight is on the meta device except while its own module runs. Its backward needs it again: with gradient
    checkpointing the layer runs again first; without it the graph holds the weights of all layers.

    Args:
        modules: modules with their adapters; their layers are on the CPU or on the device.
        device: where they run.
    """
    device = torch.device(device)
    for part in (part for module in modules for layer in layers_of(module) for part in layer.modules()):
        weights = dict(part.named_parameters(recurse=False))
        frozen = {name: weight.detach().cpu() for name, weight in weights.items() if not weight.requires_grad}
        if frozen and len(frozen) == len(weights):
            _offload(part, frozen, device)
        else:
            for weight in weights.values():
                weight.data = weight.data.to(device)
        for name, buffer in part.named_buffers(recurse=False):
            part._buffers[name] = buffer.to(device)


def _offload(part: Any, weights: Mapping[str, Tensor], device: torch.device) -> None:
    hook = AlignDevicesHook(device, offload=True, weights_map=weights, offload_buffers=False)
    add_hook_to_module(part, hook)
    forward = part.forward

    def unloading(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except BaseException:  # checkpointing ends the repeated forward of a layer so, within its last part
            hook.post_forward(part, None)
            raise

    part.forward = unloading


def offloaded_parts(module: nn.Module) -> list[nn.Module]:
    """The parts of a module whose weights are offloaded."""
    return [part for part in module.modules() if isinstance(getattr(part, "_hf_hook", None), AlignDevicesHook)]


def load_offloaded(module: nn.Module) -> None:
    """Loads the offloaded weights of a module into the memory of the host, and removes their hooks."""
    for part in offloaded_parts(module):
        remove_hook_from_module(part)


def require_no_offloading(modules: Iterable[nn.Module], feature: str) -> None:
    """Raises ConfigError if weights are offloaded, for a feature that reads or moves them."""
    if any(offloaded_parts(module) for module in modules):
        raise ConfigError(f"{feature} does not support offloaded layers: remove policy.offload")
