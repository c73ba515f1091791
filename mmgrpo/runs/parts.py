"""What a process holds of trained weights that lie in parts, as tensors like any others.

Whatever moves weights one by one (the optimiser, averages, hooks) works on what is held, and so need not know that it
is a part; in a file it is a piece of the whole, so that a checkpoint fits any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from mmgrpo.layouts import Layout, layout_of
from mmgrpo.layouts import local_slice as laid_part_of
from mmgrpo.shards import Piece, Stored

STORED = "stored as"
"""In a state dict in the place of a piece: the name that it is stored under."""

_parts: Any = WeakIdKeyDictionary()
"""The part of each parameter that was asked for."""


class Part(nn.Parameter):
    """What this process holds of a sharded parameter, in the same memory.

    Attributes:
        laid: how the whole of it lies.
    """

    laid: Layout


def held(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """What this process holds of each: the parameter itself if it is whole, or its ``Part``, always the same one."""
    return [_held(parameter) for parameter in parameters]


def bring_gradients(parameters: Sequence[nn.Parameter], parts: Sequence[nn.Parameter]) -> None:
    """Gives the parts the gradients of what they are parts of, in the same memory."""
    for parameter, part in zip(parameters, parts, strict=True):
        if isinstance(part, Part):
            part.grad = part.laid.gradient(parameter)


def as_piece(value: Tensor, part: nn.Parameter) -> Tensor | Piece:
    """What a checkpoint holds of a tensor that goes with what is held, entry by entry.

    Args:
        value: of the part's shape; any other goes with no entry.
        part: of ``held``.

    Returns:
        A piece of the whole; of what is no part, or goes with no entry, the value as it is.
    """
    if not isinstance(part, Part) or value.shape != part.shape:
        return value
    return Piece(value, part.laid.start, part.laid.shape)


def part_of(value: Tensor | Stored, part: nn.Parameter) -> Tensor:
    """What goes with this process's entries of a whole tensor, or of one on the disk, of which no more is read.

    Raises ValueError for one on the disk that is of another shape.
    """
    if isinstance(value, Stored):
        if value.shape != whole_shape(part):
            raise ValueError(f"{value.name} is {tuple(value.shape)} where {tuple(whole_shape(part))} fits")
        start = part.laid.start if isinstance(part, Part) else 0
        return value.entries(start, part.numel()).view(part.shape)
    if not isinstance(part, Part) or value.shape != part.laid.shape:
        return value
    return laid_part_of(value, part.laid).to(part.device, copy=True)


def without_pieces(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Piece]]:
    """Splits a state dict.

    Args:
        state: of mappings and lists, in which pieces may be anywhere.

    Returns:
        The same with a name in the place of each piece, and the pieces by that name.
    """
    pieces: dict[str, Piece] = {}

    def rest(value: Any, name: str) -> Any:
        if isinstance(value, Piece):
            pieces[name] = value
            return {STORED: name}
        if isinstance(value, Mapping):
            return {key: rest(one, f"{name}.{key}") for key, one in value.items()}
        return [rest(one, f"{name}.{i}") for i, one in enumerate(value)] if isinstance(value, list) else value

    return {key: rest(value, key) for key, value in state.items()}, pieces


def with_stored(state: Any, stored: Mapping[str, Stored]) -> Any:
    """``without_pieces`` undone, with what is on the disk in their place. Raises KeyError for what is not there."""
    if isinstance(state, Mapping):
        if list(state) == [STORED]:
            return stored[state[STORED]]
        return {key: with_stored(value, stored) for key, value in state.items()}
    return [with_stored(value, stored) for value in state] if isinstance(state, list) else state


def whole_shape(part: nn.Parameter) -> torch.Size:
    """The shape of what it is a part of."""
    return part.laid.shape if isinstance(part, Part) else part.shape


def gather_state(module: nn.Module, before: Callable[[], None], *, keeps: Callable[[], bool]) -> None:
    """Has a sharded module give, and take, a state dict of whole tensors; the processes have to give it together.

    Args:
        module: whose parameters are sharded.
        before: called before it is put together; it may wait for the others.
        keeps: whether this process wants the tensors, and does not only give what it holds of them.
    """

    def parted(prefix: str) -> list[tuple[str, nn.Parameter, Layout]]:
        named = module.named_parameters(remove_duplicate=False)
        there = ((f"{prefix}{name}", parameter, layout_of(parameter)) for name, parameter in named)
        return [(key, parameter, layout) for key, parameter, layout in there if layout is not None]

    def given(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        for key, parameter, layout in parted(prefix):
            tensor = layout.whole(layout.part(parameter))
            state[key] = tensor.cpu() if keeps() else tensor.new_empty(0)

    def taken(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        for key, parameter, layout in parted(prefix):
            there = state.get(key)
            if isinstance(there, Tensor) and there.shape == layout.shape:
                layout.part(parameter).copy_(laid_part_of(there, layout))
                state[key] = parameter.detach()  # which torch copies onto itself

    module.register_state_dict_pre_hook(lambda *_: before())
    module.register_state_dict_post_hook(given)
    module.register_load_state_dict_pre_hook(taken)


def _held(parameter: nn.Parameter) -> nn.Parameter:
    layout = layout_of(parameter)
    if layout is None:
        return parameter
    if parameter not in _parts:
        part = Part(layout.part(parameter))
        part.laid = layout
        _parts[parameter] = part
    return _parts[parameter]
