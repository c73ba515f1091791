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

from mmgrpo.config import RuntimeConfig
from mmgrpo.errors import ConfigError, MmgrpoError
from mmgrpo.layouts import layout_of
from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.diagnostics import Diagnostics
from mmgrpo.run.parts import Part
from mmgrpo.run.sharding import sharding_of
from mmgrpo.run.tracking import Trackers

T = TypeVar("T")
BUCKET_ELEMENTS = 2**26  # 256 MiB of float32 per collective


class Job:
    """This process's place among the processes of the run.

    Attributes:
        accelerator: accelerate's view of the processes.
        rank: the number of this one.
        size: how many there are.
        sharding: what shards modules over them, if that was asked for.
        trackers: of the run, on the main process.
        raised: the error that all processes were last given together.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        """Nothing was done together yet.

        Args:
            accelerator: accelerate's view of the processes.
        """
        self.accelerator = accelerator
        self.rank = accelerator.process_index
        self.size = accelerator.num_processes
        self.sharding = sharding_of(accelerator)
        self.trackers = Trackers(accelerator)
        self.raised: MmgrpoError | None = None

    @property
    def in_parts(self) -> bool:
        """Whether what is trained lies in parts on the processes."""
        return self.sharding is not None and self.sharding.trains

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks."""
        return self.accelerator.is_main_process

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
                f"{what}={len(items)} does not divide by the {self.size} processes of the job; "
                f"use a multiple of {self.size}, so that every process holds as many whole groups"
            )
        each = len(items) // self.size
        return list(enumerate(items))[self.rank * each : (self.rank + 1) * each]

    def gather(self, item: T) -> list[T]:
        """One object of every process, in rank order, on all of them."""
        if self.size == 1:
            return [item]
        self.meet()
        return gather_object([item])

    def from_all(self, find: Callable[[], T]) -> list[T]:
        """What a function gives on each process, in rank order; what it raises on purpose on one is raised on all."""
        mine: T | MmgrpoError
        try:
            mine = find()
        except MmgrpoError as error:
            mine = error
        parts = self.gather(mine)
        for part in parts:
            if isinstance(part, MmgrpoError):
                self.raised = part
                raise part
        return cast(list[T], parts)

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
        parts were added in their backward.
        """
        if self.size == 1:
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
        if self.size == 1:
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
