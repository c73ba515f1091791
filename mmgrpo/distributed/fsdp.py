"""Weights sharded by FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Any, final

from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from mmgrpo.errors import ConfigError


@final
class FSDP2:
    """FSDP2 under Accelerate's settings: ``WeightSharder``.

    Attributes:
        name: name for messages and checkpoints.
        shards_frozen_bases: whether a frozen model that carries an adapter is sharded.
        shards_compiled: whether compiled blocks are sharded.
    """

    name = "FSDP2"
    shards_frozen_bases = True
    shards_compiled = True

    def __init__(self, accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin) -> None:
        """Checks the settings; shards nothing yet.

        Args:
            accelerator: Accelerate's view of the processes.
            plugin: Accelerate's FSDP settings.

        Raises:
            ConfigError: the settings ask for FSDP version 1.
        """
        if plugin.fsdp_version != 2:
            raise ConfigError(
                "FSDP's first version is not supported: set fsdp_version: 2 in accelerate's configuration"
            )
        self._accelerator = accelerator
        self._plugin = plugin

    def shard_blocks(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        replicated: set[nn.Parameter],
        *,
        before_block: Callable[[nn.Module], None],
    ) -> None:
        """Shards the parameters of the blocks."""
        offload, precision = self._plugin.cpu_offload, self._plugin.mixed_precision_policy
        for part in (*reversed(blocks), module):  # inner blocks first
            if part is not module:
                before_block(part)
            fully_shard(
                part,
                mesh=self._mesh,
                reshard_after_forward=True,  # weights gathered before an optimizer step would be stale after it
                offload_policy=offload if isinstance(offload, OffloadPolicy) else OffloadPolicy(),
                mp_policy=precision if isinstance(precision, MixedPrecisionPolicy) else MixedPrecisionPolicy(),
                ignored_params=replicated,
            )
            _sum_gradients(part)
            _restore_class_name(part)
        _fix_prefetches(blocks)

    @contextmanager
    def gathered(self, modules: Collection[nn.Module]) -> Iterator[None]:
        """Context in which every process holds these modules in full."""
        parts = [part for module in modules for part in module.modules() if isinstance(part, FSDPModule)]
        for part in parts:
            part.unshard()
        try:
            with _no_reshard(parts):
                yield
        finally:
            for part in parts:
                part.reshard()

    @cached_property
    def _mesh(self) -> DeviceMesh:
        return init_device_mesh(self._accelerator.device.type, (self._accelerator.num_processes,))


@contextmanager
def _no_reshard(parts: Sequence[FSDPModule]) -> Iterator[None]:
    """Context in which gathered weights are not freed after a call."""
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.set_reshard_after_backward(False, recurse=False)
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.set_reshard_after_backward(True, recurse=False)


def _fix_prefetches(blocks: Sequence[Any]) -> None:
    """Makes each block gather the one before it ahead of its backward, and the first one none.

    By default FSDP2 gathers the block called before, as it recorded in all forwards since the last backward, those of
    sampling among them: processes that sampled with different numbers of calls would gather different blocks.
    """
    for before, block in pairwise((blocks[0], *blocks)):  # at its own backward the first is gathered already
        block.set_modules_to_backward_prefetch([before])


def _sum_gradients(part: Any) -> None:
    """Sets FSDP2 to sum gradients over the processes, as for replicated weights, instead of averaging them."""
    part.set_gradient_divide_factor(1.0)
    part.set_force_sum_reduction_for_comms(True)


def _restore_class_name(part: nn.Module) -> None:
    """Gives FSDP2's subclass the name of the original class, which saved files contain."""
    type(part).__name__ = type(part).__mro__[2].__name__
