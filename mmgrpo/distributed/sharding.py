"""Modules sharded over the processes of a run by FSDP2 or DeepSpeed, as Accelerate's settings ask."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol
from weakref import ref

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, DistributedType, FullyShardedDataParallelPlugin, gather_object
from torch import nn

from mmgrpo.differentiating import join
from mmgrpo.distributed.call_order import CallOrder
from mmgrpo.errors import ConfigError
from mmgrpo.layouts import blocks_of, layout_of, run_deferred_moves
from mmgrpo.policy import Arguments
from mmgrpo.system.extras import required

_sharding: list[Sharding] = []
"""The sharding of this process; empty without one."""


class WeightSharder(Protocol):
    """Shards weights, and gathers them where they are called."""

    @property
    def name(self) -> str:
        """Name for messages and checkpoints."""
        ...

    @property
    def shards_frozen_bases(self) -> bool:
        """Whether a frozen model that carries an adapter is sharded."""
        ...

    @property
    def shards_compiled(self) -> bool:
        """Whether compiled blocks are sharded."""
        ...

    def shard_blocks(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        replicated: set[nn.Parameter],
        *,
        before_block: Callable[[nn.Module], None],
    ) -> None:
        """Shards the parameters of a module's blocks, except the replicated ones; a collective.

        Each backward sums their gradients over the processes, without averaging. ``before_block`` is called with each
        block right before it is sharded, inner blocks first, so that a block may be moved to the device at that point.
        """
        ...

    def gathered(self, modules: Collection[nn.Module]) -> AbstractContextManager[None]:
        """Context in which every process holds these modules in full; entering it is a collective."""
        ...


class Sharding:
    """Shards the modules of a run.

    Attributes:
        call_order: orders the calls of sharded modules; every other collective waits for it.
        trains: whether trained weights are sharded, and not only frozen ones.
    """

    def __init__(self, accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin | DeepSpeedPlugin) -> None:
        """Checks the settings; shards nothing yet.

        Args:
            accelerator: Accelerate's view of the processes.
            plugin: Accelerate's sharding settings.

        Raises:
            ConfigError: the settings are not supported.
            MissingPackageError: the settings ask for DeepSpeed, which is not installed.
        """
        self._engine = _make_engine(accelerator, plugin)
        self.call_order = CallOrder(accelerator)
        self.trains = False
        self._trained: list[ref[nn.Module]] = []

    @property
    def engine(self) -> str:
        """Name of the sharding engine."""
        return self._engine.name

    def shard(
        self,
        name: str,
        module: nn.Module,
        *,
        empty: Callable[[], Arguments] | None = None,
        within: nn.Module | None = None,
    ) -> None:
        """Shards a module in place, block by block: ``ModuleSharder``. A collective.

        Parameters outside the blocks stay replicated on every process, such as token embeddings, which output heads may
        share; so do the few trained parameters of an adapter. Gradients of other trained parameters are summed over the
        processes, never averaged.

        Args:
            name: name of the module, for messages.
            module: fully trained, fully frozen, or frozen with an adapter.
            empty: makes the arguments of an empty call, issued so that other processes can proceed; None: those of the
                last call.
            within: the module that contains it and is saved as one; None: itself.

        Raises:
            ConfigError: the module names no blocks, is compiled but not block by block, or the processes loaded
                different weights.
        """
        has_adapter = len({parameter.requires_grad for parameter in module.parameters()}) > 1
        blocks = blocks_of(module)
        if not blocks:
            raise ConfigError(
                f"{name} cannot be sharded: {type(module).__name__} names no blocks; list their classes in "
                "_no_split_modules"
            )
        self._require_compiled_blocks(name, module, blocks)
        sharded = {id(p) for block in blocks for p in block.parameters() if not (has_adapter and p.requires_grad)}
        replicated = {p for p in module.parameters() if id(p) not in sharded}  # sharded ones are freed block by block
        is_trained = has_adapter or any(p.requires_grad for p in module.parameters())
        if has_adapter and not self._engine.shards_frozen_bases:
            return
        sums: list[float] = []

        def before_block(block: nn.Module) -> None:
            run_deferred_moves(block)
            new = [p for p in block.parameters() if p not in replicated and layout_of(p) is None]
            sums.extend(float(p.detach().sum(dtype=torch.float64)) for p in new)

        self._engine.shard_blocks(module, blocks, replicated, before_block=before_block)
        if is_trained:  # else it is a copy that will be filled
            self._require_same_weights(name, sums)
            self._trained.append(ref(module))
        self.trains |= is_trained and not has_adapter
        self.call_order.add(module, empty, gathers_state=not has_adapter, within=within)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Context in which every process holds the trained modules in full, and calls them independently.

        For sampling, which calls them often and unequally often on each process. Weights must not change within it.
        Entering and leaving is a collective. Frozen modules (the reference, averages) stay sharded.
        """
        self.call_order.finish()
        trained = [module_ref() for module_ref in self._trained]
        exists_everywhere = map(all, zip(*gather_object([[module is not None for module in trained]]), strict=True))
        pairs = zip(trained, exists_everywhere, strict=True)
        modules = [module for module, exists in pairs if module is not None and exists]
        with self._engine.gathered(modules), self.call_order.without(modules):
            try:
                yield
            finally:
                self.call_order.finish()  # an empty call needs the same gathered weights as the call that it answers

    def _require_compiled_blocks(self, name: str, module: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Raises ConfigError for compiled code that calls sharded blocks, or that the engine does not shard."""
        compiled = {
            part
            for part in module.modules()
            if part._compiled_call_impl is not None or getattr(part.forward, "is_compiled", False)
        }
        within_blocks = {part for block in blocks for part in block.modules()}
        if compiled and not self._engine.shards_compiled:
            raise ConfigError(f"policy.compile does not support {self.engine}: use FSDP2, or remove it")
        if compiled - within_blocks:
            raise ConfigError(
                f"policy.compile does not support sharding the {name}: {type(module).__name__} is compiled as one "
                "module, not block by block; remove it"
            )

    def _require_same_weights(self, name: str, sums: Sequence[float]) -> None:
        self.call_order.finish()
        sums_of_processes = gather_object([list(sums)])
        if any(other != sums_of_processes[0] for other in sums_of_processes):
            raise ConfigError(
                f"{name}: the processes have loaded different weights; set fsdp_cpu_ram_efficient_loading: false in "
                "accelerate's settings (--fsdp_cpu_ram_efficient_loading false), so that each loads them all"
            )


def _make_engine(accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin | DeepSpeedPlugin) -> WeightSharder:
    if isinstance(plugin, FullyShardedDataParallelPlugin):
        from mmgrpo.distributed.fsdp import FSDP2

        return FSDP2(accelerator, plugin)
    os.environ.setdefault("DS_ACCELERATOR", accelerator.device.type)  # DeepSpeed reads it on import
    required("deepspeed", "DeepSpeed, which accelerate's settings ask for,")
    from mmgrpo.distributed.zero import DeepSpeedZero

    return DeepSpeedZero(plugin)


def launched_engine() -> str | None:
    """Returns the engine in the environment of ``accelerate launch``: fsdp, deepspeed or None."""
    for name in ("fsdp", "deepspeed"):
        if os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false").lower() == "true":
            return name
    return None


def launch_flags() -> str:
    """Returns the flags of ``accelerate launch`` that select the same sharding."""
    stage = os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    flags = {"fsdp": " --use_fsdp --fsdp_version 2", "deepspeed": f" --use_deepspeed --zero_stage {stage}"}
    return flags.get(launched_engine() or "", "")


def sharding_of(accelerator: Accelerator) -> Sharding | None:
    """Returns the sharding that Accelerate's settings ask for, the same object to every caller of this process; None
    without sharding or with one process.

    Raises: ConfigError if the settings are not supported; MissingPackageError if DeepSpeed is not installed.
    """
    engine = launched_engine()
    if accelerator.num_processes == 1 or engine is None:
        _sharding.clear()
        join(list)
    elif not _sharding:
        state, distributed_type = accelerator.state, accelerator.distributed_type  # on CPUs it names no sharding
        if engine == "fsdp":
            plugin = state.fsdp_plugin if distributed_type == DistributedType.FSDP else None
            _sharding.append(Sharding(accelerator, plugin or FullyShardedDataParallelPlugin()))
        else:
            plugin = state.deepspeed_plugin if distributed_type == DistributedType.DEEPSPEED else None
            _sharding.append(Sharding(accelerator, plugin or DeepSpeedPlugin()))
    return _sharding[0] if _sharding else None
