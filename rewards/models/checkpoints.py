"""Loading of models for rewards: once per process, in eval mode, on one device, by path or hub id, never unpickled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import RLock
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from mmgrpo.errors import ConfigError, MissingPackageError, RewardError
from mmgrpo.system.hub import explain_load_error
from mmgrpo.system.model_residence import register_model

Dtype = Literal["float32", "bfloat16", "float16"]

T = TypeVar("T")

_loaded: dict[tuple[Any, ...], Any] = {}
_lock = RLock()  # rewards may be called from several threads


def resolve_device(device: str | None) -> torch.device:
    """The named device; by default the process's current CUDA device, or the CPU without CUDA."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def resolve_dtype(where: str, dtype: str) -> torch.dtype:
    """float32, bfloat16 or float16 by name. Raises ConfigError for other names."""
    if dtype not in get_args(Dtype):
        raise ConfigError(f"{where}.dtype must be one of {', '.join(get_args(Dtype))}, got {dtype!r}")
    return getattr(torch, dtype)


def require_positive(where: str, value: int) -> int:
    """The value, if it is an integer of at least 1. Raises ConfigError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where} must be an integer of at least 1, got {value!r}")
    return value


def load_once(load: Callable[..., T], *arguments: Any) -> T:
    """The result of ``load(*arguments)``, computed once per process.

    Two rewards with the same model share it. The arguments must be hashable.

    Raises: RewardError, which stops a run, if the model cannot be loaded; MissingPackageError is passed through.
    """
    key = (load.__module__, load.__qualname__, *arguments)
    with _lock:
        if key not in _loaded:
            try:
                _loaded[key] = load(*arguments)
            except (MissingPackageError, RewardError, ConfigError):
                raise
            except Exception as error:  # hub, file and format errors have many types
                why = explain_load_error(f"{arguments[0]}", error)
                raise RewardError(f"{arguments[0]!r} cannot be loaded by {load.__name__}: {why}") from error
        return _loaded[key]


def freeze(model: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """Move a model to a device and dtype, in eval mode, without gradients; ``runtime.offload_rewards`` offloads it."""
    frozen = model.to(device=device, dtype=dtype).eval().requires_grad_(False)
    register_model(frozen, device)
    return frozen


def load_state_dict(checkpoint: str) -> dict[str, Tensor]:
    """Load the tensors of a checkpoint file on the CPU.

    A path, or ``owner/repository/file`` of the hub: ``.safetensors``, or a file that ``torch.load`` reads with
    ``weights_only``. The ``state_dict`` of a training checkpoint is used, without the prefix ``module.``.

    Raises: RewardError for a file that is not a state dict.
    """
    path = resolve_checkpoint_path(checkpoint)
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(path)
    state_dict = torch.load(path, map_location="cpu", weights_only=True)
    state_dict = state_dict.get("state_dict", state_dict) if isinstance(state_dict, dict) else state_dict
    if not isinstance(state_dict, dict) or not all(isinstance(value, Tensor) for value in state_dict.values()):
        raise RewardError(
            f"{checkpoint} is no state dict: it holds {type(state_dict).__name__} and not tensors by name"
        )
    return {str(name).removeprefix("module."): value for name, value in state_dict.items()}


def resolve_checkpoint_path(checkpoint: str) -> str:
    """The path of a checkpoint file; ``owner/repository/file`` is downloaded from the hub if it is not a path."""
    parts = checkpoint.split("/")
    if os.path.exists(checkpoint) or len(parts) < 3 or not all(parts):
        return checkpoint
    from huggingface_hub import hf_hub_download

    return hf_hub_download("/".join(parts[:2]), "/".join(parts[2:]))


def linear_head(tensors: Mapping[str, Tensor], prefix: str) -> nn.Sequential:
    """Build the linear layers ``PREFIX<number>.weight`` and ``.bias`` of a state dict, in the order of their numbers.

    Numbers may have gaps, for layers without weights such as dropout. Raises RewardError without any layer.
    """
    numbers = sorted({int(number) for name in tensors for number in _numbered(name, prefix)})
    if not numbers:
        raise RewardError(f"the checkpoint has no layers {prefix}0.weight, ...; it has {sorted(tensors)[:5]}")
    layers = []
    for number in numbers:
        weight, bias = tensors[f"{prefix}{number}.weight"], tensors[f"{prefix}{number}.bias"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers.append(layer)
    return nn.Sequential(*layers)


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, in batches of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


@torch.no_grad()
def in_batches(compute: Callable[..., Tensor], size: int, *columns: Sequence[Any]) -> Tensor:
    """``compute`` of some columns in batches of at most ``size`` rows: float32, without gradients."""
    starts = range(0, len(columns[0]), size)
    return torch.cat([compute(*(column[start : start + size] for column in columns)).float() for start in starts])


def _numbered(name: str, prefix: str) -> list[str]:
    number = name.removeprefix(prefix).removesuffix(".weight")
    return [number] if name == f"{prefix}{number}.weight" and number.isdecimal() else []
