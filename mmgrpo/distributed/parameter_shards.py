"""The local shards of trained weights, as ordinary tensors.

Code that handles weights one by one (the optimizer, averages, hooks) works on local shards and does not depend on the
sharding. A file stores each shard as a piece of the full tensor, so that any number of processes can load a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from mmgrpo.layouts import Layout, layout_of, local_slice
from mmgrpo.shards import Piece, Stored

STORED = "stored as"
"""Key that replaces a piece in a state dict; its value is the name under which the piece is stored."""

_shards: Any = WeakIdKeyDictionary()
"""The local shard of each parameter for which ``local_shards`` was called."""


class ParameterShard(nn.Parameter):
    """This process's shard of a parameter; shares its memory.

    Attributes:
        parameter_layout: the layout of the full parameter.
    """

    parameter_layout: Layout


def local_shards(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Returns replicated parameters themselves, and the cached ``ParameterShard`` of sharded ones."""
    return [_local_shard(parameter) for parameter in parameters]


def assign_gradients(parameters: Sequence[nn.Parameter], shards: Sequence[nn.Parameter]) -> None:
    """Sets the gradient of each shard to its parameter's local gradient; shares its memory."""
    for parameter, shard in zip(parameters, shards, strict=True):
        if isinstance(shard, ParameterShard):
            shard.grad = shard.parameter_layout.gradient(parameter)


def as_piece(value: Tensor, shard: nn.Parameter) -> Tensor | Piece:
    """Returns the form in which a checkpoint stores a tensor that belongs to a shard entry by entry.

    Args:
        value: a tensor of the shard's shape, such as a moment; other shapes are returned as they are.
        shard: from ``local_shards``.

    Returns:
        A piece of the full tensor; the value itself if the parameter is replicated or the shapes differ.
    """
    if not isinstance(shard, ParameterShard) or not isinstance(value, Tensor) or value.shape != shard.shape:
        return value
    return Piece(value, shard.parameter_layout.start, shard.parameter_layout.shape)


def slice_for_shard(value: Tensor | Stored, shard: nn.Parameter) -> Tensor:
    """Returns the entries of a full tensor that belong to a shard; reads no others of a tensor on disk.

    Raises ValueError if the tensor on disk has another shape than the full parameter.
    """
    if isinstance(value, Stored):
        if value.shape != full_shape(shard):
            raise ValueError(f"{value.name} has shape {tuple(value.shape)}, expected {tuple(full_shape(shard))}")
        start = shard.parameter_layout.start if isinstance(shard, ParameterShard) else 0
        return value.entries(start, shard.numel()).view(shard.shape)
    is_tensor = isinstance(value, Tensor)
    if not isinstance(shard, ParameterShard) or not is_tensor or value.shape != shard.parameter_layout.shape:
        return value
    return local_slice(value, shard.parameter_layout).to(shard.device, copy=True)


def split_pieces(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Piece]]:
    """Separates the pieces of a state dict from the rest.

    Args:
        state: nested mappings and lists, with pieces at any depth.

    Returns:
        The same structure with a name in place of each piece, and the pieces by that name.
    """
    pieces: dict[str, Piece] = {}

    def without_pieces(value: Any, name: str) -> Any:
        if isinstance(value, Piece):
            pieces[name] = value
            return {STORED: name}
        if isinstance(value, Mapping):
            return {key: without_pieces(child, f"{name}.{key}") for key, child in value.items()}
        if isinstance(value, list):
            return [without_pieces(child, f"{name}.{i}") for i, child in enumerate(value)]
        return value

    return {key: without_pieces(value, key) for key, value in state.items()}, pieces


def restore_pieces(state: Any, stored: Mapping[str, Stored]) -> Any:
    """Reverses ``split_pieces`` with the tensors on disk. Raises KeyError for a tensor that is missing."""
    if isinstance(state, Mapping):
        if list(state) == [STORED]:
            return stored[state[STORED]]
        return {key: restore_pieces(value, stored) for key, value in state.items()}
    return [restore_pieces(value, stored) for value in state] if isinstance(state, list) else state


def full_shape(shard: nn.Parameter) -> torch.Size:
    """Returns the shape of the full parameter of a shard."""
    return shard.parameter_layout.shape if isinstance(shard, ParameterShard) else shard.shape


def register_gathered_state(module: nn.Module, before: Callable[[], None], *, keeps: Callable[[], bool]) -> None:
    """Makes a sharded module's ``state_dict`` gather full tensors, and ``load_state_dict`` accept them.

    All processes have to call ``state_dict`` together.

    Args:
        module: a module with sharded parameters.
        before: called before the tensors are gathered; it may wait for the other processes.
        keeps: whether this process needs the tensors, or only contributes its shards.
    """

    def sharded_parameters(prefix: str) -> list[tuple[str, nn.Parameter, Layout]]:
        named = module.named_parameters(remove_duplicate=False)
        with_layouts = ((f"{prefix}{name}", parameter, layout_of(parameter)) for name, parameter in named)
        return [(key, parameter, layout) for key, parameter, layout in with_layouts if layout is not None]

    def gather_tensors(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        for key, parameter, layout in sharded_parameters(prefix):
            tensor = layout.gather(layout.part(parameter))
            state[key] = tensor.cpu() if keeps() else tensor.new_empty(0)

    def load_shards(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        for key, parameter, layout in sharded_parameters(prefix):
            full = state.get(key)
            if isinstance(full, Tensor) and full.shape == layout.shape:
                layout.part(parameter).copy_(local_slice(full, layout))
                state[key] = parameter.detach()  # which torch copies onto itself

    module.register_state_dict_pre_hook(lambda *_: before())
    module.register_state_dict_post_hook(gather_tensors)
    module.register_load_state_dict_pre_hook(load_shards)


def _local_shard(parameter: nn.Parameter) -> nn.Parameter:
    layout = layout_of(parameter)
    if layout is None:
        return parameter
    if parameter not in _shards:
        shard = ParameterShard(layout.part(parameter))
        shard.parameter_layout = layout
        _shards[parameter] = shard
    return _shards[parameter]
