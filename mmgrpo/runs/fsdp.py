"""Weights in parts as FSDP2 lays them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, final

from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from mmgrpo.errors import ConfigError


@final
class FSDP2:
    """FSDP2, as accelerate is asked for it: ``Engine``.

    Attributes:
        name: what it is called.
        parts_bases: whether what carries an adapter lies in parts.
    """

    name = "FSDP2"
    parts_bases = True

    def __init__(self, accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin) -> None:
        """Nothing is sharded yet.

        Args:
            accelerator: accelerate's view of the processes.
            plugin: how it was asked to shard.

        Raises:
            ConfigError: for FSDP's first version.
        """
        if plugin.fsdp_version != 2:
            raise ConfigError(
                "FSDP's first version is not supported: set fsdp_version: 2 in accelerate's configuration"
            )
        self._accelerator = accelerator
        self._plugin = plugin

    def part(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        whole: set[nn.Parameter],
        *,
        ready: Callable[[nn.Module], None],
    ) -> None:
        """Lays the parameters of the blocks in parts."""
        offload, precision = self._plugin.cpu_offload, self._plugin.mixed_precision_policy
        for part in (*reversed(blocks), module):  # a block's own blocks before it
            if part is not module:
                ready(part)
            fully_shard(
                part,
                mesh=self._mesh,
                reshard_after_forward=True,  # what was gathered before a step would be the weights before it
                offload_policy=offload if isinstance(offload, OffloadPolicy) else OffloadPolicy(),
                mp_policy=precision if isinstance(precision, MixedPrecisionPolicy) else MixedPrecisionPolicy(),
                ignored_params=whole,
            )
            _sum_gradients(part)
            _keep_name(part)

    @contextmanager
    def gathered(self, modules: Collection[nn.Module]) -> Iterator[None]:
        """Within it these are whole on every process."""
        parts = [part for module in modules for part in module.modules() if isinstance(part, FSDPModule)]
        for part in parts:
            part.unshard()
        try:
            with _kept_whole(parts):
                yield
        finally:
            for part in parts:
                part.reshard()

    @cached_property
    def _mesh(self) -> DeviceMesh:
        return init_device_mesh(self._accelerator.device.type, (self._accelerator.num_processes,))


@contextmanager
def _kept_whole(parts: Sequence[FSDPModule]) -> Iterator[None]:
    """Within it what was gathered is not let go after it was called."""
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.set_reshard_after_backward(False, recurse=False)
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.set_reshard_after_backward(True, recurse=False)


def _sum_gradients(part: Any) -> None:
    """Has its gradients summed over the processes, as those of whole weights are, and not averaged."""
    part.set_gradient_divide_factor(1.0)
    part.set_force_sum_reduction_for_comms(True)


def _keep_name(part: nn.Module) -> None:
    """Has the class that FSDP2 gives it go by the name that files know it by."""
    type(part).__name__ = type(part).__mro__[2].__name__
