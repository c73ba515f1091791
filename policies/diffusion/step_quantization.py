"""Quantized weights of the denoisers at the steps of a rollout that are not trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

from torch import Tensor, nn

from mmgrpo.errors import ConfigError
from mmgrpo.layouts import layout_of

from ..quantization import is_quantized_layer, quantized_weight, torchao_configuration
from .approximations import Approximation

KEY = "policy.step_quantization"
ADAPTER = "lora_"
"""Start of the names of peft's modules of an adapter."""


@final
class StepQuantization(Approximation):
    """Weights in a format of torchao (float8, int8) for the frozen linear layers at untrained steps.

    They are made of the real ones at the start of each run of the pipeline and dropped at its end, so updates have the
    memory of one copy. Adapters stay as they are.
    """

    key = KEY

    def __init__(self, settings: Mapping[str, Any], denoisers: Mapping[str, nn.Module]) -> None:
        """Checks the settings by quantizing one layer of each shape.

        Args:
            settings: ``name`` of a class of torchao.quantization, and its arguments.
            denoisers: the modules, with their adapters, by component name.

        Raises:
            ConfigError: torchao does not know the settings, this device or a shape does not support them, or a denoiser
                has no frozen linear layer or is quantized.
            MissingPackageError: torchao is not installed.
        """
        self._configuration = torchao_configuration(settings, KEY)
        self._layers = {module: _layers_of(name, module) for name, module in denoisers.items()}
        self._weights: dict[nn.Module, Tensor] = {}
        shapes = {layer.weight.shape: layer for layers in self._layers.values() for layer in layers}
        for layer in shapes.values():
            self._quantized(layer)

    def require_effect(self, is_untrained: Callable[[int], bool], num_steps: int) -> None:
        """Raises ConfigError if all steps of a rollout are trained."""
        if not any(map(is_untrained, range(num_steps))):
            raise ConfigError(f"{KEY}: all {num_steps} steps are trained; set rollout.window, or remove the setting")

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Makes the quantized weights, and drops them at the end."""
        try:
            self._weights = {layer: self._quantized(layer) for layers in self._layers.values() for layer in layers}
            yield
        finally:
            self._weights = {}

    def is_on(self, module: nn.Module) -> bool:
        """Whether the module has quantized weights; other modules than the denoisers have none."""
        return bool(self._weights) and module in self._layers

    @contextmanager
    def at(self, module: nn.Module, iteration: int) -> Iterator[list[float]]:
        """Swaps the quantized weights in; all parameters run."""
        layers = self._layers[module]
        weights = [layer._parameters["weight"] for layer in layers]
        try:
            for layer in layers:
                layer._parameters["weight"] = self._weights[layer]
            yield [1.0]
        finally:
            for layer, weight in zip(layers, weights, strict=True):
                layer._parameters["weight"] = weight

    def off(self) -> AbstractContextManager[None]:
        """The weights are the real ones."""
        return nullcontext()

    def _quantized(self, layer: Any) -> Any:
        if layout_of(layer.weight) is not None:
            raise ConfigError(f"{KEY} does not support sharded weights: remove one of them")
        try:
            return quantized_weight(layer.weight, self._configuration)
        except ConfigError as error:
            raise ConfigError(f"{KEY}: a layer of shape {tuple(layer.weight.shape)}: {error}") from error


def _layers_of(name: str, module: nn.Module) -> list[Any]:
    """The frozen linear layers of a denoiser, without those of adapters."""
    layers = [
        layer
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and not layer.weight.requires_grad and ADAPTER not in path
    ]
    if not layers:
        raise ConfigError(f"{KEY}: {name} has no frozen linear layer: set policy.lora, or remove the setting")
    if any(map(is_quantized_layer, layers)):
        raise ConfigError(f"{KEY}: {name} is quantized by policy.quantization_config: remove one of them")
    return layers
