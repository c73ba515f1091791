"""The memory that a process holds throughout a run, in bytes, computed from real or fake modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

from torch import Tensor, nn

from mmgrpo.layouts import blocks_of

STEP_BYTES = 4
"""AdamW has a float32 step counter per parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentMemory:
    """Resident bytes of each process.

    Attributes:
        trained: trained weights, float32: the local shard of those within blocks that FSDP2 shards, else all.
        frozen: frozen weights, including text encoders and autoencoder; sharded likewise.
        buffers: buffers of all modules, replicated.
        gradients: gradients of ``trained``, from the first slice of an update to its end.
        moments: state of the optimizer: of AdamW two moments per trained weight, and a step counter per parameter.
        average: moving average of the trained weights, if ``update.ema`` is set.
        copies: float32 copies of the weights and buffers of fully trained modules, one per name of saved weights
            including the reference. Adapters need none: they are switched off.
        weight_sets: the sets of ``update.weight_sets`` with their moments, and their averages: adapters, or copies.
    """

    trained: int
    frozen: int
    buffers: int
    gradients: int
    moments: int
    average: int
    copies: int
    weight_sets: int = 0

    @property
    def total(self) -> int:
        """The sum of all fields."""
        return sum(getattr(self, field.name) for field in fields(self))


def resident_memory(
    modules: Iterable[nn.Module],
    *,
    copied: Iterable[nn.Module] = (),
    sharded: Sequence[nn.Module] = (),
    num_processes: int = 1,
    averages: bool = False,
    num_copies: int = 0,
    num_sets: int = 0,
    num_set_averages: int = 0,
    moments_of: Callable[[Sequence[int]], int] | None = None,
    stored_bytes: Mapping[nn.Module, int] = MappingProxyType({}),
    offloaded: Sequence[nn.Module] = (),
) -> ResidentMemory:
    """The resident memory of a process; that of the largest shard if shards differ.

    Args:
        modules: all loaded modules, with the trained parameters requiring gradients.
        copied: fully trained modules of which copies are saved.
        sharded: modules that FSDP2 shards.
        num_processes: number of processes.
        averages: whether there is a moving average.
        num_copies: number of copies.
        num_sets: number of further trained weight sets.
        num_set_averages: number of averages of these.
        moments_of: shape of a trained weight -> bytes of the optimizer's state, for one that does not support sharding;
            None: AdamW.
        stored_bytes: bytes of the weights of quantized layers.
        offloaded: modules whose frozen layers wait on the host.

    Returns:
        Bytes of each kind.
    """
    modules = list(modules)
    sharded_ids = sharded_parameters_of(sharded) if num_processes > 1 else {}
    parameters = _unique(parameter for module in modules for parameter in module.parameters())
    stored_sizes = {id(layer.weight): num_bytes for layer, num_bytes in stored_bytes.items()}
    sizes = trained_sizes(modules, sharded=sharded, num_processes=num_processes)
    trained_bytes = sum(sizes)
    copied_parameters = _unique(parameter for module in copied for parameter in module.parameters())
    copy_bytes = sum(_local_size(parameter, sharded_ids, num_processes) for parameter in copied_parameters)
    copy_bytes += sum(map(_size, _unique(buffer for module in copied for buffer in module.buffers())))
    moments = (
        2 * trained_bytes + STEP_BYTES * len(sizes)
        if moments_of is None
        else sum(moments_of(parameter.shape) for parameter in parameters if parameter.requires_grad)
    )
    return ResidentMemory(
        trained=trained_bytes,
        frozen=sum(
            stored_sizes.get(id(p), _local_size(p, sharded_ids, num_processes))
            for p in parameters
            if not p.requires_grad
        )
        - sum(frozen_in_layers(offloaded)),
        buffers=sum(map(_size, _unique(buffer for module in modules for buffer in module.buffers()))),
        gradients=trained_bytes,
        moments=moments,
        average=trained_bytes if averages else 0,
        copies=num_copies * copy_bytes,
        weight_sets=num_sets * moments + (num_sets + num_set_averages) * (copy_bytes or trained_bytes),
    )


def frozen_in_layers(modules: Iterable[nn.Module]) -> list[int]:
    """Bytes of the frozen weights in each block of modules; a block within another one counts as part of it."""
    blocks = [block for module in modules for block in blocks_of(module)]
    inner = {part for block in blocks for part in block.modules() if part is not block}
    return [
        sum(_size(parameter) for parameter in _unique(block.parameters()) if not parameter.requires_grad)
        for block in blocks
        if block not in inner
    ]


def trained_sizes(
    modules: Iterable[nn.Module], *, sharded: Sequence[nn.Module] = (), num_processes: int = 1
) -> list[int]:
    """Local bytes of each trained parameter, as in ``resident_memory``."""
    sharded_ids = sharded_parameters_of(sharded) if num_processes > 1 else {}
    parameters = _unique(parameter for module in modules for parameter in module.parameters())
    return [_local_size(p, sharded_ids, num_processes) for p in parameters if p.requires_grad]


def sharded_parameters_of(sharded: Iterable[nn.Module]) -> dict[int, Tensor]:
    """The parameters that FSDP2 shards, by id: those within blocks, except those of adapters."""
    sharded_parameters: dict[int, Tensor] = {}
    for module in sharded:
        parameters = list(module.parameters())
        trained = {id(p) for p in parameters if p.requires_grad}
        replicated = trained if len(trained) != len(parameters) else set()
        sharded_parameters |= {
            id(p): p for block in blocks_of(module) for p in block.parameters() if id(p) not in replicated
        }
    return sharded_parameters


def gathered_bytes(sharded: Iterable[nn.Module]) -> int:
    """Bytes of the two largest consecutive blocks, gathered: one computes while the next one is prefetched."""
    sizes = block_sizes(sharded)
    return max((size + following for size, following in zip(sizes, [*sizes[1:], 0], strict=False)), default=0)


def block_sizes(sharded: Iterable[nn.Module]) -> list[int]:
    """Gathered bytes of each sharded block."""
    modules = list(sharded)
    sharded_ids = sharded_parameters_of(modules)
    return [
        sum(_size(parameter) for parameter in _unique(block.parameters()) if id(parameter) in sharded_ids)
        for module in modules
        for block in blocks_of(module)
    ]


def _local_size(parameter: Tensor, sharded_ids: Mapping[int, Tensor], num_processes: int) -> int:
    """Bytes of the largest shard: FSDP2 splits the first axis in equal pieces, rounded up."""
    if id(parameter) not in sharded_ids or parameter.dim() == 0:
        return _size(parameter)
    rows = -(-parameter.shape[0] // num_processes)
    return rows * (parameter.numel() // max(parameter.shape[0], 1)) * parameter.element_size()


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())
