"""Denoisers that processes call together, each with its share of the sequence: diffusers' context parallelism."""

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
    """Has a denoiser split its sequence, and its attention its heads, over the processes of a mesh (DeepSpeed-Ulysses,
    arXiv:2309.14509); each gives all processes the whole prediction, and its own share of the gradient of each weight.

    Args:
        name: of the denoiser, for messages.
        module: a model of diffusers.
        mesh: of all processes, whose axis ``ulysses`` has those that share a sequence.

    Raises:
        ConfigError: diffusers has no plan by which to split it, its heads do not divide, or its attention back end
            cannot do it.
    """
    num, model = mesh["ulysses"].size(), type(module).__name__
    if not getattr(module, "_cp_plan", None):
        raise ConfigError(
            f"runtime.context_parallel: diffusers has no plan (_cp_plan) by which it splits the sequence of {model}, "
            f"the {name}; leave it out"
        )
    heads = getattr(module, "config", {}).get("num_attention_heads")
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
        except AssertionError as error:  # which is all that diffusers says of it
            if "divisible by mesh size" not in str(error):
                raise
            raise ConfigError(
                f"runtime.context_parallel: {num} does not divide the length of a sequence of {model}, the {name}: "
                "give another height, width or number of frames in policy.call, or texts padded to one length"
            ) from error

    denoiser.forward = forward


@contextmanager
def _some_device() -> Iterator[None]:
    """Within it a machine without GPUs has a device: diffusers numbers this process's by how many there are."""
    count = torch.accelerator.device_count
    torch.accelerator.device_count = lambda: max(count(), 1)
    try:
        yield
    finally:
        torch.accelerator.device_count = count
