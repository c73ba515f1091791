"""Modules whose weights lie in parts on the processes of a run: FSDP2 or DeepSpeed, as Accelerate is asked for it."""

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
from mmgrpo.errors import ConfigError
from mmgrpo.layouts import blocks_of, layout_of, run_deferred_moves
from mmgrpo.policy import Arguments
from mmgrpo.runs.turns import Turns
from mmgrpo.system.extras import required

_of_these: list[Sharding] = []
"""The one of these processes, if it was asked for."""


class Engine(Protocol):
    """What lays weights in parts, and gathers them where they are called."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def parts_bases(self) -> bool:
        """Whether what carries an adapter lies in parts."""
        ...

    def part(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        whole: set[nn.Parameter],
        *,
        ready: Callable[[nn.Module], None],
    ) -> None:
        """Lays the parameters of a module's blocks in parts, but for those that stay whole; a collective.

        Their gradients are summed over the processes in each backward, and not averaged. ``ready`` is called with each
        block before it is parted, its own blocks before it, so that it may come from elsewhere then.
        """
        ...

    def gathered(self, modules: Collection[nn.Module]) -> AbstractContextManager[None]:
        """Within it these modules are whole on every process; a collective where it begins."""
        ...


class Sharding:
    """What shards the modules of a run.

    Attributes:
        turns: the order of the calls of sharded modules, which whatever else the processes do together waits for.
        trains: whether what is trained lies in parts, and not only what is frozen.
    """

    def __init__(self, accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin | DeepSpeedPlugin) -> None:
        """Nothing is sharded yet.

        Args:
            accelerator: accelerate's view of the processes.
            plugin: how it was asked to shard.

        Raises:
            ConfigError: for a form of it that is not supported.
            MissingPackageError: DeepSpeed is asked for, and not installed.
        """
        self._engine = _engine(accelerator, plugin)
        self.turns = Turns(accelerator)
        self.trains = False
        self._trained: list[ref[nn.Module]] = []

    @property
    def engine(self) -> str:
        """What lays weights in parts."""
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

        What is in no block stays whole on every process, as the embeddings of tokens, which output heads may share, and
        so do the few trained parameters of an adapter. Gradients of other trained parameters are summed over the
        processes, never averaged.

        Args:
            name: of the module, for messages.
            module: all of it trained, all of it frozen, or frozen with an adapter.
            empty: arguments of a call that is made for other processes' sake; None: those of the last call.
            within: the module that it is a part of and that is saved as one; None: itself.

        Raises:
            ConfigError: it does not say what its blocks are, or the processes have loaded other weights.
        """
        has_adapter = len({parameter.requires_grad for parameter in module.parameters()}) > 1
        blocks = blocks_of(module)
        if not blocks:
            raise ConfigError(f"{name}: {type(module).__name__} names no blocks (_no_split_modules) to shard it by")
        parted = {id(p) for block in blocks for p in block.parameters() if not (has_adapter and p.requires_grad)}
        whole = {p for p in module.parameters() if id(p) not in parted}  # the others go as they are parted
        is_trained = has_adapter or any(p.requires_grad for p in module.parameters())
        if has_adapter and not self._engine.parts_bases:
            return
        sums: list[float] = []

        def ready(block: nn.Module) -> None:
            run_deferred_moves(block)
            own = [p for p in block.parameters() if p not in whole and layout_of(p) is None]
            sums.extend(float(p.detach().sum(dtype=torch.float64)) for p in own)

        self._engine.part(module, blocks, whole, ready=ready)
        if is_trained:  # else it is a copy that will be filled
            self._require_same(name, sums)
            self._trained.append(ref(module))
        self.trains |= is_trained and not has_adapter
        self.turns.share(module, empty, gathers_state=not has_adapter, within=within)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it modules that are trained are whole on every process, and called as if they were not shared.

        For drawing, which calls them often, and on each process another number of times; no weight may move within it.
        A collective where it begins and ends. What is frozen (the reference, averages) stays in parts.
        """
        self.turns.meet()
        trained = [one() for one in self._trained]
        everywhere = map(all, zip(*gather_object([[one is not None for one in trained]]), strict=True))
        modules = [one for one, is_there in zip(trained, everywhere, strict=True) if one is not None and is_there]
        with self._engine.gathered(modules), self.turns.without(modules):
            try:
                yield
            finally:
                self.turns.meet()  # whoever makes another's empty call has to be as whole as that one

    def _require_same(self, name: str, sums: Sequence[float]) -> None:
        self.turns.meet()
        found = gather_object([list(sums)])
        if any(other != found[0] for other in found):
            raise ConfigError(
                f"{name}: the processes have loaded different weights; set fsdp_cpu_ram_efficient_loading: false in "
                "accelerate's settings (--fsdp_cpu_ram_efficient_loading false), so that each loads them all"
            )


def _engine(accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin | DeepSpeedPlugin) -> Engine:
    if isinstance(plugin, FullyShardedDataParallelPlugin):
        from mmgrpo.runs.fsdp import FSDP2

        return FSDP2(accelerator, plugin)
    os.environ.setdefault("DS_ACCELERATOR", accelerator.device.type)  # read where it is imported
    required("deepspeed", "DeepSpeed, which accelerate's settings ask for,")
    from mmgrpo.runs.zero import Zero

    return Zero(plugin)


def asked() -> str | None:
    """What accelerate was asked to shard with, as ``accelerate launch`` is told of it."""
    for name in ("fsdp", "deepspeed"):
        if os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false").lower() == "true":
            return name
    return None


def launch_flags() -> str:
    """What ``accelerate launch`` has to be told for the same."""
    stage = os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    flags = {"fsdp": " --use_fsdp --fsdp_version 2", "deepspeed": f" --use_deepspeed --zero_stage {stage}"}
    return flags.get(asked() or "", "")


def sharding_of(accelerator: Accelerator) -> Sharding | None:
    """The sharding that accelerate was asked for, one for all who ask of these processes; None where it was not, or
    there is one process.

    Raises: ConfigError for a form of it that is not supported; MissingPackageError for DeepSpeed that is not there.
    """
    by = asked()
    if accelerator.num_processes == 1 or by is None:
        _of_these.clear()
        join(list)
    elif not _of_these:
        state, there = accelerator.state, accelerator.distributed_type  # of CPUs alone it knows no more than these
        if by == "fsdp":
            plugin = state.fsdp_plugin if there == DistributedType.FSDP else None
            _of_these.append(Sharding(accelerator, plugin or FullyShardedDataParallelPlugin()))
        else:
            plugin = state.deepspeed_plugin if there == DistributedType.DEEPSPEED else None
            _of_these.append(Sharding(accelerator, plugin or DeepSpeedPlugin()))
    return _of_these[0] if _of_these else None
