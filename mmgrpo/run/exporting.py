"""A run's adapters as other libraries take them: copied as they lie in a checkpoint, so that no model is loaded."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from mmgrpo.errors import CheckpointError
from mmgrpo.system.targets import is_own

ADAPTERS = ("adapter_model.safetensors", "pytorch_lora_weights.safetensors")
"""The files in which peft and diffusers keep them."""

PEFT_CONFIG = "adapter_config.json"


def has_adapters(weights: Path) -> bool:
    """Whether the weights of a checkpoint are adapters in the form of a library."""
    return any((weights / name).is_file() for name in ADAPTERS)


def copy_adapters(weights: Path, directory: Path, *, base: str | None, revision: str | None) -> None:
    """Copies adapters with what lies beside them, such as a tokenizer; weights that are kept for training stay behind.

    Args:
        weights: of a checkpoint.
        directory: an existing folder.
        base: what the adapters are for, which peft is told where it is a path or a hub id.
        revision: of it.

    Raises:
        CheckpointError: peft's configuration cannot be read.
    """
    for entry in sorted(weights.iterdir()):
        if entry.is_file() and not entry.is_symlink():
            shutil.copyfile(entry, directory / entry.name)
    config = directory / PEFT_CONFIG
    if config.is_file() and base is not None and not is_own(base):
        try:
            values = json.loads(config.read_text(encoding="utf-8"))
            values |= {"base_model_name_or_path": base, "revision": revision}
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{weights / PEFT_CONFIG} cannot be read: {error}") from error
        config.write_text(json.dumps(values, indent=2), encoding="utf-8")


def is_hub_id(model: str | None) -> bool:
    """Whether a model is named as the hub names it and is no folder here."""
    return model is not None and bool(re.fullmatch(r"[\w.-]+/[\w.-]+", model)) and not Path(model).exists()
