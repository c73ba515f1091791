"""Adapters that another run or another library has left: found, and taken apart by component."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.policies.lora import LoraSettings

CONFIG_FILE, PEFT_FILE, DIFFUSERS_FILE = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "pytorch_lora_weights.safetensors",
)
PEFT_PREFIX = "base_model.model."
METADATA = "lora_adapter_metadata"


def read_adapter(path: Path, names: Collection[str], lora: LoraSettings) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of each trained component, in the form of peft or of diffusers, as peft names them in the module.

    Args:
        path: a folder that holds either form, or the file.
        names: the trained components.
        lora: the adapters' settings, whose scale has to be that of the file.

    Returns:
        By component.

    Raises:
        CheckpointError: there is no such file, or it holds adapters of other components.
        ConfigError: its adapters are scaled otherwise.
    """
    file = path if path.is_file() else next((p for n in (DIFFUSERS_FILE, PEFT_FILE) if (p := path / n).is_file()), None)
    if file is None:
        raise CheckpointError(
            f"policy.adapter: {path} holds neither {DIFFUSERS_FILE} nor {PEFT_FILE}; give a run folder, a checkpoint, "
            "or a folder in which diffusers or peft keeps adapters"
        )
    with safe_open(file, framework="pt") as opened:
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (it is no mapping)
        header = (opened.metadata() or {}).get(METADATA)
    found: dict[str, dict[str, torch.Tensor]] = {name: {} for name in names}
    alone = next(iter(names)) if len(names) == 1 else None
    for key, tensor in tensors.items():
        owner = next((name for name in names if key.startswith(f"{name}.") and not key.startswith(PEFT_PREFIX)), None)
        if alone is not None and (key.startswith(PEFT_PREFIX) or file.name == PEFT_FILE):
            found[alone][key.removeprefix(PEFT_PREFIX)] = tensor
        elif owner is not None:
            found[owner][key.removeprefix(f"{owner}.")] = tensor
        else:
            raise CheckpointError(
                f"policy.adapter: {file} holds {key!r}, which is of none of the trained components {', '.join(names)}"
            )
    _require_scale(file, names, lora, json.loads(header) if header else None)
    return found


def _require_scale(file: Path, names: Collection[str], lora: LoraSettings, header: Mapping[str, Any] | None) -> None:
    """Raises ConfigError where the file says that its adapters add another multiple; many files do not say."""
    beside = file.parent / CONFIG_FILE
    told: list[Mapping[str, Any]] = (
        [json.loads(beside.read_text())] if file.name == PEFT_FILE and beside.is_file() else []
    )
    if header is not None:
        told += [{key.removeprefix(f"{name}."): value for key, value in header.items()} for name in names]
    for one in told:
        rank, alpha, dora = one.get("r"), one.get("lora_alpha"), bool(one.get("use_dora", lora.dora))
        if one.get("use_rslora"):
            raise ConfigError(
                f"policy.adapter: {file} is scaled by alpha / sqrt(rank), and policy.lora by alpha / rank"
            )
        if rank is None or alpha is None:
            continue
        if (rank, float(alpha), dora) != (lora.rank, lora.alpha, lora.dora):
            raise ConfigError(
                f"policy.adapter: {file} has rank {rank}, alpha {alpha:g}, dora {str(dora).lower()}; policy.lora has "
                f"{lora.rank}, {lora.alpha:g}, {str(lora.dora).lower()}: give it the file's"
            )
