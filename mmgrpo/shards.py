"""Tensors on the disk as they lie on the processes of a run: of each tensor a piece, one safetensors file a process.

A piece is consecutive entries of the whole, row by row, so that any number of processes, with any layout, reads what it
will hold and no more.
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
"""Of the file's metadata: [start, *shape of the whole] of each piece, as JSON."""

_NAME = re.compile(r"shard-(\d{5})-of-(\d{5})\.safetensors")

_savers: WeakKeyDictionary[nn.Module, Callable[[Path], None]] = WeakKeyDictionary()
"""What has all processes write each module that lies in parts."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive entries of a tensor.

    Attributes:
        value: the entries, in any shape.
        start: how many of the whole are before them.
        shape: of the whole.
    """

    value: Tensor
    start: int
    shape: torch.Size


@dataclass(slots=True)
class Stored:
    """A tensor in the files of a folder, of which nothing was read yet.

    Attributes:
        name: what it is stored under.
        shape: of the whole.
    """

    name: str
    shape: torch.Size
    _pieces: list[tuple[int, int, Any]] = field(default_factory=list)  # start, length, the open file

    def entries(self, start: int, length: int) -> Tensor:
        """Consecutive entries, flat, on the CPU. Raises CheckpointError if the files do not hold them all."""
        found: list[Tensor] = []
        end = start + length
        for at, size, file in sorted(self._pieces, key=lambda piece: piece[:2]):
            low, high = max(start, at), min(end, at + size)
            if low < high:
                found.append(file.get_slice(self.name)[low - at : high - at])
                start = high
        if sum(map(len, found)) != length:
            raise CheckpointError(f"{self.name} is stored in part only: a file is missing or of another checkpoint")
        return torch.cat(found) if found else torch.empty(0)

    def whole(self) -> Tensor:
        """All of it, on the CPU."""
        return self.entries(0, math.prod(self.shape)).view(self.shape)


def shard_name(process: int, num_processes: int) -> str:
    """The file of a process, by its number from 0."""
    return f"shard-{process:05d}-of-{num_processes:05d}.safetensors"


def writer_of(name: str) -> int | None:
    """The process whose file goes by that name; None: it is none of these files."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found.group(1))


def is_sharded(folder: Path) -> bool:
    """Whether a folder holds files of this form."""
    return any(writer_of(path.name) is not None for path in folder.glob("shard-*.safetensors"))


def write_shard(folder: Path, pieces: Mapping[str, Piece], *, process: int, num_processes: int) -> None:
    """Writes one process's file, also where it holds nothing.

    Args:
        folder: an existing one, the same for all.
        pieces: what the process holds, by name.
        process: its number.
        num_processes: how many write.
    """
    own = {name: piece for name, piece in pieces.items() if piece.value.numel()}
    header = {PIECES: json.dumps({name: [piece.start, *piece.shape] for name, piece in own.items()})}
    tensors = {name: piece.value.detach().flatten().to("cpu", copy=True) for name, piece in own.items()}
    save_file(tensors, folder / shard_name(process, num_processes), header)


def read_shards(folder: Path) -> dict[str, Stored]:
    """What the files of a folder hold together.

    Args:
        folder: in which all processes wrote.

    Returns:
        The tensors by name, none of them read.

    Raises:
        CheckpointError: a file is missing, or cannot be read.
    """
    paths = sorted(path for path in folder.glob("shard-*.safetensors") if writer_of(path.name) is not None)
    if not paths:
        raise CheckpointError(f"{folder} holds no shard-*.safetensors")
    count = int(paths[0].stem.rpartition("-")[2])
    wanted = [folder / shard_name(process, count) for process in range(count)]
    if paths != wanted:
        odd = ", ".join(sorted(path.name for path in {*paths} ^ {*wanted}))
        raise CheckpointError(f"{folder} does not hold the files of {count} processes: see {odd}")
    stored: dict[str, Stored] = {}
    try:
        for path in paths:
            file: Any = safe_open(path, framework="pt")
            for name, (start, *shape) in json.loads((file.metadata() or {})[PIECES]).items():
                one = stored.setdefault(name, Stored(name, torch.Size(shape)))
                (length,) = file.get_slice(name).get_shape()
                if list(one.shape) != shape or not 0 <= start <= start + length <= math.prod(shape):
                    raise ValueError(f"{name} has another shape elsewhere")
                one._pieces.append((start, length, file))
    except Exception as error:  # whatever is said of files that nobody here has written
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    return stored


def save_with(module: nn.Module, save: Callable[[Path], None]) -> None:
    """Says who has all processes write a module that lies in parts, for ``save_module``."""
    _savers[module] = save


def save_module(module: nn.Module, folder: Path) -> bool:
    """Has all processes write what they hold of a module, if it lies in parts; ``load_module`` reads it.

    Args:
        module: of a policy.
        folder: an existing one, which all processes see.

    Returns:
        Whether it was written; a module that this process holds whole is left to its own library.

    Raises:
        OSError: a process could not write.
    """
    save = _savers.get(module)
    if save is not None:
        save(folder)
    return save is not None


def pieces_of(module: nn.Module, *, whole: bool) -> dict[str, Piece]:
    """What this process holds of a module, by the names of its state dict; what is tied, once.

    Args:
        module: of which at least one parameter lies in parts.
        whole: whether what every process holds is among it.

    Returns:
        The pieces.
    """
    pieces: dict[str, Piece] = {}
    for name, tensor in _named(module):
        layout = layout_of(tensor)
        if layout is not None:
            pieces[name] = Piece(layout.part(tensor), layout.start, layout.shape)
        elif whole:
            pieces[name] = Piece(tensor, 0, tensor.shape)
    return pieces


@torch.no_grad()
def load_module(module: nn.Module, folder: Path) -> None:
    """Restores what ``save_module`` wrote, into a module that is whole or lies in parts in whatever way.

    Args:
        module: of the same kind.
        folder: of ``save_module``.

    Raises:
        CheckpointError: the files are damaged, or of another model.
    """
    stored, own = read_shards(folder), dict(_named(module))
    shapes = {name: tensor.shape for name, tensor in own.items()}
    shapes |= {name: layout.shape for name, tensor in own.items() if (layout := layout_of(tensor)) is not None}
    odd = sorted({name for name, _ in shapes.items() ^ {name: one.shape for name, one in stored.items()}.items()})
    if odd:
        raise CheckpointError(f"{folder} is of another model; it differs at {', '.join(odd[:3])}")
    for name, tensor in own.items():
        part, layout = local_part(tensor), layout_of(tensor)
        part.copy_(stored[name].entries(0 if layout is None else layout.start, part.numel()).view(part.shape))


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and stored buffers, each once."""
    yield from module.named_parameters()
    passing = {
        f"{prefix}.{name}" if prefix else name
        for prefix, one in module.named_modules()
        for name in one._non_persistent_buffers_set
    }
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name not in passing)
