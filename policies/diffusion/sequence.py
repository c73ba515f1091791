"""Sequence parallelism: denoisers that several processes call together, by diffusers' context parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from diffusers import ContextParallelConfig
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from mmgrpo.errors import ConfigError


def split_sequence(name: str, module: nn.Module, *, mesh: DeviceMesh) -> None:
    """Splits a denoiser's sequence, and its attention's heads, over the processes of a mesh (DeepSpeed-Ulysses,
    arXiv:2309.14509); each process gets the complete prediction, and its share of the gradient of each weight.

    Args:
        name: of the denoiser, for messages.
        module: a diffusers model.
        mesh: of all processes; its axis ``ulysses`` has those that share a sequence.

    Raises:
        ConfigError: diffusers has no plan to split it, its heads are not divisible, or its attention back end does not
            support it.
    """
    num, model = mesh["ulysses"].size(), type(module).__name__
    if not getattr(module, "_cp_plan", None):
        raise ConfigError(
            f"runtime.context_parallel: diffusers has no plan (_cp_plan) to split the sequence of {model}, the {name}; "
            "remove the setting"
        )
    config: Any = getattr(module, "config", {})
    heads = config.get("num_attention_heads")
    if heads is not None and heads % num:
        raise ConfigError(f"runtime.context_parallel: {num} does not divide the {heads} heads of {model}, the {name}")
    denoiser: Any = module
    try:
        with _some_device():
            denoiser.enable_parallelism(config=ContextParallelConfig(ulysses_degree=num, mesh=mesh))
    except ValueError as error:
        raise ConfigError(f"runtime.context_parallel: {error}; policy.attention sets the back end") from error
    split = denoiser.forward

    @wraps(split)
    def forward(*args: Any, **kwargs: Any) -> Any:
        try:
            return split(*args, **kwargs)
        except AssertionError as error:  # diffusers raises no specific error
            if "divisible by mesh size" not in str(error):
                raise
            raise ConfigError(
                f"runtime.context_parallel: {num} does not divide the length of a sequence of {model}, the {name}: "
                "set another height, width or number of frames in policy.call, or pad texts to one length"
            ) from error

    denoiser.forward = forward


@contextmanager
def _some_device() -> Iterator[None]:
    """Simulates one device on a machine without GPUs within the context: diffusers divides by the number of devices."""
    count = torch.accelerator.device_count
    torch.accelerator.device_count = lambda: max(count(), 1)
    try:
        yield
    finally:
        torch.accelerator.device_count = count
