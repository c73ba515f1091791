"""A run's adapters in the format of other libraries, copied from a checkpoint without loading a model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from mmgrpo.errors import CheckpointError
from mmgrpo.system.targets import is_python_target

ADAPTERS = ("adapter_model.safetensors", "pytorch_lora_weights.safetensors")
"""File names of peft and diffusers."""

PEFT_CONFIG = "adapter_config.json"
DIFFUSERS_SETTINGS = "lora_adapter_metadata"
"""Key in the header of diffusers' file; its value has the settings of each component's adapters, as JSON."""


def absolute_base(model: str | None) -> str | None:
    """Returns the absolute path of a local base model; a hub id or another text as it is."""
    return str(Path(model).absolute()) if model and Path(model).exists() else model


def has_adapters(weights: Path) -> bool:
    """Whether the weights of a checkpoint are adapters in the format of peft or diffusers."""
    return any((weights / name).is_file() for name in ADAPTERS)


def copy_adapters(weights: Path, directory: Path, *, base: str | None, revision: str | None) -> None:
    """Copies adapters and the files next to them, such as a tokenizer, without the weights that only training needs.

    In diffusers' file the scale alpha / rank is multiplied into the second factors (rounded if it is no power of two),
    so that it also applies in libraries that do not read the header.

    Args:
        weights: weights folder of a checkpoint.
        directory: an existing folder.
        base: the base model; written to peft's configuration if it is a path, which becomes absolute, or a hub id.
        revision: revision of the base model.

    Raises:
        CheckpointError: the adapters or peft's configuration cannot be read.
    """
    for entry in sorted(weights.iterdir()):
        if entry.is_file() and not entry.is_symlink():
            shutil.copyfile(entry, directory / entry.name)
        elif _is_component(entry):
            (directory / entry.name).mkdir()
            for name in (ADAPTERS[0], PEFT_CONFIG):
                shutil.copyfile(entry / name, directory / entry.name / name)
    if (directory / ADAPTERS[1]).is_file():
        _multiply_scale_into_factors(directory / ADAPTERS[1])
    config = directory / PEFT_CONFIG
    if config.is_file() and base is not None and not is_python_target(base):
        try:
            values = json.loads(config.read_text(encoding="utf-8"))
            values |= {"base_model_name_or_path": absolute_base(base), "revision": revision}
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{weights / PEFT_CONFIG} cannot be read: {error}") from error
        config.write_text(json.dumps(values, indent=2), encoding="utf-8")


def _is_component(entry: Path) -> bool:
    """Whether a folder holds peft's files of a pipeline component, none of them a link."""
    files = [entry / name for name in (ADAPTERS[0], PEFT_CONFIG)]
    return not entry.is_symlink() and all(file.is_file() and not file.is_symlink() for file in files)


def _multiply_scale_into_factors(file: Path) -> None:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file

    try:
        with safe_open(file, framework="pt") as opened:
            header = opened.metadata() or {}
            settings = json.loads(header.get(DIFFUSERS_SETTINGS) or "{}")
            scales = {
                key.removesuffix("lora_alpha"): float(alpha) / settings[f"{key.removesuffix('lora_alpha')}r"]
                for key, alpha in settings.items()
                if key.endswith(".lora_alpha")
            }
            if all(scale == 1 for scale in scales.values()):
                return
            tensors = {key: opened.get_tensor(key).clone() for key in opened.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file.name} of the checkpoint cannot be read: {error}; use another checkpoint"
        ) from error
    for component, scale in scales.items():
        settings[f"{component}lora_alpha"] = settings[f"{component}r"]
        for key in tensors:
            if key.startswith(component) and ".lora_B." in key:
                tensors[key] *= scale
    save_file(tensors, file, {**header, DIFFUSERS_SETTINGS: json.dumps(settings)})


def is_hub_id(model: str | None) -> bool:
    """Whether a model name is a hub id and no local folder."""
    return model is not None and bool(re.fullmatch(r"[\w.-]+/[\w.-]+", model)) and not Path(model).exists()
