"""How a parameter lies in parts on the processes of a run, whoever laid it so, and where it waits until it does.

Blocks that will lie in parts are left where they were loaded and as they were loaded, until each is moved and parted in
its turn: no device ever holds all of them whole.
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

_laid: Any = WeakIdKeyDictionary()
"""The layout of each parameter that does not say itself how it lies."""

_waits = False
_waiting: WeakKeyDictionary[nn.Module, list[Callable[[nn.Module], object]]] = WeakKeyDictionary()
"""What was put off of each block that waits."""


class Layout(Protocol):
    """Where the entries of a parameter are."""

    @property
    def shape(self) -> torch.Size:
        """Of the whole."""
        ...

    @property
    def start(self) -> int:
        """How many entries of the whole, row by row, are before the part, which is those that follow."""
        ...

    @property
    def part_shape(self) -> torch.Size:
        """Of the part."""
        ...

    def part(self, parameter: Any) -> Tensor:
        """What this process holds of it, in the same memory."""
        ...

    def gradient(self, parameter: Any) -> Tensor | None:
        """What this process holds of its gradient, which is that of all processes, in the same memory."""
        ...

    def whole(self, value: Tensor) -> Tensor:
        """A tensor that goes with the part, entry by entry, put together from all processes; a collective."""
        ...


@dataclass(frozen=True, slots=True)
class OnMesh:
    """As FSDP2 lays it: a DTensor, in equal runs of rows, the last ones shorter."""

    mesh: Any
    placements: Any
    shape: torch.Size
    stride: tuple[int, ...]

    @property
    def start(self) -> int:
        """As ``Layout`` has it."""
        return self._rows.start * self.shape[1:].numel()

    @property
    def part_shape(self) -> torch.Size:
        """As ``Layout`` has it."""
        return torch.Size([len(self._rows), *self.shape[1:]])

    def part(self, parameter: Any) -> Tensor:
        """Its local tensor."""
        return parameter.detach().to_local()

    def gradient(self, parameter: Any) -> Tensor | None:
        """The local tensor of its gradient."""
        return None if parameter.grad is None else parameter.grad.to_local()

    def whole(self, value: Tensor) -> Tensor:
        """As ``Layout`` has it."""
        from torch.distributed.tensor import DTensor

        there = DTensor.from_local(
            value, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )
        return there.full_tensor()

    @property
    def _rows(self) -> range:
        from torch.distributed.tensor import Shard

        assert self.placements == (Shard(0),)
        each = -(-self.shape[0] // self.mesh.size())
        return range(self.shape[0])[self.mesh.get_local_rank() * each :][:each]


def set_layout(parameter: Tensor, layout: Layout) -> None:
    """Says how a parameter lies from now on."""
    _laid[parameter] = layout


def layout_of(parameter: Any) -> Layout | None:
    """How it lies in parts; None: this process holds the whole."""
    sharded = sys.modules.get("torch.distributed.tensor")  # seconds to import, and of no DTensor where it is not
    if sharded is not None and isinstance(parameter, getattr(sharded, "DTensor", ())):
        return OnMesh(parameter.device_mesh, parameter.placements, parameter.shape, parameter.stride())
    return _laid.get(parameter)


def local_part(parameter: Tensor) -> Tensor:
    """What this process holds of a parameter, in the same memory: all of it, if that lies in no parts."""
    layout = layout_of(parameter)
    return parameter.detach() if layout is None else layout.part(parameter)


def local_slice(value: Tensor, layout: Layout) -> Tensor:
    """Of a whole tensor what goes with this process's entries, in the same memory; no other process is asked."""
    size = layout.part_shape.numel()
    return value.flatten()[layout.start : layout.start + size].view(layout.part_shape)


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """What the library of a model names its blocks, an outer one before its own; none where it names none."""
    kinds: Collection[str] = set(getattr(module, "_no_split_modules", None) or ())
    return [part for part in module.modules() if type(part).__name__ in kinds]


@contextmanager
def deferred_moves() -> Iterator[None]:
    """Within it blocks wait for their turn to lie in parts; what has not had it by the end lies whole, as it should."""
    global _waits
    _waits = True
    try:
        yield
        for block in list(_waiting):
            run_deferred_moves(block)
    finally:
        _waits = False
        _waiting.clear()


def move_modules(modules: Sequence[nn.Module], move: Callable[[Any], object], *, holder: Any = None) -> None:
    """Moves modules; their blocks too, unless they wait.

    Args:
        modules: as they were loaded.
        move: to a device or a dtype, in place; called with each module, and with blocks that waited.
        holder: what has the modules among others and is moved in their place, such as a pipeline; None: nothing.
    """
    blocks = [block for module in modules for block in blocks_of(module)] if _waits else []
    with _without(modules, set(blocks)):
        for one in modules if holder is None else (holder,):
            move(one)
    for block in blocks:
        defer_move(block, move)


def defer_move(block: nn.Module, move: Callable[[nn.Module], object]) -> None:
    """Puts off what is to be done to a block until it arrives."""
    _waiting.setdefault(block, []).append(move)


def has_deferred_moves(module: nn.Module) -> bool:
    """Whether a block of it waits."""
    return any(part in _waiting for part in module.modules())


def run_deferred_moves(block: nn.Module) -> None:
    """Does to a block what was put off, in its order."""
    for move in _waiting.pop(block, ()):
        move(block)


@contextmanager
def _without(modules: Sequence[nn.Module], blocks: Collection[nn.Module]) -> Iterator[None]:
    """Within it modules seem to have no such blocks."""
    parents = [parent for module in modules for parent in module.modules()]
    places = [(p, name, child) for p in parents for name, child in p._modules.items() if child in blocks]
    for parent, name, _ in places:
        parent._modules[name] = None
    try:
        yield
    finally:
        for parent, name, child in places:
            parent._modules[name] = child
