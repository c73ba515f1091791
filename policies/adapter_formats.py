"""Adapter files of diffusers and peft, and the calls by which a stock pipeline loads them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import save_file
from torch import Tensor, nn

from mmgrpo.errors import CheckpointError

from .adapters import (
    DIFFUSERS_FILE,
    METADATA,
    PEFT_FILE,
    PEFT_PREFIX,
    Converted,
    is_second,
    read_tensors,
)
from .lora import LoraSettings

LOADERS, PIPELINE_CLASS = "mmgrpo_loaders", "mmgrpo_pipeline"
"""Keys of a diffusers file's header: the call by which each component loads its adapters; the pipeline class."""

PIPELINE, COMPONENT, PEFT = "pipeline", "component", "peft"
POWER_OF_TWO = 0.5
"""The mantissa of a power of two from ``math.frexp``."""


class AdapterFiles(Protocol):
    """The adapter file format of a library.

    Attributes:
        merge: the library's code that merges adapters into the weights.
    """

    merge: str

    def save(self, modules: Mapping[str, nn.Module], lora: LoraSettings, directory: Path, adapter: str) -> None:
        """Writes a set of adapters of the modules into an existing directory."""
        ...

    def load(self, modules: Mapping[str, nn.Module], lora: LoraSettings, directory: Path, adapter: str) -> None:
        """Restores it. Raises CheckpointError for files that are missing, truncated or of other adapters."""
        ...

    def convert(self, tensors: dict[str, Tensor]) -> Converted:
        """Adapters in another format that the library reads, under diffusers' keys."""
        ...


def lora_loaders(pipeline: Any, modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """The call by which a stock pipeline loads each component's adapters from the saved file.

    ``pipeline``: ``load_lora_weights`` of the pipeline, which loads the one component that its mixin names and drops
    the keys of others; ``component``: ``load_lora_adapter`` of the component; ``peft``: ``PeftModel.from_pretrained``,
    for components without a loader in diffusers.
    """
    kind = pipeline if isinstance(pipeline, type) else type(pipeline)
    by_pipeline = ()
    if callable(getattr(kind, "load_lora_weights", None)):
        by_pipeline = tuple(getattr(kind, name, None) for name in ("transformer_name", "unet_name"))
    loaders = {}
    for name, module in modules.items():
        has_loader = callable(getattr(module, "load_lora_adapter", None))
        loaders[name] = PEFT if not has_loader else PIPELINE if name in by_pipeline else COMPONENT
    return loaders


class DiffusersFiles:
    """One LoRA file for all components, under the keys of ``load_lora_weights`` and ``load_lora_adapter``.

    A component whose adapters diffusers cannot load also has a folder in peft's format, named as the component.
    """

    merge = "pipe.fuse_lora(); pipe.unload_lora_weights()"

    def __init__(self, pipeline: Any = None) -> None:
        """Records how stock pipelines of the class load adapters.

        Args:
            pipeline: the loaded pipeline of the modules; None: unknown, and nothing is converted.
        """
        self._kind: Any = type(pipeline)
        self._call = {"unet_config": pipeline.unet.config} if hasattr(pipeline, "unet") else {}

    def save(self, modules: Mapping[str, nn.Module], lora: LoraSettings, directory: Path, adapter: str) -> None:
        """Writes the file, with the adapters' settings in its header.

        A scale alpha / rank that is a power of two is multiplied into the second factors, without rounding, and the
        header has alpha = rank, the default of readers that ignore the header. Any other scale is only in the
        header, so that restored tensors are bitwise the saved ones; ``mmgrpo export`` multiplies it into the
        factors as well.
        """
        tensors: dict[str, Tensor] = {}
        metadata: dict[str, Any] = {}
        loaders = lora_loaders(self._kind, modules)
        for name, module in modules.items():
            state = _adapter_state(module, adapter)
            scaled = _scaled_exactly(state, lora.alpha / lora.rank)
            alpha = lora.alpha if scaled is None else lora.rank
            tensors |= {f"{name}.{key}": value for key, value in (scaled or state).items()}
            metadata |= {
                f"{name}.r": lora.rank,
                f"{name}.lora_alpha": alpha,
                f"{name}.target_modules": targets_of(lora),
                f"{name}.use_dora": lora.dora,
            }
            if loaders[name] == PEFT:
                _save_peft(module, state, lora, directory / name)
        header = {"format": "pt", METADATA: json.dumps(metadata), LOADERS: json.dumps(loaders)}
        header[PIPELINE_CLASS] = self._kind.__name__
        save_file(tensors, directory / DIFFUSERS_FILE, header)

    def load(self, modules: Mapping[str, nn.Module], lora: LoraSettings, directory: Path, adapter: str) -> None:
        """Restores the adapters of every component."""
        path = _existing(directory / DIFFUSERS_FILE)
        tensors, header = read_tensors(path)
        metadata = json.loads(header.get(METADATA) or "{}")
        for name, module in modules.items():
            tensors_of_module = {
                key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}.")
            }
            alpha = float(metadata.get(f"{name}.lora_alpha", lora.alpha))
            if alpha != lora.alpha:
                tensors_of_module = {
                    key: value * (alpha / lora.alpha) if is_second(key) else value
                    for key, value in tensors_of_module.items()
                }
            _set_adapter_state(module, tensors_of_module, path, adapter)

    def convert(self, tensors: dict[str, Tensor]) -> Converted:
        """Adapters of ``load_lora_weights`` and ``load_lora_adapter``, by their conversions: kohya, SD scripts,
        original keys.
        """
        from diffusers.utils import convert_unet_state_dict_to_peft

        alphas: Mapping[str, Any] = {}
        if callable(getattr(self._kind, "lora_state_dict", None)):
            options = {"return_alphas": True, "return_lora_metadata": True, **self._call}
            try:
                tensors, *rest = self._kind.lora_state_dict(dict(tensors), **options)
            except (ValueError, KeyError) as error:
                raise CheckpointError(
                    f"policy.adapter: {self._kind.__name__} does not read such a file: {error}"
                ) from error
            alphas = rest[0] or {} if len(rest) > 1 else {}
        if any("lora_A" not in key for key in tensors):
            tensors = convert_unet_state_dict_to_peft(tensors)
        return Converted(tensors=tensors, alphas={key: float(value) for key, value in alphas.items()})


class PeftFiles:
    """The adapter folder of one model, as ``PeftModel.from_pretrained`` reads it."""

    merge = "model = model.merge_and_unload()"

    def save(self, modules: Mapping[str, nn.Module], lora: LoraSettings, directory: Path, adapter: str) -> None:
        """Writes weights and settings, with the class of the model."""
        (module,) = modules.values()
        tensors = {f"{PEFT_PREFIX}{key}": value for key, value in _adapter_state(module, adapter).items()}
        save_file(tensors, directory / PEFT_FILE, {"format": "pt"})
        config = lora_config(lora)
        kind = type(module)
        config.auto_mapping = {"base_model_class": kind.__name__, "parent_library": kind.__module__}
        config.save_pretrained(str(directory))

    def load(self, modules: Mapping[str, nn.Module], lora: LoraSettings, directory: Path, adapter: str) -> None:
        """Restores the adapters."""
        (module,) = modules.values()
        path = _existing(directory / PEFT_FILE)
        tensors_of_module = {key.removeprefix(PEFT_PREFIX): value for key, value in read_tensors(path)[0].items()}
        _set_adapter_state(module, tensors_of_module, path, adapter)

    def convert(self, tensors: dict[str, Tensor]) -> Converted:
        """The tensors unchanged: peft reads no other format."""
        return Converted(tensors=tensors, alphas={})


def lora_config(lora: LoraSettings) -> LoraConfig:
    """peft's configuration of the adapters."""
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyrefly: ignore[bad-argument-type] (a float works as well)
        target_modules=targets_of(lora),
        init_lora_weights="gaussian" if lora.init == "gaussian" else True,
        use_dora=lora.dora,
        lora_dropout=0.0,
    )


def targets_of(lora: LoraSettings) -> str | list[str] | None:
    """The targets in peft's form."""
    targets = lora.targets
    return list(targets) if isinstance(targets, Sequence) and not isinstance(targets, str) else targets


def require_same_shapes(expected: Mapping[str, Any], loaded: Mapping[str, Any], path: Path) -> None:
    """Raises CheckpointError if names or shapes differ."""
    if dict(expected) != dict(loaded):
        differences = sorted(set(expected.items()) ^ set(loaded.items()))[:3]
        raise CheckpointError(f"{path} is of another model or other LoRA settings; it differs at {differences}")


def _scaled_exactly(state: Mapping[str, Tensor], scale: float) -> dict[str, Tensor] | None:
    """The adapters with a scale in their second factors; None if dividing by it would not restore them bitwise."""
    if math.frexp(scale)[0] != POWER_OF_TWO:
        return None
    scaled = {key: value * scale if is_second(key) else value for key, value in state.items()}
    is_exact = all(torch.equal(scaled[key] / scale, value) for key, value in state.items() if is_second(key))
    return scaled if is_exact else None


def _save_peft(module: nn.Module, state: Mapping[str, Tensor], lora: LoraSettings, directory: Path) -> None:
    """peft's folder of one component, with the full paths of the adapted layers."""
    directory.mkdir(exist_ok=True)
    save_file({f"{PEFT_PREFIX}{key}": value for key, value in state.items()}, directory / PEFT_FILE, {"format": "pt"})
    config = lora_config(lora)
    config.target_modules = [path for path, layer in module.named_modules() if isinstance(layer, BaseTunerLayer)]
    config.save_pretrained(str(directory))


def _adapter_state(module: nn.Module, adapter: str) -> dict[str, Tensor]:
    state = get_peft_model_state_dict(module, adapter_name=adapter)
    return {key: value.detach().cpu().contiguous() for key, value in state.items()}


def _set_adapter_state(module: nn.Module, tensors: Mapping[str, Tensor], path: Path, adapter: str) -> None:
    expected = get_peft_model_state_dict(module, adapter_name=adapter)
    require_same_shapes({k: v.shape for k, v in expected.items()}, {k: v.shape for k, v in tensors.items()}, path)
    set_peft_model_state_dict(module, dict(tensors), adapter_name=adapter)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: the checkpoint holds no adapters; was it a full fine-tune?")
    return path
