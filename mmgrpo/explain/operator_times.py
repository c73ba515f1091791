"""The operators of a call, and a roofline estimate of their time on a machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

ATEN = torch.ops.aten
STILL = {ATEN._unsafe_view, ATEN.empty, ATEN.empty_like, ATEN.empty_strided, ATEN.new_empty, ATEN.new_empty_strided}
"""Operators besides views that move no data."""
ASIDE = ("prim", "profiler")
"""Namespaces of operators that compute nothing."""
ADAMW_MOVES = (2, 3, 2, 4, 2, 2, 2, 4)
"""Reads and writes of each operator of an AdamW step, in units of the parameter's size: decay, first moment, second
moment (two), root, correction, eps, step."""
AVERAGE_MOVES = 3
TURNS = 5


@dataclass(frozen=True, slots=True)
class Operator:
    """The arithmetic and the memory traffic of an operator.

    Attributes:
        flops: operations of a matrix product, a convolution or attention (a multiply-add is two); 0 for others.
        num_bytes: bytes that it reads and writes.
    """

    flops: int
    num_bytes: int


Work = Counter[Operator]
"""Operator -> number of calls."""


class Operators(TorchDispatchMode):
    """A context that counts every operator that moves data.

    Attributes:
        work: the counted operators.
    """

    def __init__(self) -> None:
        """Starts with no operators."""
        super().__init__()
        self.work: Work = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and counts it."""
        output = func(*args, **(kwargs or {}))
        self.work.update(work_of_operator(func, args, kwargs or {}, output))
        return output


def work_of_operator(func: Any, args: Any, kwargs: Mapping[str, Any], output: Any) -> Sequence[Operator]:
    """The operator with its arithmetic and traffic; none if it moves no data."""
    if func.is_view or func._overloadpacket in STILL or func.namespace in ASIDE:
        return ()
    count = flop_registry.get(func._overloadpacket)
    tensors = [tensor for tensor in tree_iter((args, kwargs, output)) if isinstance(tensor, Tensor)]
    return (
        Operator(
            flops=0 if count is None else count(*args, **kwargs, out_val=output),
            num_bytes=sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in tensors),
        ),
    )


def work_of(call: Callable[[], object]) -> Work:
    """The operators of a call."""
    with Operators() as counted:
        call()
    return counted.work


def optimizer_work(sizes: Sequence[int], *, averages: bool, fused: bool) -> Work:
    """The operators of a step of torch's AdamW.

    Args:
        sizes: bytes of each trained parameter.
        averages: whether a moving average is updated too.
        fused: whether an operator processes all parameters.

    Returns:
        The operators.
    """
    sizes = [sum(sizes)] if fused else sizes
    moves = (*ADAMW_MOVES, AVERAGE_MOVES) if averages else ADAMW_MOVES
    return Counter(Operator(flops=0, num_bytes=times * size) for size in sizes for times in moves)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpeed:
    """The speed of a process; the defaults are assumptions, see ``measured_speed``.

    Attributes:
        tflops: sustained arithmetic, in 1e12 operations a second: not the peak of its GPU.
        memory_gb_s: memory bandwidth, in 1e9 bytes a second.
        link_gb_s: bandwidth between processes, for each, in 1e9 bytes a second.
        launch_us: minimum time of an operator with its Python overhead, in 1e-6 seconds.
        fused_optimizer: whether an operator of the optimizer processes all parameters, as torch's do except on a CPU.
    """

    tflops: float = 400.0
    memory_gb_s: float = 2500.0
    link_gb_s: float = 50.0
    launch_us: float = 10.0
    fused_optimizer: bool = True

    @property
    def words(self) -> str:
        """The speed in words."""
        return (
            f"{self.tflops:.4g} TFLOP/s, {self.memory_gb_s:.4g} GB/s of memory, {self.launch_us:.3g} us an operator, "
            f"{self.link_gb_s:g} GB/s of link"
        )

    def seconds(self, work: Work, share: float = 1.0) -> float:
        """Time of sequential operators: sum max(launch, share * flops / throughput, bytes / bandwidth).

        Args:
            work: the operators.
            share: factor of the operations, for a batch with fewer rows than the metered one; its bytes, mostly of
                weights, are unchanged.

        Returns:
            Seconds.

        Source: the roofline model (Williams et al., CACM 52(4), 2009), with a floor for each operator.
        """
        speed, bandwidth = self.tflops * 1e12 / share, self.memory_gb_s * 1e9
        floor = self.launch_us * 1e-6
        return sum(
            n * max(floor, operator.flops / speed, operator.num_bytes / bandwidth) for operator, n in work.items()
        )

    def batched(self, work: Work, *, rows: float, batch_size: int) -> float:
        """Seconds of ``rows`` rows in batches of ``batch_size`` rows; the last batch may be smaller."""
        num_full, left = divmod(rows, batch_size)
        return num_full * self.seconds(work) + (self.seconds(work, left / batch_size) if left else 0.0)


def measured_speed(dtype: torch.dtype, *, device: torch.device, link_gb_s: float) -> MachineSpeed:
    """Measures this machine with a large product, a large sum, and the operators of a tiny transformer.

    Args:
        dtype: dtype of the products.
        device: the device to measure.
        link_gb_s: bandwidth between processes, which is not measured.

    Returns:
        The speed. Kernels of other shapes are slower, such as products of few rows on a CPU.
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
        fused_optimizer=device.type != "cpu",
    )


def _fastest(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of ``TURNS`` calls, after a warm-up call."""
    times = []
    for _ in range(TURNS + 1):
        _wait_for(device)
        start = time.perf_counter()
        call()
        _wait_for(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
