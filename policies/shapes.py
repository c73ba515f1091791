"""Configurations of a model, without its weights: from a folder, from those shipped with mmgrpo, or from the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from mmgrpo.errors import ConfigError
from mmgrpo.system.folders import CONFIGS
from mmgrpo.system.hub import explain_load_error

M = TypeVar("M", bound=nn.Module)
SHIPPED = CONFIGS / "shapes"
FILES = ("model_index.json", "config.json", "*/config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfigs:
    """The configurations of a model.

    Attributes:
        source: their source.
        config: configuration of a single model.
        components: components of a pipeline: library, class and configuration by name.
        pipeline: class of the pipeline; empty if unknown.
    """

    source: str
    config: Mapping[str, Any] = field(default_factory=dict)
    components: Mapping[str, tuple[str, str, Mapping[str, Any]]] = field(default_factory=dict)
    pipeline: str = ""


def to_meta(module: M) -> M:
    """Moves the module to the meta device, in place; tied parameters stay tied, unlike with ``to``."""
    twins: dict[int, Any] = {}
    for part in module.modules():
        tensors: Any
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in twins:
                    new = torch.empty_like(tensor, device="meta")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    twins[id(tensor)] = nn.Parameter(new, requires_grad=tensor.requires_grad) if is_parameter else new
                tensors[name] = None if tensor is None else twins[id(tensor)]
    return module


def model_configs(model: str, revision: str | None = None) -> ModelConfigs:
    """The configurations of a model by path or hub id. Raises ConfigError if they are not available."""
    shipped = SHIPPED / f"{model.replace('/', '--')}.json"
    if Path(model).is_dir():
        return _of_folder(Path(model), model)
    if shipped.is_file():
        stored = json.loads(shipped.read_text())
        parts = {
            name: (component[0], component[1], component[2]) for name, component in stored.get("components", {}).items()
        }
        return ModelConfigs(
            source=stored["source"],
            config=stored.get("config", {}),
            components=parts,
            pipeline=stored.get("pipeline", ""),
        )
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(model, revision=revision, allow_patterns=list(FILES))
    except (OSError, ValueError) as error:
        why = explain_load_error(model, error, revision=revision)
        raise ConfigError(f"the sizes of policy.model {model!r} are not known: {why}") from error
    return _of_folder(Path(folder), model)


def _of_folder(folder: Path, model: str) -> ModelConfigs:
    index = folder / "model_index.json"
    if not index.is_file() and not (folder / "config.json").is_file():
        raise ConfigError(f"the sizes of policy.model {model!r} are not known: it has no configuration files")
    if not index.is_file():
        return ModelConfigs(source=model, config=json.loads((folder / "config.json").read_text()))
    parts, listed = {}, json.loads(index.read_text())
    for name, component in listed.items():
        file = folder / name / "config.json"
        if isinstance(component, list) and component[0] in ("diffusers", "transformers") and file.is_file():
            parts[name] = (component[0], component[1], json.loads(file.read_text()))
    return ModelConfigs(source=model, components=parts, pipeline=listed.get("_class_name", ""))
