"""The processes of a run: which rows each one handles, and the collectives that combine their results.

The engine does not wrap modules for distribution: each process computes the share of one global sum that belongs to its
groups, and the gradients are summed once per optimizer update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from mmgrpo.config import RunConfig, RuntimeConfig
from mmgrpo.distributed.accelerator import make_accelerator
from mmgrpo.distributed.parameter_shards import ParameterShard
from mmgrpo.distributed.sharding import sharding_of
from mmgrpo.distributed.trackers import Trackers
from mmgrpo.errors import ConfigError, MmgrpoError
from mmgrpo.layouts import deferred_moves, layout_of
from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.diagnostics import Diagnostics
from mmgrpo.policy import Policy, SupportsContextParallel, SupportsSharding

T = TypeVar("T")
BUCKET_ELEMENTS = 2**26  # 256 MiB of float32 per collective


class Job:
    """The processes of the run, from the point of view of this one.

    With ``runtime.context_parallel``, the processes that split the same sequences form one data-parallel rank: they
    sample and train the same rows, and call the policy together.

    Attributes:
        accelerator: Accelerate's view of the processes.
        device: of the models: ``runtime.device``, or else the accelerator's.
        process: index of this process.
        num_processes: number of processes.
        rank: index of this process's data-parallel rank.
        size: number of data-parallel ranks.
        is_leader: whether this process is the first of its rank; only leaders call the rewards.
        sharding: shards the modules; None without sharding.
        trackers: the run's trackers, on the main process.
        shared_error: the error that was last raised on all processes together.
    """

    def __init__(
        self, accelerator: Accelerator, *, context_parallel: int = 1, device: str | torch.device | None = None
    ) -> None:
        """Reads ranks and sharding off the accelerator; no collective yet.

        Args:
            accelerator: Accelerate's view of the processes.
            context_parallel: number of processes that split each sequence.
            device: of the models; None: the accelerator's.

        Raises:
            ConfigError: the number of processes is no multiple of it, or it is combined with sharding.
        """
        self.accelerator = accelerator
        self.device = device or accelerator.device
        self.process, self.num_processes = accelerator.process_index, accelerator.num_processes
        if self.num_processes % context_parallel:
            raise ConfigError(
                f"runtime.context_parallel={context_parallel} does not divide the {self.num_processes} processes of "
                f"the job; start {context_parallel} or a multiple (mmgrpo train CONFIG --accelerate gpus --processes N)"
            )
        self.rank, self.size = self.process // context_parallel, self.num_processes // context_parallel
        self.is_leader = self.process % context_parallel == 0
        self._context_parallel = context_parallel
        self.sharding = sharding_of(accelerator)
        if self.sharding and context_parallel > 1:
            raise ConfigError(
                "runtime.context_parallel is not supported for sharded models: leave FSDP and DeepSpeed out of "
                "accelerate's settings"
            )
        self.trackers = Trackers(accelerator)
        self.shared_error: MmgrpoError | None = None

    @classmethod
    def of(cls, config: RunConfig, accelerator: Accelerator | None = None) -> Job:
        """Returns the processes of a run; makes the accelerator if None is passed."""
        runtime, accelerator = config.runtime, accelerator or make_accelerator(config)
        return cls(accelerator, context_parallel=runtime.context_parallel, device=runtime.device)

    @property
    def _ranks_text(self) -> str:
        groups = f" groups of {self._context_parallel}" if self._context_parallel > 1 else ""
        return f"{self.size}{groups} processes"

    @property
    def is_sharded(self) -> bool:
        """Whether trained weights are sharded over the processes."""
        return self.sharding is not None and self.sharding.trains

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.accelerator.is_main_process

    def deferred_placement(self) -> AbstractContextManager[None]:
        """Context in which a policy is built and passed to ``distribute``; blocks that will be sharded stay off the
        device until then."""
        return deferred_moves() if self.sharding else nullcontext()

    def distribute(self, policy: Policy) -> None:
        """Shards a policy, or lets it split its sequences over the processes, as the settings ask.

        Args:
            policy: a policy that has not sampled yet.

        Raises:
            ConfigError: the policy, or one of its modules, supports neither.
        """
        if self.sharding:
            if not isinstance(policy, SupportsSharding):
                raise ConfigError(
                    f"{type(policy).__name__} cannot be sharded: leave FSDP and DeepSpeed out of accelerate's settings"
                )
            policy.shard(self.sharding.shard)
        if self._context_parallel > 1:
            if not isinstance(policy, SupportsContextParallel):
                raise ConfigError(f"{type(policy).__name__} cannot split sequences: leave out runtime.context_parallel")
            shape, names = (self.size, 1, self._context_parallel), ("data_parallel", "ring", "ulysses")
            policy.enable_context_parallel(init_device_mesh(self.accelerator.device.type, shape, mesh_dim_names=names))

    def local_share(self, items: Sequence[T], key: str) -> list[tuple[int, T]]:
        """Returns this rank's consecutive share of the job's items, each with its global index.

        Args:
            items: all items, the same on every process.
            key: the configuration key that sets their number, for the error message.

        Returns:
            (global index, item) pairs, equally many on every process.

        Raises:
            ConfigError: the number of items is no multiple of the number of ranks.
        """
        if len(items) % self.size:
            raise ConfigError(
                f"{key}={len(items)} does not divide by the {self._ranks_text} of the job; "
                f"use a multiple of {self.size}, so that every process holds equally many groups"
            )
        share = len(items) // self.size
        return list(enumerate(items))[self.rank * share : (self.rank + 1) * share]

    def gather(self, item: T) -> list[T]:
        """Returns one object per data-parallel rank, in rank order, on all processes."""
        return self.gather_processes(item)[:: self._context_parallel]

    def gather_processes(self, item: T) -> list[T]:
        """Returns one object per process, in process order, on all processes."""
        if self.num_processes == 1:
            return [item]
        self.finish_sharded_calls()
        return gather_object([item])

    def run_on_all(self, function: Callable[[], T]) -> list[T]:
        """Calls a function on every process; returns each rank's result. An MmgrpoError of one is raised on all."""
        return self.run_on_each_process(function)[:: self._context_parallel]

    def run_on_each_process(self, function: Callable[[], T]) -> list[T]:
        """Calls a function on every process; returns every result. An MmgrpoError of one is raised on all."""
        outcome: T | MmgrpoError
        try:
            outcome = function()
        except MmgrpoError as error:
            outcome = error
        outcomes = self.gather_processes(outcome)
        for outcome in outcomes:
            if isinstance(outcome, MmgrpoError):
                self.shared_error = outcome
                raise outcome
        return cast(list[T], outcomes)

    def run_on_leaders(self, function: Callable[[], T]) -> list[T]:
        """Calls a function on the leader of each rank only; returns their results, as ``run_on_all``."""
        return cast(list[T], self.run_on_all(lambda: function() if self.is_leader else None))

    def run_on_main(self, function: Callable[[], T]) -> T:
        """Calls a function on the main process; returns its result on all. Its MmgrpoError is raised on all."""
        return cast(T, self.run_on_all(lambda: function() if self.is_main else None)[0])

    def sum_totals(self, totals: Totals) -> Totals:
        """Sums the counts of all ranks."""
        return sum(self.gather(totals), start=Totals(num_samples=0, num_decisions=0))

    def merge_diagnostics(self, diagnostics: Diagnostics) -> Diagnostics:
        """Merges the diagnostics of all ranks."""
        return sum(self.gather(diagnostics.as_numbers()), start=Diagnostics())

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sums the gradients of all processes; a parameter without a gradient counts as zero.

        Every process gets a gradient for each parameter for which any process has one. Gradients of sharded parameters
        are skipped: their backward has summed them. With context parallelism each process holds its share of the
        gradient, so the same sum applies.
        """
        if self.num_processes == 1:
            return
        self.finish_sharded_calls()
        parameters = [parameter for parameter in parameters if layout_of(parameter) is None]
        has_grad = torch.tensor([p.grad is not None for p in parameters], dtype=torch.float32)
        has_grad_anywhere = self._sum(has_grad.to(self.accelerator.device)).bool().tolist()
        reduced = [p for p, is_used in zip(parameters, has_grad_anywhere, strict=True) if is_used]
        for bucket in _buckets(reduced):
            flat = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in bucket])
            grads = self._sum(flat).split([p.numel() for p in bucket])
            for parameter, grad in zip(bucket, grads, strict=True):
                parameter.grad = grad.view_as(parameter).clone()

    def grad_norm(self, shards: Sequence[nn.Parameter]) -> Tensor:
        """Returns the global gradient norm; a collective if trained weights are sharded.

        Args:
            shards: from ``local_shards``, with summed gradients.

        Returns:
            A scalar on their device.
        """
        replicated = [p.grad for p in shards if p.grad is not None and not isinstance(p, ParameterShard)]
        sharded = [p.grad for p in shards if p.grad is not None and isinstance(p, ParameterShard)]
        norm = torch.nn.utils.get_total_norm(replicated)
        if not self.is_sharded:
            return norm
        squares = self._sum(torch.nn.utils.get_total_norm(sharded).to(self.accelerator.device).square())
        return (norm.to(squares).square() + squares).sqrt()

    def broadcast_weights(self, parameters: Sequence[nn.Parameter]) -> None:
        """Copies the main process's weights to all processes, except sharded ones, which were compared when sharded."""
        if self.num_processes == 1:
            return
        self.finish_sharded_calls()
        for parameter in parameters:
            if layout_of(parameter) is None:
                torch.distributed.broadcast(parameter.data, src=0)

    def gathered_for_rollout(self, config: RuntimeConfig) -> AbstractContextManager[None]:
        """Context of sampling: ``gather_for_rollout`` gathers sharded weights in it; a collective."""
        return self.sharding.gathered() if self.sharding and config.gather_for_rollout else nullcontext()

    def barrier(self) -> None:
        """Waits until all processes have arrived."""
        self.finish_sharded_calls()
        self.accelerator.wait_for_everyone()

    def _sum(self, tensor: Tensor) -> Tensor:
        self.finish_sharded_calls()
        total = self.accelerator.reduce(tensor, "sum")
        assert isinstance(total, Tensor)
        return total

    def finish_sharded_calls(self) -> None:
        """Waits until no process has a sharded module left to call; returns at once without sharding."""
        if self.sharding is not None:
            self.sharding.call_order.finish()


def _buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    size = BUCKET_ELEMENTS
    for parameter in parameters:
        if size + parameter.numel() > BUCKET_ELEMENTS or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel()
    return buckets
