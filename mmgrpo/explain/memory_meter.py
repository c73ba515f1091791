"""Bytes that are alive while something runs, counted tensor by tensor; of shapes without values as of real ones.

What a kernel needs within itself, and what an allocator keeps beside it, is not seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from mmgrpo.explain.operator_times import Work, work_of
from mmgrpo.outline import Outline


class MemoryMeter(TorchDispatchMode):
    """Within it every new storage counts, until nobody holds it any more.

    Attributes:
        live: bytes that were made within it and are still held.
        peak: the most there were at a time.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        """Nothing is counted yet.

        Args:
            known: tensors that are there already; what is written into them is not new.
        """
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, Any] = {}
        for tensor in known:
            self._know(tensor, counts=False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and counts what it made."""
        made = func(*args, **(kwargs or {}))
        for one in tree_iter(made):
            if isinstance(one, Tensor):
                self._know(one, counts=True)
        return made

    def _know(self, tensor: Tensor, *, counts: bool) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known:
            return
        size = storage.nbytes() if counts else 0

        def gone(_: Any) -> None:
            self._known.pop(key, None)
            self.live -= size

        self._known[key] = ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredPass:
    """What a call takes.

    Attributes:
        num_bytes: the most that was alive beside what was there before.
        work: its operators.
    """

    num_bytes: int
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """What the passes of a policy take, each of one batch on one process.

    Attributes:
        update: a slice of an update, forward and backward, gradients there already.
        forward: the same slice without grad; None where nothing runs it.
        rollout: a batch of a rollout: of a denoiser, one step; peak of its calls, sum of their work.
        rollout_calls: calls of the model in it.
    """

    update: MeteredPass
    forward: MeteredPass | None
    rollout: MeteredPass
    rollout_calls: int


def passes_of(outline: Outline, *, without_grad: bool = True, say: Callable[[str], None] = lambda _: None) -> Passes:
    """Runs the outline's passes on shapes alone, on the CPU's kernels; nothing is computed, and no memory is taken.

    A gradient counts where it is, not here. The modules hold shapes without values from now on.

    Args:
        outline: of the policy.
        without_grad: whether a slice of an update is also run without grad.
        say: is given a line before each pass, as a large model takes a while.

    Returns:
        What the passes take; ``forward`` is None without ``without_grad``.
    """
    mode, twins = FakeTensorMode(), {}
    with mode:
        for module in outline.modules.values():
            _without_values(module, twins)
    parameters = [one for one in twins.values() if isinstance(one, nn.Parameter) and one.requires_grad]
    num_passes = 1 + len(outline.rollout) + without_grad
    passes = iter(range(1, num_passes + 1))

    def begin(name: str) -> None:
        say(f"counting the operators of {name} ({next(passes)} of {num_passes}; shapes alone) ...")

    with mode:
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        known = [*twins.values(), *(one.grad for one in parameters if one.grad is not None)]
        drawn: list[MeteredPass] = []
        with torch.no_grad():
            for one in outline.rollout:
                begin(f"a rollout of {outline.rollout_rows} row(s)")
                drawn.append(ran(one.call, known, prepare=one.prepare))
            if without_grad:
                begin(f"a forward of {outline.update_rows} row(s)")
            forward = ran(lambda _: outline.update(), known) if without_grad else None
        begin(f"an update of {outline.update_rows} row(s)")
        update = ran(lambda _: outline.update().backward(), known)
    work: Work = Counter()
    for one, found in zip(outline.rollout, drawn, strict=True):
        work.update({operator: one.times * num for operator, num in found.work.items()})
    return Passes(
        update=update,
        forward=forward,
        rollout=MeteredPass(num_bytes=max(one.num_bytes for one in drawn), work=work),
        rollout_calls=sum(one.times for one in outline.rollout),
    )


def ran(
    call: Callable[[Any], object], known: Iterable[Tensor], *, prepare: Callable[[], Any] = lambda: None
) -> MeteredPass:
    """Makes a call and counts what it takes.

    Args:
        call: makes it, of what is prepared.
        known: tensors that are there already.
        prepare: makes what the call takes; of it the bytes count, not the operators.

    Returns:
        Its peak and its operators.
    """
    with MemoryMeter(known) as meter:
        prepared = prepare()
        work = work_of(lambda: call(prepared))
    return MeteredPass(num_bytes=meter.peak, work=work)


def _without_values(module: nn.Module, twins: dict[int, Tensor]) -> None:
    """Replaces what a module holds by shapes, in place; what is one tensor stays one."""
    for part in module.modules():
        held: tuple[dict[str, Any], dict[str, Any]] = (part._parameters, part._buffers)
        for own in held:
            for name, tensor in own.items():
                if tensor is not None:
                    own[name] = _twin(tensor, twins)


def _twin(tensor: Tensor, twins: dict[int, Tensor]) -> Tensor:
    if id(tensor) in twins:
        return twins[id(tensor)]
    new = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    found = nn.Parameter(new, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
    twins[id(tensor)] = twins[id(found)] = found
    return found
