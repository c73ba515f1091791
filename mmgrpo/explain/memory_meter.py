"""Measures live bytes during a call, tensor by tensor; works on fake tensors and on real ones.

Workspace inside kernels and allocator overhead are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from mmgrpo.explain.operator_times import ASIDE, Work, work_of_operator
from mmgrpo.explain.repeated_blocks import MeteredPass, repeated_blocks
from mmgrpo.outline import Outline


class MemoryMeter(TorchDispatchMode):
    """A context that counts every new storage until it is freed.

    Attributes:
        live: bytes that were allocated within the context and are alive.
        peak: the maximum of ``live``.
    """

    def __init__(self, existing: Iterable[Tensor] = ()) -> None:
        """Starts with zero bytes.

        Args:
            existing: tensors whose storages are not counted.
        """
        super().__init__()
        self.live = self.peak = 0
        self._storages: dict[int, Any] = {}
        for tensor in existing:
            self._count(tensor, counts=False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and counts its outputs."""
        output = func(*args, **(kwargs or {}))
        self.count_new(output)
        return output

    def count_new(self, output: Any) -> None:
        """Counts the storages of an operator's outputs that are new."""
        for tensor in tree_iter(output):
            if isinstance(tensor, Tensor):
                self._count(tensor, counts=True)

    def _count(self, tensor: Tensor, *, counts: bool) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._storages:
            return
        size = storage.nbytes() if counts else 0

        def on_free(_: Any) -> None:
            self._storages.pop(key, None)
            self.live -= size

        self._storages[key] = ref(storage, on_free)
        self.live += size
        self.peak = max(self.peak, self.live)


class _PassMeter(TorchDispatchMode):
    """A context that counts memory and operators: one context, since each slows down every operator."""

    def __init__(self, existing: Iterable[Tensor]) -> None:
        super().__init__()
        self.memory = MemoryMeter(existing)
        self.work: Work = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func.namespace not in ASIDE:
            self.memory.count_new(output)
            self.work.update(work_of_operator(func, args, kwargs or {}, output))
        return output


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The memory and the operators of a policy's passes, each for one batch on one process.

    Attributes:
        update: forward and backward of a slice of an update, with gradients allocated before.
        forward: the same slice without grad; None if no pass without grad runs.
        rollout: a batch of a rollout (of a denoiser, one step); peak over its calls, sum of their work.
        rollout_calls: number of model calls in it.
    """

    update: MeteredPass
    forward: MeteredPass | None
    rollout: MeteredPass
    rollout_calls: int


def passes_of(
    outline: Outline,
    *,
    without_grad: bool = True,
    reused: Passes | None = None,
    print_line: Callable[[str], None] = lambda _: None,
) -> Passes:
    """Runs the outline's passes on fake tensors, which computes nothing and allocates no memory.

    Gradients are not counted. The parameters of the modules are replaced by fake tensors.

    Args:
        outline: outline of the policy.
        without_grad: whether a slice of an update is also run without grad.
        reused: passes of the same calls without grad, which are then not run again.
        print_line: prints a line before each pass.

    Returns:
        The passes; ``forward`` is None without ``without_grad``.
    """
    mode, fake_tensors = FakeTensorMode(), {}
    with mode:
        for module in outline.modules.values():
            _replace_by_shapes(module, fake_tensors)
    parameters = [fake for fake in fake_tensors.values() if isinstance(fake, nn.Parameter) and fake.requires_grad]
    num_passes = 1 if reused is not None else 1 + len(outline.rollout) + without_grad
    passes = iter(range(1, num_passes + 1))

    def begin(name: str) -> None:
        print_line(f"counting the operators of {name} ({next(passes)} of {num_passes}; shapes alone) ...")

    repeated = repeated_blocks(outline.sharded)

    def metered(call: Callable[[Any], object], prepare: Callable[[], Any] = lambda: None) -> MeteredPass:
        meter = partial(meter_pass, call, existing, prepare=prepare)
        return meter() if repeated is None else repeated.extrapolated(meter)

    with mode:
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        existing = [*fake_tensors.values(), *(p.grad for p in parameters if p.grad is not None)]
        rollout_passes: list[MeteredPass] = []
        forward: MeteredPass | None = None
        if reused is None:
            with torch.no_grad():
                for rollout_call in outline.rollout:
                    begin(f"a rollout of {outline.rollout_rows} row(s)")
                    rollout_passes.append(metered(rollout_call.call, rollout_call.prepare))
                if without_grad:
                    begin(f"a forward of {outline.update_rows} row(s)")
                    forward = metered(lambda _: outline.update())
        begin(f"an update of {outline.update_rows} row(s)")
        update = metered(lambda _: outline.update().backward())
    if reused is not None:
        return replace(reused, update=update)
    work: Work = Counter()
    for rollout_call, rollout_pass in zip(outline.rollout, rollout_passes, strict=True):
        work.update({operator: rollout_call.times * num for operator, num in rollout_pass.work.items()})
    return Passes(
        update=update,
        forward=forward,
        rollout=MeteredPass(num_bytes=max((part.num_bytes for part in rollout_passes), default=0), work=work),
        rollout_calls=sum(rollout_call.times for rollout_call in outline.rollout),
    )


def meter_pass(
    call: Callable[[Any], object], existing: Iterable[Tensor], *, prepare: Callable[[], Any] = lambda: None
) -> MeteredPass:
    """Meters a call.

    Args:
        call: a function of the prepared value.
        existing: tensors that exist before the call.
        prepare: makes the argument of the call; its bytes count, its operators do not.

    Returns:
        The peak of memory and the operators.
    """
    with _PassMeter(existing) as meter:
        prepared = prepare()
        meter.work.clear()
        call(prepared)
    return MeteredPass(num_bytes=meter.memory.peak, work=meter.work)


def _replace_by_shapes(module: nn.Module, fake_tensors: dict[int, Tensor]) -> None:
    """Replaces the parameters and buffers of a module by fake tensors, in place; shared tensors stay shared."""
    for part in module.modules():
        tensor_dicts: tuple[dict[str, Any], dict[str, Any]] = (part._parameters, part._buffers)
        for tensors in tensor_dicts:
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = _fake_tensor(tensor, fake_tensors)


def _fake_tensor(tensor: Tensor, fake_tensors: dict[int, Tensor]) -> Tensor:
    if id(tensor) in fake_tensors:
        return fake_tensors[id(tensor)]
    new = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    fake = nn.Parameter(new, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
    fake_tensors[id(tensor)] = fake_tensors[id(fake)] = fake
    return fake
