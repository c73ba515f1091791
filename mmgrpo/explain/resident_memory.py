"""What a process holds from the first step to the last, in bytes, told from modules: real ones or outlines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from torch import Tensor, nn

from mmgrpo.layouts import blocks_of

STEP_BYTES = 4
"""AdamW counts the steps of each parameter by a float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentMemory:
    """Bytes that stay on each process.

    Attributes:
        trained: weights that are trained, float32: its part of those within blocks where FSDP2 shards them, else all.
        frozen: weights that are not, text encoders and autoencoder included: in parts likewise.
        buffers: of all modules, whole.
        gradients: one number for each of ``trained``, from the first slice of an update to its end.
        moments: two for each, and a count of steps for each parameter: AdamW.
        average: one for each where ``update.ema`` is set.
        copies: of modules that are trained in full, for each name that weights are kept under, the reference among
            them: all their weights and buffers, in float32. Adapters need none: they are switched off.
    """

    trained: int
    frozen: int
    buffers: int
    gradients: int
    moments: int
    average: int
    copies: int

    @property
    def total(self) -> int:
        """Of all of them."""
        return sum(getattr(self, one.name) for one in fields(self))


def held_by(
    modules: Iterable[nn.Module],
    *,
    copied: Iterable[nn.Module] = (),
    sharded: Sequence[nn.Module] = (),
    num_processes: int = 1,
    averages: bool = False,
    num_copies: int = 0,
) -> ResidentMemory:
    """What each process holds; the largest part, where parts are not alike.

    Args:
        modules: everything that is loaded, as the policy trains it.
        copied: what is trained in full and kept in copies.
        sharded: what FSDP2 has sharded.
        num_processes: of the run.
        averages: whether an average is kept.
        num_copies: names that weights are kept under.

    Returns:
        Bytes of each kind.
    """
    modules = list(modules)
    parted = parted_of(sharded) if num_processes > 1 else {}
    parameters = _unique(parameter for module in modules for parameter in module.parameters())
    sizes = trained_sizes(modules, sharded=sharded, num_processes=num_processes)
    of_trained = sum(sizes)
    kept = _unique(one for module in copied for one in module.parameters())
    of_kept = sum(_part(one, parted, num_processes) for one in kept)
    of_kept += sum(map(_size, _unique(one for module in copied for one in module.buffers())))
    return ResidentMemory(
        trained=of_trained,
        frozen=sum(_part(one, parted, num_processes) for one in parameters if not one.requires_grad),
        buffers=sum(map(_size, _unique(one for module in modules for one in module.buffers()))),
        gradients=of_trained,
        moments=2 * of_trained + STEP_BYTES * len(sizes),
        average=of_trained if averages else 0,
        copies=num_copies * of_kept,
    )


def trained_sizes(
    modules: Iterable[nn.Module], *, sharded: Sequence[nn.Module] = (), num_processes: int = 1
) -> list[int]:
    """Bytes that a process holds of each parameter that is trained, as ``held_by`` counts them."""
    parted = parted_of(sharded) if num_processes > 1 else {}
    parameters = _unique(parameter for module in modules for parameter in module.parameters())
    return [_part(one, parted, num_processes) for one in parameters if one.requires_grad]


def parted_of(sharded: Iterable[nn.Module]) -> dict[int, Tensor]:
    """The parameters that FSDP2 lays in parts, by id: those within blocks, but for an adapter's."""
    found: dict[int, Tensor] = {}
    for module in sharded:
        parameters = list(module.parameters())
        trained = {id(one) for one in parameters if one.requires_grad}
        whole = trained if len(trained) != len(parameters) else set()
        found |= {id(p): p for block in blocks_of(module) for p in block.parameters() if id(p) not in whole}
    return found


def gathered_bytes(sharded: Iterable[nn.Module]) -> int:
    """Bytes of the two largest blocks that follow each other, whole: one is computed with while the next one comes."""
    sizes = block_sizes(sharded)
    return max((one + following for one, following in zip(sizes, [*sizes[1:], 0], strict=False)), default=0)


def block_sizes(sharded: Iterable[nn.Module]) -> list[int]:
    """Bytes of each block that is gathered, whole."""
    modules = list(sharded)
    parted = parted_of(modules)
    return [
        sum(_size(one) for one in _unique(block.parameters()) if id(one) in parted)
        for module in modules
        for block in blocks_of(module)
    ]


def _part(parameter: Tensor, parted: Mapping[int, Tensor], num_processes: int) -> int:
    """Bytes of its largest part: FSDP2 splits the first axis in equal pieces, rounded up."""
    if id(parameter) not in parted or parameter.dim() == 0:
        return _size(parameter)
    rows = -(-parameter.shape[0] // num_processes)
    return rows * (parameter.numel() // max(parameter.shape[0], 1)) * parameter.element_size()


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(one): one for one in tensors}.values())
