"""What a process holds of trained weights that lie in parts, as tensors like any others.

Whatever moves weights one by one (the optimiser, averages, hooks) works on what is held, and so need not know that it
is a part; what goes to a file is put together again, so that a checkpoint fits any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.weak import WeakIdKeyDictionary

_parts: Any = WeakIdKeyDictionary()
"""The part of each parameter that was asked for."""


class Part(nn.Parameter):
    """What this process holds of a sharded parameter, in the same memory.

    Attributes:
        of_whole: where the whole of it lies: mesh, placements, shape and strides.
    """

    of_whole: tuple[Any, Any, torch.Size, tuple[int, ...]]


def held(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """What this process holds of each: the parameter itself if it is whole, or its ``Part``, always the same one."""
    return [_part_of(parameter) if isinstance(parameter, DTensor) else parameter for parameter in parameters]


def bring_gradients(parameters: Sequence[nn.Parameter], parts: Sequence[nn.Parameter]) -> None:
    """Gives the parts the gradients of what they are parts of, in the same memory."""
    for parameter, part in zip(parameters, parts, strict=True):
        if isinstance(parameter, DTensor):
            grad: Any = parameter.grad
            part.grad = None if grad is None else grad.to_local()


def whole(value: Tensor, part: nn.Parameter) -> Tensor:
    """A tensor that goes with what is held, entry by entry, put together from all processes; a collective for parts.

    Args:
        value: of the part's shape; any other goes with no entry.
        part: of ``held``.

    Returns:
        The whole on the CPU; of what is no part, or goes with no entry, the value as it is.
    """
    if not isinstance(part, Part) or value.shape != part.shape:
        return value
    mesh, placements, shape, stride = part.of_whole
    there = DTensor.from_local(value, mesh, placements, run_check=False, shape=shape, stride=stride)
    return there.full_tensor().cpu()


def part_of(value: Tensor, part: nn.Parameter) -> Tensor:
    """The inverse of ``whole``: what goes with this process's entries, without asking the others."""
    if not isinstance(part, Part) or value.shape != part.of_whole[2]:
        return value
    mesh, placements, *_ = part.of_whole
    there = distribute_tensor(value.to(part.device), mesh, placements, src_data_rank=None)
    return there.to_local().clone()


def whole_shape(part: nn.Parameter) -> torch.Size:
    """The shape of what it is a part of."""
    return part.of_whole[2] if isinstance(part, Part) else part.shape


def gather_state(module: nn.Module, before: Callable[[], None], *, keeps: Callable[[], bool]) -> None:
    """Has a sharded module give, and take, a state dict of whole tensors; the processes have to give it together.

    Args:
        module: whose parameters are sharded.
        before: called before it is put together; it may wait for the others.
        keeps: whether this process wants the tensors, and does not only give what it holds of them.
    """

    def given(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        for key in [key for key in state if key.startswith(prefix) and isinstance(state[key], DTensor)]:
            tensor = state[key].full_tensor()
            state[key] = tensor.cpu() if keeps() else tensor.new_empty(0)

    def taken(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        for name, parameter in module.named_parameters():
            there = state.get(key := f"{prefix}{name}")
            if isinstance(parameter, DTensor) and isinstance(there, Tensor) and there.shape == parameter.shape:
                own = there.to(parameter.device)
                state[key] = distribute_tensor(own, parameter.device_mesh, parameter.placements, src_data_rank=None)

    module.register_state_dict_pre_hook(lambda *_: before())
    module.register_state_dict_post_hook(given)
    module.register_load_state_dict_pre_hook(taken)


def _part_of(parameter: Any) -> nn.Parameter:
    if parameter not in _parts:
        part = Part(parameter.detach().to_local())
        part.of_whole = (parameter.device_mesh, parameter.placements, parameter.shape, parameter.stride())
        _parts[parameter] = part
    return _parts[parameter]
