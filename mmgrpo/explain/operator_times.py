"""What an operator is made of, and how long a machine takes for it: its arithmetic, its bytes or its launch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

ATEN = torch.ops.aten
STILL = {ATEN._unsafe_view, ATEN.empty, ATEN.empty_like, ATEN.empty_strided, ATEN.new_empty, ATEN.new_empty_strided}
"""Operators that move nothing, beside views."""
ASIDE = ("prim", "profiler")
"""Namespaces of what asks about tensors, as shapes without values often do, and computes nothing."""
ADAMW_MOVES = (2, 3, 2, 4, 2, 2, 2, 4)
"""How often its size each operator of a parameter's step reads and writes: decay, first moment, second moment (two),
root, correction, eps, step."""
AVERAGE_MOVES = 3
TURNS = 5


@dataclass(frozen=True, slots=True)
class Operator:
    """What one operator does.

    Attributes:
        flops: of a matrix product, a convolution or attention, a product and its sum being two; 0 for others.
        num_bytes: that it reads and writes.
    """

    flops: int
    num_bytes: int


Work = Counter[Operator]
"""How often each operator runs."""


class Operators(TorchDispatchMode):
    """Within it every operator counts but for those that move nothing.

    Attributes:
        work: what ran.
    """

    def __init__(self) -> None:
        """Nothing is counted yet."""
        super().__init__()
        self.work: Work = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and counts it."""
        made = func(*args, **(kwargs or {}))
        if not (func.is_view or func._overloadpacket in STILL or func.namespace in ASIDE):
            count = flop_registry.get(func._overloadpacket)
            tensors = [one for one in tree_iter((args, kwargs, made)) if isinstance(one, Tensor)]
            self.work[
                Operator(
                    flops=0 if count is None else count(*args, **(kwargs or {}), out_val=made),
                    num_bytes=sum(min(one.nbytes, one.untyped_storage().nbytes()) for one in tensors),
                )
            ] += 1
        return made


def work_of(call: Callable[[], object]) -> Work:
    """What runs in a call."""
    with Operators() as counted:
        call()
    return counted.work


def optimizer_work(sizes: Sequence[int], *, averages: bool, together: bool) -> Work:
    """What a step of AdamW runs, as torch writes it out.

    Args:
        sizes: bytes of each parameter that is trained.
        averages: whether an average of them follows.
        together: whether an operator takes all parameters.

    Returns:
        The operators.
    """
    sizes = [sum(sizes)] if together else sizes
    moves = (*ADAMW_MOVES, AVERAGE_MOVES) if averages else ADAMW_MOVES
    return Counter(Operator(flops=0, num_bytes=times * size) for size in sizes for times in moves)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpeed:
    """What a process gets done; unless it was ``measured``, an assumption.

    Attributes:
        tflops: of arithmetic, in 1e12 operations a second: not the peak of its GPU.
        memory_gb_s: of its memory, in 1e9 bytes a second.
        link_gb_s: between the processes, of each, in 1e9 bytes a second.
        launch_us: that an operator takes however little it does, with the Python around it, in 1e-6 seconds.
        steps_together: whether the optimiser's operators take all parameters at once, as torch's do but on a CPU.
    """

    tflops: float = 400.0
    memory_gb_s: float = 2500.0
    link_gb_s: float = 50.0
    launch_us: float = 10.0
    steps_together: bool = True

    @property
    def words(self) -> str:
        """As a line has it."""
        return (
            f"{self.tflops:.4g} TFLOP/s, {self.memory_gb_s:.4g} GB/s of memory, {self.launch_us:.3g} us an operator, "
            f"{self.link_gb_s:g} GB/s of link"
        )

    def seconds(self, work: Work, share: float = 1.0) -> float:
        """Of operators one after the other: sum max(launch, share * flops / throughput, bytes / bandwidth).

        Args:
            work: the operators.
            share: of the operations, where a batch has fewer rows than the one that was counted; its bytes, of
                which weights are most, are taken to be as many.

        Returns:
            Seconds.

        Source: the roofline model (Williams et al., CACM 52(4), 2009), with a floor for each operator.
        """
        speed, bandwidth = self.tflops * 1e12 / share, self.memory_gb_s * 1e9
        floor = self.launch_us * 1e-6
        return sum(n * max(floor, one.flops / speed, one.num_bytes / bandwidth) for one, n in work.items())

    def batched(self, work: Work, *, rows: float, each: int) -> float:
        """Seconds of batches of so many rows each, of which the last may have fewer."""
        whole, left = divmod(rows, each)
        return whole * self.seconds(work) + (self.seconds(work, left / each) if left else 0.0)


def measured(dtype: torch.dtype, *, device: torch.device, link_gb_s: float) -> MachineSpeed:
    """What this machine gets done: a large product, a large sum, and the operators of a tiny transformer.

    Args:
        dtype: that products are made in.
        device: which computes.
        link_gb_s: between processes, which is not measured.

    Returns:
        The machine. Kernels of other shapes do less, as products of few rows on a CPU.
    """
    side, numbers = (1024, 2**25) if device.type == "cpu" else (8192, 2**28)
    left_SS, right_SS = (torch.randn(side, side, device=device, dtype=dtype) for _ in "ab")
    product = _fastest(lambda: left_SS @ right_SS, device)
    term_N = torch.randn(numbers, device=device)
    sum_N = torch.empty_like(term_N)
    addition = _fastest(lambda: torch.add(term_N, 1.0, out=sum_N), device)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)  # in training it is not fused
    small, input_128 = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).to(device), term_N[:16].view(1, 2, 8)
    with torch.no_grad():
        num = sum(work_of(lambda: small(input_128)).values())
        launches = _fastest(lambda: small(input_128), device)
    return MachineSpeed(
        tflops=2 * side**3 / product / 1e12,
        memory_gb_s=2 * term_N.nbytes / addition / 1e9,
        link_gb_s=link_gb_s,
        launch_us=launches / num * 1e6,
        steps_together=device.type != "cpu",
    )


def _fastest(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of some calls, after one that is not counted."""
    found = []
    for _ in range(TURNS + 1):
        _wait_for(device)
        begun = time.perf_counter()
        call()
        _wait_for(device)
        found.append(time.perf_counter() - begun)
    return min(found[1:])


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
