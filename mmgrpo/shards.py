"""Sharded tensors on disk: each process writes its piece of each tensor to one safetensors file.

A piece is a run of consecutive entries of the flattened tensor, so that any number of processes with any layout can
read exactly the entries that it needs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mmgrpo.errors import CheckpointError
from mmgrpo.layouts import layout_of, local_part

PIECES = "pieces"
"""Key of the file's metadata: [start, *shape of the full tensor] of each piece, as JSON."""

_NAME = re.compile(r"shard-(\d{5})-of-(\d{5})\.safetensors")

_savers: WeakKeyDictionary[nn.Module, Callable[[Path], None]] = WeakKeyDictionary()
"""For each sharded module, the function by which all processes write it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive entries of a tensor.

    Attributes:
        value: the entries, in any shape.
        start: offset in the flattened tensor.
        shape: shape of the full tensor.
    """

    value: Tensor
    start: int
    shape: torch.Size


@dataclass(slots=True)
class Stored:
    """A tensor in the files of a folder, read on demand.

    Attributes:
        name: its name in the files.
        shape: shape of the full tensor.
    """

    name: str
    shape: torch.Size
    _pieces: list[tuple[int, int, Any]] = field(default_factory=list)  # start, length, the open file

    def entries(self, start: int, length: int) -> Tensor:
        """Consecutive entries, flat, on the CPU. Raises CheckpointError if the files do not contain all of them."""
        slices: list[Tensor] = []
        end = start + length
        for offset, size, file in sorted(self._pieces, key=lambda piece: piece[:2]):
            low, high = max(start, offset), min(end, offset + size)
            if low < high:
                slices.append(file.get_slice(self.name)[low - offset : high - offset])
                start = high
        if sum(map(len, slices)) != length:
            raise CheckpointError(f"{self.name} is incomplete: a file is missing or of another checkpoint")
        return torch.cat(slices) if slices else torch.empty(0)

    def full_tensor(self) -> Tensor:
        """The full tensor, on the CPU."""
        return self.entries(0, math.prod(self.shape)).view(self.shape)


def shard_name(process: int, num_processes: int) -> str:
    """The file name of a process, by its number from 0."""
    return f"shard-{process:05d}-of-{num_processes:05d}.safetensors"


def writer_of(name: str) -> int | None:
    """The process that writes a file of that name; None: the name is not of this form."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match.group(1))


def is_sharded(folder: Path) -> bool:
    """Whether a folder contains files of this form."""
    return any(writer_of(path.name) is not None for path in folder.glob("shard-*.safetensors"))


def write_shard(folder: Path, pieces: Mapping[str, Piece], *, process: int, num_processes: int) -> None:
    """Writes one process's file, even without pieces.

    Args:
        folder: an existing folder, the same for all processes.
        pieces: the pieces of this process, by name.
        process: its number.
        num_processes: number of processes that write.
    """
    nonempty = {name: piece for name, piece in pieces.items() if piece.value.numel()}
    header = {PIECES: json.dumps({name: [piece.start, *piece.shape] for name, piece in nonempty.items()})}
    tensors = {name: piece.value.detach().flatten().to("cpu", copy=True) for name, piece in nonempty.items()}
    save_file(tensors, folder / shard_name(process, num_processes), header)


def read_shards(folder: Path) -> dict[str, Stored]:
    """The tensors in the files of a folder.

    Args:
        folder: the folder in which all processes wrote.

    Returns:
        The tensors by name, none of them read yet.

    Raises:
        CheckpointError: a file is missing, or cannot be read.
    """
    paths = sorted(path for path in folder.glob("shard-*.safetensors") if writer_of(path.name) is not None)
    if not paths:
        raise CheckpointError(f"{folder} contains no shard-*.safetensors")
    count = int(paths[0].stem.rpartition("-")[2])
    expected = [folder / shard_name(process, count) for process in range(count)]
    if paths != expected:
        unexpected = ", ".join(sorted(path.name for path in {*paths} ^ {*expected}))
        raise CheckpointError(f"{folder} does not contain the files of {count} processes: see {unexpected}")
    stored: dict[str, Stored] = {}
    for path in paths:
        try:
            file: Any = safe_open(path, framework="pt")
            for name, (start, *shape) in json.loads((file.metadata() or {})[PIECES]).items():
                tensor = stored.setdefault(name, Stored(name, torch.Size(shape)))
                (length,) = file.get_slice(name).get_shape()
                if list(tensor.shape) != shape or not 0 <= start <= start + length <= math.prod(shape):
                    raise ValueError(f"{name} has another shape in another file")
                tensor._pieces.append((start, length, file))
        except Exception as error:  # errors of damaged or foreign files
            raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    return stored


def save_with(module: nn.Module, save: Callable[[Path], None]) -> None:
    """Registers the function by which all processes write a sharded module, for ``save_module``."""
    _savers[module] = save


def save_module(module: nn.Module, folder: Path) -> bool:
    """Writes a module on all processes, if it is sharded; ``load_module`` reads it.

    Args:
        module: a module of a policy.
        folder: an existing folder that all processes see.

    Returns:
        Whether it was written; an unsharded module is left to its own library.

    Raises:
        OSError: a process could not write.
    """
    save = _savers.get(module)
    if save is not None:
        save(folder)
    return save is not None


def pieces_of(module: nn.Module, *, is_complete: bool) -> dict[str, Piece]:
    """This process's pieces of a module, by the names of its state dict; tied tensors once.

    Args:
        module: a module with at least one sharded parameter.
        is_complete: whether to include tensors that every process has in full.

    Returns:
        The pieces.
    """
    pieces: dict[str, Piece] = {}
    for name, tensor in _named(module):
        layout = layout_of(tensor)
        if layout is not None:
            pieces[name] = Piece(layout.part(tensor), layout.start, layout.shape)
        elif is_complete:
            pieces[name] = Piece(tensor, 0, tensor.shape)
    return pieces


@torch.no_grad()
def load_module(module: nn.Module, folder: Path) -> None:
    """Restores the files of ``save_module`` into a module that is unsharded or has any layout.

    Args:
        module: a module of the same class.
        folder: the folder of ``save_module``.

    Raises:
        CheckpointError: the files are damaged, or of another model.
    """
    stored, tensors = read_shards(folder), dict(_named(module))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    shapes |= {name: layout.shape for name, tensor in tensors.items() if (layout := layout_of(tensor)) is not None}
    different = sorted(
        {name for name, _ in shapes.items() ^ {name: tensor.shape for name, tensor in stored.items()}.items()}
    )
    if different:
        raise CheckpointError(f"{folder} is of another model; it differs at {', '.join(different[:3])}")
    for name, tensor in tensors.items():
        part, layout = local_part(tensor), layout_of(tensor)
        part.copy_(stored[name].entries(0 if layout is None else layout.start, part.numel()).view(part.shape))


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers, each once."""
    yield from module.named_parameters()
    passing = {
        f"{prefix}.{name}" if prefix else name
        for prefix, submodule in module.named_modules()
        for name in submodule._non_persistent_buffers_set
    }
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name not in passing)
