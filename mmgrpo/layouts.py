"""Layouts of sharded parameters under any engine, and deferred moves of blocks that will be sharded.

Blocks that will be sharded stay where they were loaded, in their original dtype, until each is moved and sharded in
turn: no device ever holds all of them unsharded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

_layouts: Any = WeakIdKeyDictionary()
"""The layout of each parameter that is no DTensor."""

_defers = False
_deferred: WeakKeyDictionary[nn.Module, list[Callable[[nn.Module], object]]] = WeakKeyDictionary()
"""The deferred moves of each block."""


class Layout(Protocol):
    """Which entries of a parameter this process holds."""

    @property
    def shape(self) -> torch.Size:
        """Shape of the full parameter."""
        ...

    @property
    def start(self) -> int:
        """Offset of the shard in the flattened parameter; the shard is contiguous."""
        ...

    @property
    def part_shape(self) -> torch.Size:
        """Shape of the shard."""
        ...

    def part(self, parameter: Any) -> Tensor:
        """The shard of this process, in the same memory."""
        ...

    def gradient(self, parameter: Any) -> Tensor | None:
        """The shard of the gradient, which is summed over all processes, in the same memory."""
        ...

    def gather(self, value: Tensor) -> Tensor:
        """Gathers a tensor with the entries of the shard from all processes; a collective."""
        ...


@dataclass(frozen=True, slots=True)
class OnMesh:
    """The layout of FSDP2: a DTensor, in equal consecutive blocks of rows, the last ones shorter."""

    mesh: Any
    placements: Any
    shape: torch.Size
    stride: tuple[int, ...]

    @property
    def start(self) -> int:
        """As ``Layout.start``."""
        return self._rows.start * self.shape[1:].numel()

    @property
    def part_shape(self) -> torch.Size:
        """As ``Layout.part_shape``."""
        return torch.Size([len(self._rows), *self.shape[1:]])

    def part(self, parameter: Any) -> Tensor:
        """The local tensor."""
        return parameter.detach().to_local()

    def gradient(self, parameter: Any) -> Tensor | None:
        """The local tensor of the gradient."""
        return None if parameter.grad is None else parameter.grad.to_local()

    def gather(self, value: Tensor) -> Tensor:
        """As ``Layout.gather``."""
        from torch.distributed.tensor import DTensor

        sharded = DTensor.from_local(
            value, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )
        return sharded.full_tensor()

    @property
    def _rows(self) -> range:
        from torch.distributed.tensor import Shard

        assert self.placements == (Shard(0),)
        rows_per_process = -(-self.shape[0] // self.mesh.size())
        return range(self.shape[0])[self.mesh.get_local_rank() * rows_per_process :][:rows_per_process]


def set_layout(parameter: Tensor, layout: Layout) -> None:
    """Registers the layout of a parameter."""
    _layouts[parameter] = layout


def layout_of(parameter: Any) -> Layout | None:
    """The layout of a parameter; None: this process holds all of it."""
    sharded = sys.modules.get("torch.distributed.tensor")  # seconds to import, and of no DTensor where it is not
    if sharded is not None and isinstance(parameter, getattr(sharded, "DTensor", ())):
        return OnMesh(parameter.device_mesh, parameter.placements, parameter.shape, parameter.stride())
    return _layouts.get(parameter)


def local_part(parameter: Tensor) -> Tensor:
    """The entries of a parameter that this process holds, in the same memory: all of them, if it is not sharded."""
    layout = layout_of(parameter)
    return parameter.detach() if layout is None else layout.part(parameter)


def local_slice(value: Tensor, layout: Layout) -> Tensor:
    """The entries of a full tensor that match this process's shard, in the same memory; no communication."""
    size = layout.part_shape.numel()
    return value.flatten()[layout.start : layout.start + size].view(layout.part_shape)


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The blocks of a model as its library names them (``_no_split_modules``), outer ones first; empty if it names
    none.
    """
    declared: Any = getattr(module, "_no_split_modules", None)
    kinds: Collection[str] = set(declared or ())
    return [part for part in module.modules() if type(part).__name__ in kinds]


@contextmanager
def deferred_moves() -> Iterator[None]:
    """A context in which moves of blocks are deferred; moves that are still deferred at its end are made then."""
    global _defers
    _defers = True
    try:
        yield
        for block in list(_deferred):
            run_deferred_moves(block)
    finally:
        _defers = False
        _deferred.clear()


def move_modules(
    modules: Sequence[nn.Module],
    move: Callable[[Any], object],
    *,
    holder: Any = None,
    without: Collection[nn.Module] = (),
) -> None:
    """Moves modules; moves of their blocks may be deferred.

    Args:
        modules: loaded modules.
        move: moves its argument to a device or a dtype, in place; called with each module, and with deferred blocks.
        holder: an object that contains the modules and is moved in their place, such as a pipeline; None: no holder.
        without: parts that stay where they are.
    """
    blocks = [block for module in modules for block in blocks_of(module)] if _defers else []
    with _without(modules, {*blocks, *without}):
        for item in modules if holder is None else (holder,):
            move(item)
    for block in blocks:
        defer_move(block, move)


def defer_move(block: nn.Module, move: Callable[[nn.Module], object]) -> None:
    """Defers a move of a block until ``run_deferred_moves``."""
    _deferred.setdefault(block, []).append(move)


def has_deferred_moves(module: nn.Module) -> bool:
    """Whether a block of the module has deferred moves."""
    return any(part in _deferred for part in module.modules())


def run_deferred_moves(block: nn.Module) -> None:
    """Makes the deferred moves of a block, in order."""
    for move in _deferred.pop(block, ()):
        move(block)


@contextmanager
def _without(modules: Sequence[nn.Module], blocks: Collection[nn.Module]) -> Iterator[None]:
    """A context in which modules do not contain these blocks."""
    parents = [parent for module in modules for parent in module.modules()]
    entries = [(p, name, child) for p in parents for name, child in p._modules.items() if child in blocks]
    for parent, name, _ in entries:
        parent._modules[name] = None
    try:
        yield
    finally:
        for parent, name, child in entries:
            parent._modules[name] = child
