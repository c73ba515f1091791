"""The processes of a run: who draws which prompts, and how what they find is put together.

The engine does not wrap modules for distribution: each process computes its groups' share of one global sum, and the
gradients are added once per optimiser update.
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
from mmgrpo.errors import ConfigError, MmgrpoError
from mmgrpo.layouts import deferred_moves, layout_of
from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.diagnostics import Diagnostics
from mmgrpo.policy import Policy, SupportsContextParallel, SupportsSharding
from mmgrpo.runs.folder import make_accelerator
from mmgrpo.runs.parts import Part
from mmgrpo.runs.sharding import sharding_of
from mmgrpo.runs.tracking import Trackers

T = TypeVar("T")
BUCKET_ELEMENTS = 2**26  # 256 MiB of float32 per collective


class Job:
    """This process's place among the processes of the run.

    Those that share the sequences of their samples (``runtime.context_parallel``) have one seat: they draw and train
    the same rows, and call the policy together.

    Attributes:
        accelerator: accelerate's view of the processes.
        process: the number of this one.
        num_processes: how many there are.
        rank: the number of its seat.
        size: how many seats there are.
        leads: whether it is the first of its seat, which asks the rewards and speaks for it.
        sharding: what shards modules over them, if that was asked for.
        trackers: of the run, on the main process.
        raised: the error that all processes were last given together.
    """

    def __init__(self, accelerator: Accelerator, *, context_parallel: int = 1) -> None:
        """Nothing was done together yet.

        Args:
            accelerator: accelerate's view of the processes.
            context_parallel: how many share the sequences of their samples.

        Raises:
            ConfigError: the processes do not divide by that number, or what they hold is to lie in parts as well.
        """
        self.accelerator = accelerator
        self.process, self.num_processes = accelerator.process_index, accelerator.num_processes
        if self.num_processes % context_parallel:
            raise ConfigError(
                f"runtime.context_parallel={context_parallel} does not divide the {self.num_processes} processes of "
                f"the job; start {context_parallel} or a multiple (mmgrpo train CONFIG --accelerate gpus --processes N)"
            )
        self.rank, self.size = self.process // context_parallel, self.num_processes // context_parallel
        self.leads = self.process % context_parallel == 0
        self._per_seat = context_parallel
        self.sharding = sharding_of(accelerator)
        if self.sharding and context_parallel > 1:
            raise ConfigError(
                "runtime.context_parallel is for whole models: leave FSDP and DeepSpeed out of accelerate's settings"
            )
        self.trackers = Trackers(accelerator)
        self.raised: MmgrpoError | None = None

    @classmethod
    def of(cls, config: RunConfig, accelerator: Accelerator | None = None) -> Job:
        """The processes of a run; accelerate's view of them is made if it is not given."""
        return cls(accelerator or make_accelerator(config), context_parallel=config.runtime.context_parallel)

    @property
    def _seats(self) -> str:
        shared = f" groups of {self._per_seat}" if self._per_seat > 1 else ""
        return f"{self.size}{shared} processes"

    @property
    def in_parts(self) -> bool:
        """Whether what is trained lies in parts on the processes."""
        return self.sharding is not None and self.sharding.trains

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks."""
        return self.accelerator.is_main_process

    def placing(self) -> AbstractContextManager[None]:
        """Within it a policy is made and ``spread``; blocks that will lie in parts wait off the device for it."""
        return deferred_moves() if self.sharding else nullcontext()

    def spread(self, policy: Policy) -> None:
        """Has a policy lie in parts, or split its sequences, on the processes, where that was asked for.

        Args:
            policy: that nothing was drawn with.

        Raises:
            ConfigError: it is of a kind that cannot, or a module of it cannot.
        """
        if self.sharding:
            if not isinstance(policy, SupportsSharding):
                raise ConfigError(
                    f"{type(policy).__name__} cannot be sharded: leave FSDP and DeepSpeed out of accelerate's settings"
                )
            policy.shard(self.sharding.shard)
        if self._per_seat > 1:
            if not isinstance(policy, SupportsContextParallel):
                raise ConfigError(f"{type(policy).__name__} splits no sequences: leave out runtime.context_parallel")
            shape, names = (self.size, 1, self._per_seat), ("seats", "ring", "ulysses")
            policy.enable_context_parallel(init_device_mesh(self.accelerator.device.type, shape, mesh_dim_names=names))

    def shard(self, items: Sequence[T], what: str) -> list[tuple[int, T]]:
        """This process's consecutive share of the job's items, each with its index in the whole.

        Args:
            items: all of them, the same on every process.
            what: the configuration key that says how many there are, for the message.

        Returns:
            (index in the whole, item) pairs, as many on every process.

        Raises:
            ConfigError: the items do not divide evenly over the processes.
        """
        if len(items) % self.size:
            raise ConfigError(
                f"{what}={len(items)} does not divide by the {self._seats} of the job; "
                f"use a multiple of {self.size}, so that every process holds as many whole groups"
            )
        each = len(items) // self.size
        return list(enumerate(items))[self.rank * each : (self.rank + 1) * each]

    def gather(self, item: T) -> list[T]:
        """One object of every seat, in rank order, on all processes."""
        return self.gather_each(item)[:: self._per_seat]

    def gather_each(self, item: T) -> list[T]:
        """One object of every process, in their order, on all of them."""
        if self.num_processes == 1:
            return [item]
        self.meet()
        return gather_object([item])

    def from_all(self, find: Callable[[], T]) -> list[T]:
        """What a function gives on each seat, in rank order; what it raises on purpose on one is raised on all."""
        return self.from_all_each(find)[:: self._per_seat]

    def from_all_each(self, find: Callable[[], T]) -> list[T]:
        """What a function gives on each process, in their order; what it raises on purpose on one is raised on all."""
        mine: T | MmgrpoError
        try:
            mine = find()
        except MmgrpoError as error:
            mine = error
        parts = self.gather_each(mine)
        for part in parts:
            if isinstance(part, MmgrpoError):
                self.raised = part
                raise part
        return cast(list[T], parts)

    def from_leaders(self, find: Callable[[], T]) -> list[T]:
        """The same of a function that the first process of each seat alone calls."""
        return cast(list[T], self.from_all(lambda: find() if self.leads else None))

    def from_main(self, find: Callable[[], T]) -> T:
        """What a function gives on the main process, on all of them; what it raises on purpose is raised on all."""
        return cast(T, self.from_all(lambda: find() if self.is_main else None)[0])

    def total(self, totals: Totals) -> Totals:
        """The counts of all processes together."""
        return sum(self.gather(totals), start=Totals(num_samples=0, num_decisions=0))

    def merged(self, diagnostics: Diagnostics) -> Diagnostics:
        """The diagnostics of all processes together."""
        return sum(self.gather(diagnostics.as_numbers()), start=Diagnostics())

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Adds the gradients of all processes; a parameter without one counts as zero.

        Every process gets a gradient for every parameter that any of them has one for. Those of parameters that lie in
        parts were added in their backward. Where processes share a sequence, each has its share of the gradient.
        """
        if self.num_processes == 1:
            return
        self.meet()
        parameters = [parameter for parameter in parameters if layout_of(parameter) is None]
        present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.float32)
        anywhere = self._sum(present.to(self.accelerator.device)).bool().tolist()
        wanted = [p for p, used in zip(parameters, anywhere, strict=True) if used]
        for bucket in _buckets(wanted):
            flat = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in bucket])
            pieces = self._sum(flat).split([p.numel() for p in bucket])
            for parameter, piece in zip(bucket, pieces, strict=True):
                parameter.grad = piece.view_as(parameter).clone()

    def grad_norm(self, parts: Sequence[nn.Parameter]) -> Tensor:
        """The norm of the gradient over what all processes hold together; a collective where that lies in parts.

        Args:
            parts: of ``held``, with gradients that were summed.

        Returns:
            A scalar on their device.
        """
        whole = [p.grad for p in parts if p.grad is not None and not isinstance(p, Part)]
        own = [p.grad for p in parts if p.grad is not None and isinstance(p, Part)]
        norm = torch.nn.utils.get_total_norm(whole)
        if not self.in_parts:
            return norm
        squares = self._sum(torch.nn.utils.get_total_norm(own).to(self.accelerator.device).square())
        return (norm.to(squares).square() + squares).sqrt()

    def broadcast_weights(self, parameters: Sequence[nn.Parameter]) -> None:
        """Every process starts from the main process's weights; those that lie in parts were found to be the same."""
        if self.num_processes == 1:
            return
        self.meet()
        for parameter in parameters:
            if layout_of(parameter) is None:
                torch.distributed.broadcast(parameter.data, src=0)

    def drawing(self, config: RuntimeConfig) -> AbstractContextManager[None]:
        """Within it the policy draws: with ``gather_for_rollout`` its sharded weights are whole; a collective."""
        return self.sharding.gathered() if self.sharding and config.gather_for_rollout else nullcontext()

    def wait(self) -> None:
        """Until all processes are here."""
        self.meet()
        self.accelerator.wait_for_everyone()

    def _sum(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, added."""
        self.meet()
        total = self.accelerator.reduce(tensor, "sum")
        assert isinstance(total, Tensor)
        return total

    def meet(self) -> None:
        """Until no process has a sharded module to call; without sharding at once."""
        if self.sharding is not None:
            self.sharding.turns.meet()


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
