"""Any pipeline class of diffusers from tiny random components, built by two tables."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from diffusers import ConfigMixin, DiffusionPipeline
from PIL import Image
from torch import Tensor, nn
from transformers import PretrainedConfig

from mmgrpo.system.yamls import parse_yaml_1_1
from tests.breadth.resources import RESOURCES, VOCABULARY

HERE = Path(__file__).parent
SEED = 0
ZERO_STD = 0.05  # of parameters that their class sets to zero, so that no gradient is zero by construction


@cache
def recipes() -> dict[str, Any]:
    """Pipeline class to what it is made of and called with."""
    return parse_yaml_1_1((HERE / "pipelines.yaml").read_text(encoding="utf-8"))


@cache
def _configurations() -> dict[str, Any]:
    return parse_yaml_1_1((HERE / "components.yaml").read_text(encoding="utf-8"))


def pipeline_classes() -> dict[str, type | None]:
    """Every pipeline that the installed diffusers exports; None where a package it needs is missing."""
    names = {name for name in dir(diffusers) if not name.startswith("_")}
    result: dict[str, type | None] = {}
    for name in sorted(names):
        exported = getattr(diffusers, name, None)
        if not inspect.isclass(exported):
            continue
        if "_backends" in vars(exported):
            if "Pipeline" in name:
                result[name] = None
        elif issubclass(exported, DiffusionPipeline) and exported is not DiffusionPipeline:
            result[name] = exported
    return result


def build(name: str) -> Any:
    """The pipeline with random weights of a fixed seed, in float32 and eval mode; the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        kind: Any = getattr(diffusers, name)
        pipeline = kind(**{slot: _part(part, kind) for slot, part in recipes()[name]["parts"].items()})
        for slot, method in (recipes()[name].get("prepare") or {}).items():
            getattr(getattr(pipeline, slot), method)()
        for component in pipeline.components.values():
            if isinstance(component, nn.Module):
                _wake(component)
                component.float().eval()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def arguments(name: str) -> dict[str, Any]:
    """The arguments of a small call of the pipeline besides prompts and generators, made for each call."""
    kind: Any = getattr(diffusers, name)
    return {key: _argument(value, kind) for key, value in (recipes()[name].get("call") or {}).items()}


def _part(part: Any, pipeline: type) -> Any:
    """A component by its name in the tables; a list of components; anything else is the value itself."""
    if isinstance(part, list) and part and isinstance(part[0], str) and part[0][:1].isupper():
        return [_part(value, pipeline) for value in part]
    if isinstance(part, dict) and "class" in part:
        class_name, _, variant = part["class"].partition(".")
        base = copy.deepcopy(_configurations()[class_name][variant or "base"])
        return _component(_class(class_name, pipeline), {**base, **{k: v for k, v in part.items() if k != "class"}})
    if not isinstance(part, str):
        return part
    if part.startswith("="):
        return RESOURCES[part[1:]]()
    return _part({"class": part}, pipeline) if part.partition(".")[0] in _configurations() else part


def _component(kind: Any, config: dict[str, Any]) -> Any:
    if issubclass(kind, transformers.PreTrainedModel):
        config_class: Any = kind.config_class
        settings = config_class(**_with_vocabulary(config, config_class))
        for part in (settings, *(part for part in vars(settings).values() if isinstance(part, PretrainedConfig))):
            if (getattr(part, "pad_token_id", None) or 0) >= VOCABULARY:
                part.pad_token_id = 0
        return kind(settings)
    if issubclass(kind, ConfigMixin):
        parameters = inspect.signature(kind.__init__).parameters
        return kind(**{key: value for key, value in config.items() if key in parameters})
    return kind(**config)


def _class(name: str, pipeline: type) -> Any:
    """A class by its name; some belong to one pipeline and are found only in its package."""
    package = pipeline.__module__.rpartition(".")[0]
    modules = [module for path, module in list(sys.modules.items()) if path.startswith(package)]
    return next(
        result for home in (diffusers, transformers, *modules) if (result := getattr(home, name, None)) is not None
    )


def _with_vocabulary(config: dict[str, Any], config_class: Any) -> dict[str, Any]:
    """The configuration with every vocabulary wide enough for the tokenizers, at any depth."""
    config = {key: _deepened(key, value) for key, value in config.items()}
    if "vocab_size" in inspect.signature(config_class.__init__).parameters or hasattr(config_class, "vocab_size"):
        config["vocab_size"] = VOCABULARY
    return config


def _deepened(key: str, value: Any) -> Any:
    if not isinstance(value, dict) or not key.endswith("config"):
        return value
    inner = {name: _deepened(name, nested) for name, nested in value.items()}
    return inner if "vision" in key or "audio" in key else {**inner, "vocab_size": VOCABULARY}


@torch.no_grad()
def _wake(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.is_floating_point() and not parameter.any():
            nn.init.normal_(parameter, std=ZERO_STD)


def _argument(value: Any, pipeline: type) -> Any:
    if isinstance(value, list):
        return [_argument(value, pipeline) for value in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1:
        (kind, size), *_ = value.items()
        if kind in _MADE:
            return _MADE[kind](*size)
    made = {key: _argument(nested, pipeline) for key, nested in value.items() if key != "make"}
    return _class(value["make"], pipeline)(**made) if "make" in value else made


def _picture(width: int, height: int) -> Image.Image:
    red = torch.linspace(0, 255, width).expand(height, width)
    green = torch.linspace(0, 255, height)[:, None].expand(height, width)
    return _image(torch.stack([red, green, torch.full((height, width), 128.0)], -1))


def _mask(width: int, height: int) -> Image.Image:
    lower = (torch.arange(height)[:, None] >= height // 2).expand(height, width)
    return _image(255.0 * lower)


def _image(levels: Tensor) -> Image.Image:
    return Image.fromarray(levels.to(torch.uint8).numpy())


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED))


_MADE = {
    "picture": _picture,
    "mask": _mask,
    "frames": lambda number, width, height: [_picture(width, height) for _ in range(number)],
    "mask_frames": lambda number, width, height: [_mask(width, height) for _ in range(number)],
    "normal": _normal,
}
