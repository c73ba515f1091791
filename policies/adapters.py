"""Adapters saved by another run or another library, converted to the trained modules of a policy."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model_state_dict
from peft.utils.other import get_pattern_key
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mmgrpo.errors import CheckpointError, ConfigError

from .lora import LoraSettings

logger = logging.getLogger(__name__)

CONFIG_FILE, PEFT_FILE, DIFFUSERS_FILE = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "pytorch_lora_weights.safetensors",
)
PEFT_PREFIX = "base_model.model."
METADATA = "lora_adapter_metadata"
LFS_HEAD = b"version https://git-lfs"
MAX_NAMED = 3
PEFT_ALPHA = 8
"""Default of ``lora_alpha`` in peft."""

FACTORS = (".lora_A.", ".lora_B.", ".lora_embedding_A", ".lora_embedding_B", ".lora_magnitude_vector")
SECOND = (".lora_B.", ".lora_embedding_B")
OTHER_KINDS = {".lokr_": "LoKr", ".hada_": "LoHa", "dora_scale": "LyCORIS DoRA", ".oft_": "OFT", ".vera_": "VeRA"}

Convert = Callable[[dict[str, Tensor]], "Converted"]
"""A library's own conversion of other adapter formats that it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Adapters under diffusers' keys.

    Attributes:
        tensors: by component, layer and factor, such as ``unet.mid_block.to_q.lora_A.weight``.
        alphas: of the layers whose file has them, under the keys that diffusers makes from theirs.
    """

    tensors: dict[str, Tensor]
    alphas: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The adapters of one component in a file.

    Attributes:
        tensors: by peft's names in the module.
        config: peft's configuration of them, if the file has it.
    """

    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]

    def scale(self, layer: str, rank: int) -> float:
        """The scale of a layer's second factor, as peft computes it from the configuration."""
        patterns = self.config.get("alpha_pattern") or {}
        common = self.config.get("lora_alpha", PEFT_ALPHA) if self.config else rank
        alpha = patterns.get(get_pattern_key(list(patterns), layer), common)
        return float(alpha) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


def is_second(key: str) -> bool:
    """Whether a tensor is the second factor of an adapter, into which scales are multiplied."""
    return any(mark in key for mark in SECOND)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """The tensors of a safetensors file, and its header. Raises the errors of ``opened_tensors``."""
    with opened_tensors(path) as opened:
        return {key: opened.get_tensor(key) for key in opened.keys()}, opened.metadata() or {}  # noqa: SIM118


@contextmanager
def opened_tensors(path: Path) -> Iterator[Any]:
    """A safetensors file opened by ``safe_open``; tensors are read on demand.

    Raises CheckpointError for a file that is truncated, a git-lfs pointer, or of another format.
    """
    try:
        with safe_open(path, framework="pt") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size if path.is_file() else 0
        if size:
            with path.open("rb") as file:
                if file.read(len(LFS_HEAD)) == LFS_HEAD:
                    raise CheckpointError(
                        f"{path} is a git-lfs pointer of {size} bytes in place of the weights: run `git lfs pull` in "
                        "its repository, or download the file itself"
                    ) from error
        raise CheckpointError(
            f"{path} ({size:,} bytes) is not a complete safetensors file: {error}; it is truncated or of another "
            "format: copy or download it again"
        ) from error


def read_adapter(
    path: Path, modules: Mapping[str, nn.Module], lora: LoraSettings, *, adapter: str, convert: Convert
) -> dict[str, dict[str, Tensor]]:
    """The tensors of each trained component, in any format that diffusers or peft reads, ready to be set.

    Their effect is the same as in the file's library: the second factors are multiplied by the file's own scale
    (alpha per layer, or alpha = rank if the file has none, as in diffusers) divided by that of ``policy.lora``. A
    layer with a lower rank than ``policy.lora.rank`` keeps the fresh first factor in the missing rows, and zeros in
    the second factor.

    Args:
        path: a folder with an adapter file, or the file.
        modules: the trained components, with fresh adapters.
        lora: the adapters' settings.
        adapter: the name of the fresh adapters in the modules.
        convert: diffusers' own conversion for the pipeline.

    Returns:
        By component, under peft's names in the module.

    Raises:
        CheckpointError: there is no such file, it cannot be read, is not finite, or is of other layers.
        ConfigError: it does not fit ``policy.lora``: its rank is higher, or only one of both is DoRA.
    """
    file = _file_at(path)
    tensors, header = read_tensors(file)
    _require_lora(file, tensors)
    sources = _by_component(file, tensors, header, list(modules), convert)
    return {name: _fitted(file, name, sources[name], module, lora, adapter) for name, module in modules.items()}


def _file_at(path: Path) -> Path:
    if path.is_file():
        return path
    file = next((p for n in (DIFFUSERS_FILE, PEFT_FILE) if (p := path / n).is_file()), None)
    others = sorted(path.glob("*.safetensors"))
    if file is None and len(others) == 1:
        return others[0]
    if file is None:
        raise CheckpointError(
            f"policy.adapter: {path} holds neither {DIFFUSERS_FILE} nor {PEFT_FILE}"
            f"{f', but {len(others)} other files: name one of them' if others else ''}; give a run folder, a "
            "checkpoint, a folder in which diffusers or peft keeps adapters, or the file"
        )
    return file


def _require_lora(file: Path, tensors: Mapping[str, Tensor]) -> None:
    kinds = {kind for mark, kind in OTHER_KINDS.items() if any(mark in key for key in tensors)}
    if kinds:
        raise CheckpointError(f"policy.adapter: {file} holds {', '.join(sorted(kinds))} adapters; LoRA is read alone")
    broken = [key for key, value in tensors.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise CheckpointError(
            f"policy.adapter: {len(broken)} of the {len(tensors)} tensors of {file} hold NaN or infinite numbers "
            f"({_named(broken)}): that training has failed; take an earlier checkpoint of it"
        )


def _by_component(
    file: Path, tensors: dict[str, Tensor], header: Mapping[str, str], names: Collection[str], convert: Convert
) -> dict[str, _Source]:
    """The adapters of each trained component, with its configuration."""
    only_component = next(iter(names)) if len(names) == 1 else None
    if only_component is not None and (file.name == PEFT_FILE or all(key.startswith(PEFT_PREFIX) for key in tensors)):
        config = _json(file.parent / CONFIG_FILE) or {}
        if config.get("peft_type", "LORA") != "LORA":
            raise CheckpointError(f"policy.adapter: {file} holds {config['peft_type']} adapters; LoRA is read alone")
        component_tensors = {
            key.removeprefix(f"{only_component}.").removeprefix(PEFT_PREFIX): value for key, value in tensors.items()
        }
        return {only_component: _Source(tensors=component_tensors, config=config)}
    header_config = _parsed(header[METADATA], file) if header.get(METADATA) else {}
    converted = Converted(tensors=tensors, alphas={}) if _is_plain(tensors, names) else convert(tensors)
    is_bare = all(any(mark in key for mark in FACTORS) and not key.startswith(f"{only_component}.") for key in tensors)
    if only_component is not None and is_bare:  # as save_lora_adapter of the component writes it
        return {only_component: _Source(tensors=tensors, config=header_config)}
    for key in converted.tensors:
        if not any(key.startswith(f"{name}.") for name in names):
            raise CheckpointError(
                f"policy.adapter: {file} holds {key!r}, which is of none of the trained components {', '.join(names)}; "
                "adapters of other components, as of text encoders, would be lost: merge them into policy.model first"
            )
    return {
        name: _source(_below(name, converted.tensors), _below(name, converted.alphas), _below(name, header_config))
        for name in names
    }


def _source(tensors: dict[str, Tensor], alphas: dict[str, float], stated: Mapping[str, Any]) -> _Source:
    """One component's adapters, configured by the header or else by the alphas, as diffusers does it."""
    if stated or not alphas:
        return _Source(tensors=tensors, config=stated)
    from diffusers.utils import get_peft_kwargs

    ranks = {f"^{key}": value.shape[1] for key, value in tensors.items() if ".lora_B." in key and value.ndim > 1}
    config = get_peft_kwargs(ranks, alphas, tensors)
    layers = {_layer(key) for key in tensors}
    lost = [key for key in config["alpha_pattern"] if not any(get_pattern_key([key], layer) == key for layer in layers)]
    if lost:
        logger.warning("policy.adapter: diffusers applies the commonest alpha, not their own, to %s", _named(lost))
    return _Source(tensors=tensors, config=config)


def _is_plain(tensors: Mapping[str, Tensor], names: Collection[str]) -> bool:
    """Whether keys have the format that this package writes."""
    starts = tuple(f"{name}." for name in names)
    return all(key.startswith(starts) and any(mark in key for mark in FACTORS) for key in tensors)


def _fitted(
    file: Path, name: str, source: _Source, module: nn.Module, lora: LoraSettings, adapter: str
) -> dict[str, Tensor]:
    """The component's tensors at the scale and the rank of ``policy.lora``."""
    fresh = get_peft_model_state_dict(module, adapter_name=adapter)
    _require_layers(file, name, source, fresh, lora)
    fitted: dict[str, Tensor] = {}
    for key, value in source.tensors.items():
        expected, tensor = fresh[key], value.float()
        if "magnitude" not in key:
            dim = 1 if is_second(key) else 0
            rank = tensor.shape[dim] if tensor.ndim == expected.ndim else 0
            if rank > lora.rank:
                raise ConfigError(
                    f"policy.adapter: {file} has rank {rank} at {name}.{_layer(key)}; policy.lora has {lora.rank}: set "
                    f"policy.lora.rank to the largest of the file"
                )
            factor = source.scale(_layer(key), rank) / (lora.alpha / lora.rank) if dim and rank else 1.0
            tensor = tensor if factor == 1 else tensor * factor
            if 0 < rank < lora.rank:
                more = expected.detach().cpu().narrow(dim, rank, lora.rank - rank)
                tensor = torch.cat([tensor, torch.zeros_like(more) if dim else more], dim)
        if tensor.shape != expected.shape:
            raise CheckpointError(
                f"{file} is of another model or other LoRA settings: {name}.{key} is {tuple(value.shape)} there and "
                f"{tuple(expected.shape)} here"
            )
        fitted[key] = tensor.contiguous()
    return fitted


def _require_layers(file: Path, name: str, source: _Source, fresh: Mapping[str, Tensor], lora: LoraSettings) -> None:
    """Raises an error unless the file adapts the same layers as ``policy.lora``."""
    is_dora = any("lora_magnitude_vector" in key for key in source.tensors)
    if is_dora != lora.dora:
        raise ConfigError(
            f"policy.adapter: {file} has dora {str(is_dora).lower()}, policy.lora has {str(lora.dora).lower()}: give "
            "it the file's"
        )
    if unexpected := [
        key for key in source.tensors if key not in fresh and not any(mark in f".{key}" for mark in FACTORS)
    ]:
        raise CheckpointError(f"policy.adapter: {file} holds more than adapters: {_named(unexpected)}")
    layers, expected_layers = {_layer(key) for key in source.tensors}, {_layer(key) for key in fresh}
    if layers != expected_layers or fresh.keys() != source.tensors.keys():
        missing, extra = sorted(expected_layers - layers), sorted(layers - expected_layers)
        endings = sorted({_ending(layer) for layer in layers})
        raise CheckpointError(
            f"{file} is of another model or other LoRA settings: it adapts {len(layers)} layers of {name} and "
            f"policy.lora {len(expected_layers)}{f'; it lacks {_named(missing)}' if missing else ''}"
            f"{f'; further ones are {_named(extra)}' if extra else ''}; for the same model set "
            f"policy.lora.targets: [{', '.join(endings)}]"
        )


def _layer(key: str) -> str:
    return key.split(".lora_")[0]


def _ending(layer: str) -> str:
    """The last name of a path with the numbers after it: to_q, to_out.0."""
    parts = layer.split(".")
    first = max((index for index, part in enumerate(parts) if not part.isdigit()), default=0)
    return ".".join(parts[first:])


def _below(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(f"{name}."): value for key, value in values.items() if key.startswith(f"{name}.")}


def _named(names: Collection[str]) -> str:
    listed = list(names)[:MAX_NAMED]
    return ", ".join(listed) + (f" and {len(names) - len(listed)} more" if len(names) > len(listed) else "")


def _json(path: Path) -> dict[str, Any] | None:
    return _parsed(path.read_text(encoding="utf-8"), path) if path.is_file() else None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path}: the settings of its adapters are not JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: the settings of its adapters are {type(values).__name__} in place of a mapping")
    return values
