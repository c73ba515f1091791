"""Modules whose weights lie in parts on the processes of a run: FSDP2, as Accelerate is asked for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from weakref import ref

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, gather_object
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from mmgrpo.differentiating import join
from mmgrpo.errors import ConfigError
from mmgrpo.policy import Arguments
from mmgrpo.run.turns import Turns

_of_these: list[Sharding] = []
"""The one of these processes, if it was asked for."""


class Sharding:
    """What shards the modules of a run.

    Attributes:
        turns: the order of the calls of sharded modules, which whatever else the processes do together waits for.
        trains: whether what is trained lies in parts, and not only what is frozen.
    """

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
        self.turns = Turns(accelerator)
        self.trains = False
        self._trained: list[ref[nn.Module]] = []

    def shard(self, name: str, module: nn.Module, *, empty: Callable[[], Arguments] | None = None) -> None:
        """Shards a module in place, block by block: ``Shard``. A collective.

        What is in no block stays whole on every process, as the embeddings of tokens, which output heads may share, and
        so do the few trained parameters of an adapter. Gradients of other trained parameters are summed over the
        processes, never averaged.

        Args:
            name: of the module, for messages.
            module: all of it trained, all of it frozen, or frozen with an adapter.
            empty: arguments of a call that is made for other processes' sake; None: those of the last call.

        Raises:
            ConfigError: it does not say what its blocks are, or the processes have loaded other weights.
        """
        trained = {parameter for parameter in module.parameters() if parameter.requires_grad}
        has_adapter = len(trained) not in (0, sum(1 for _ in module.parameters()))
        kinds = set(getattr(module, "_no_split_modules", None) or ())
        blocks = [part for part in module.modules() if type(part).__name__ in kinds]
        if not blocks:
            raise ConfigError(f"{name}: {type(module).__name__} names no blocks (_no_split_modules) to shard it by")
        whole = set(module.parameters()) - {p for block in blocks for p in block.parameters()}
        whole |= trained if has_adapter else set()
        if trained:  # else it is a copy that will be filled
            self._require_same(name, [p for p in module.parameters() if p not in whole])
        offload, precision = self._plugin.cpu_offload, self._plugin.mixed_precision_policy
        for part in (*reversed(blocks), module):  # a block's own blocks before it
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
        if trained:
            self._trained.append(ref(module))
        self.trains |= bool(trained - whole)
        self.turns.share(module, empty, gathers_state=not has_adapter)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it modules that are trained are whole on every process, and called as if they were not shared.

        For drawing, which calls them often, and on each process another number of times; no weight may move within it.
        A collective where it begins. What is frozen (the reference, averages) stays in parts.
        """
        modules = [module for module in (one() for one in self._trained) if module is not None]
        parts = [part for module in modules for part in module.modules() if isinstance(part, FSDPModule)]
        self.turns.meet()
        for part in parts:
            part.unshard()
        try:
            with _kept_whole(parts), self.turns.without(modules):
                yield
        finally:
            for part in parts:
                part.reshard()

    @cached_property
    def _mesh(self) -> DeviceMesh:
        return init_device_mesh(self._accelerator.device.type, (self._accelerator.num_processes,))

    def _require_same(self, name: str, parameters: Sequence[nn.Parameter]) -> None:
        self.turns.meet()
        found = gather_object([[float(p.detach().sum(dtype=torch.float64)) for p in parameters]])
        if any(other != found[0] for other in found):
            raise ConfigError(
                f"{name}: the processes have loaded different weights; set fsdp_cpu_ram_efficient_loading: false in "
                "accelerate's settings (--fsdp_cpu_ram_efficient_loading false), so that each loads them all"
            )


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


def is_asked() -> bool:
    """Whether accelerate was asked to shard."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def sharding_of(accelerator: Accelerator) -> Sharding | None:
    """The sharding that accelerate was asked for, one for all who ask of these processes; None where it was not, or
    there is one process.

    Raises: ConfigError for a form of it that is not supported.
    """
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        raise ConfigError(
            "accelerate's settings ask for DeepSpeed, which is not supported: use FSDP2 (use_fsdp, fsdp_version 2)"
        )
    if accelerator.num_processes == 1 or not is_asked():
        _of_these.clear()
        join(list)
    elif not _of_these:
        asked = accelerator.state.fsdp_plugin if accelerator.distributed_type == DistributedType.FSDP else None
        _of_these.append(Sharding(accelerator, asked or FullyShardedDataParallelPlugin()))
    return _of_these[0] if _of_these else None
