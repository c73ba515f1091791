"""What is trained of a pipeline, and where its frozen reference and its files are."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file
from torch import nn

from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.policies.denoising.settings import LoraSettings

LORA_FILE = "pytorch_lora_weights.safetensors"
ADAPTER = "default"


class Weights:
    """The denoisers of a pipeline, frozen but for what is trained.

    Attributes:
        modules: the denoisers by component name.
        lora: the adapters' settings, if adapters are trained.
        reference: frozen copies, made at the first use; empty with LoRA, whose reference is the adapter switched off.
    """

    def __init__(self, modules: Mapping[str, nn.Module], lora: LoraSettings | None) -> None:
        """Freezes what is not trained, in place, and adds the adapters.

        Args:
            modules: the denoisers by component name.
            lora: the adapters' settings; None trains every weight.
        """
        self.modules = dict(modules)
        self.lora = lora
        self.reference: dict[str, nn.Module] = {}
        for name, module in self.modules.items():
            _require_bare(name, module)
            module.eval()  # no dropout: the rollout and the update must see the same policy
            if lora is not None:
                module.requires_grad_(False)
                _inject(name, module, lora)
            else:
                module.float().requires_grad_(True)

    @property
    def trainable(self) -> list[nn.Parameter]:
        """Float32 master weights, in a fixed order."""
        return [p for module in self.modules.values() for p in module.parameters() if p.requires_grad]

    @contextmanager
    def adapters_off(self) -> Iterator[None]:
        """Within it the adapters add nothing."""
        layers = [m for module in self.modules.values() for m in module.modules() if isinstance(m, BaseTunerLayer)]
        for layer in layers:
            layer.enable_adapters(enabled=False)
        try:
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(enabled=True)
            for parameter in self._adapter_parameters():
                parameter.requires_grad_(True)

    def frozen_copies(self) -> Mapping[str, nn.Module]:
        """The reference of a full fine-tune: copies of the weights as they were at the first call."""
        if not self.reference:
            self.reference = {name: _frozen(module) for name, module in self.modules.items()}
        return self.reference

    def save(self, directory: Path) -> None:
        """Adapters as diffusers' own LoRA file; full weights as ``save_pretrained`` folders, the reference beside."""
        if self.lora is not None:
            _save_adapters(self.modules, self.lora, directory)
            return
        for folder, modules in ((directory, self.modules), (directory / "reference", self.reference)):
            for name, module in modules.items():
                _save_module(module, folder / name)

    def load(self, directory: Path) -> None:
        """Restores what ``save`` wrote. Raises CheckpointError if files are missing or are of another model."""
        if self.lora is not None:
            _load_adapters(self.modules, directory)
            return
        for name, module in self.modules.items():
            _load_module(module, directory / name)
        if (directory / "reference").is_dir():
            for name, module in self.frozen_copies().items():
                _load_module(module, directory / "reference" / name)

    def _adapter_parameters(self) -> list[nn.Parameter]:
        return [p for module in self.modules.values() for name, p in module.named_parameters() if ".lora_" in name]


def _require_bare(name: str, module: nn.Module) -> None:
    if any(isinstance(layer, BaseTunerLayer) for layer in module.modules()):
        raise ConfigError(
            f"{name} already carries adapters, which the reference would lose; make them part of its weights first: "
            "pipe.fuse_lora(); pipe.unload_lora_weights()"
        )


def _inject(name: str, module: nn.Module, lora: LoraSettings) -> None:
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType] (a float works as well)
        target_modules=_targets(lora.targets),
        init_lora_weights="gaussian" if lora.init == "gaussian" else True,
        use_dora=lora.dora,
        lora_dropout=0.0,
    )
    try:
        inject_adapter_in_model(config, module, adapter_name=ADAPTER)
    except ValueError as error:
        linear = sorted({path.rsplit(".", 1)[-1] for path, m in module.named_modules() if isinstance(m, nn.Linear)})
        raise ConfigError(
            f"LoRA targets {lora.targets} match no module of {name} ({type(module).__name__}); "
            f"its linear layers end in: {', '.join(linear)}"
        ) from error
    if getattr(module, "peft_config", None) is None:
        object.__setattr__(module, "peft_config", {ADAPTER: config})
    for path, parameter in module.named_parameters():
        if ".lora_" in path:
            parameter.data = parameter.data.float()  # small steps are lost in bfloat16
            parameter.requires_grad_(True)


def _targets(targets: str | Sequence[str]) -> str | list[str]:
    return targets if isinstance(targets, str) else list(targets)


def _frozen(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).requires_grad_(False).eval()


def _save_adapters(modules: Mapping[str, nn.Module], lora: LoraSettings, directory: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    metadata: dict[str, Any] = {}
    for name, module in modules.items():
        state = get_peft_model_state_dict(module, adapter_name=ADAPTER)
        tensors |= {f"{name}.{key}": value.detach().cpu().contiguous() for key, value in state.items()}
        metadata |= {
            f"{name}.r": lora.rank,
            f"{name}.lora_alpha": lora.alpha,
            f"{name}.target_modules": _targets(lora.targets),
            f"{name}.use_dora": lora.dora,
        }
    save_file(tensors, directory / LORA_FILE, {"format": "pt", "lora_adapter_metadata": json.dumps(metadata)})


def _load_adapters(modules: Mapping[str, nn.Module], directory: Path) -> None:
    path = directory / LORA_FILE
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: the checkpoint holds no adapters; was it a full fine-tune?")
    tensors = load_file(path)
    for name, module in modules.items():
        own = {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}.")}
        expected = get_peft_model_state_dict(module, adapter_name=ADAPTER)
        _require_same({k: v.shape for k, v in expected.items()}, {k: v.shape for k, v in own.items()}, path)
        set_peft_model_state_dict(module, own, adapter_name=ADAPTER)


def _save_module(module: nn.Module, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained = getattr(module, "save_pretrained", None)
    if callable(save_pretrained):
        save_pretrained(folder)
    else:
        save_file(
            {k: v.detach().cpu().contiguous() for k, v in module.state_dict().items()}, folder / "model.safetensors"
        )


def _load_module(module: nn.Module, folder: Path) -> None:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no .safetensors file; was the checkpoint made with LoRA?")
    tensors = {key: value for file in files for key, value in load_file(file).items()}
    state = module.state_dict()
    _require_same({k: v.shape for k, v in state.items()}, {k: v.shape for k, v in tensors.items()}, folder)
    module.load_state_dict(tensors)


def _require_same(expected: Mapping[str, Any], found: Mapping[str, Any], where: Path) -> None:
    if dict(expected) != dict(found):
        odd = sorted(set(expected.items()) ^ set(found.items()))[:3]
        raise CheckpointError(f"{where} is of another model or other LoRA settings; it differs at {odd}")
