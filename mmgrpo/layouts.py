"""How a parameter lies in parts on the processes of a run, whoever laid it so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.weak import WeakIdKeyDictionary

_laid: Any = WeakIdKeyDictionary()
"""The layout of each parameter that does not say itself how it lies."""


class Layout(Protocol):
    """Where the entries of a parameter are."""

    @property
    def shape(self) -> torch.Size:
        """Of the whole."""
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

    def part_of(self, value: Tensor) -> Tensor:
        """The inverse of ``whole``: what goes with this process's entries, without asking the others."""
        ...


@dataclass(frozen=True, slots=True)
class OnMesh:
    """As FSDP2 lays it: a DTensor."""

    mesh: Any
    placements: Any
    shape: torch.Size
    stride: tuple[int, ...]

    def part(self, parameter: Any) -> Tensor:
        """Its local tensor."""
        return parameter.detach().to_local()

    def gradient(self, parameter: Any) -> Tensor | None:
        """The local tensor of its gradient."""
        return None if parameter.grad is None else parameter.grad.to_local()

    def whole(self, value: Tensor) -> Tensor:
        """As ``Layout`` has it."""
        there = DTensor.from_local(
            value, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )
        return there.full_tensor()

    def part_of(self, value: Tensor) -> Tensor:
        """As ``Layout`` has it."""
        own = value.to(self.mesh.device_type)
        return distribute_tensor(own, self.mesh, self.placements, src_data_rank=None).to_local()


def lay(parameter: Tensor, layout: Layout) -> None:
    """Says how a parameter lies from now on."""
    _laid[parameter] = layout


def layout_of(parameter: Any) -> Layout | None:
    """How it lies in parts; None: this process holds the whole."""
    if isinstance(parameter, DTensor):
        return OnMesh(parameter.device_mesh, parameter.placements, parameter.shape, parameter.stride())
    return _laid.get(parameter)


def own_part(parameter: Tensor) -> Tensor:
    """What this process holds of a parameter, in the same memory: all of it, if that lies in no parts."""
    layout = layout_of(parameter)
    return parameter.detach() if layout is None else layout.part(parameter)
