"""Passes of a deep model from those of a shorter one: blocks that repeat are metered a few times and extrapolated.

The operators of a pass are linear in the repetitions of its blocks. So is the peak of memory of a rollout and of an
update, if all blocks repeat one pattern: it is reached where the tensors that all of them leave exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from mmgrpo.explain.operator_times import Work

METERED = 2
"""Repetitions in the shorter model; another model has one more."""

LONGEST = 8
"""Blocks in a pattern, such as five layers of local attention and one of global attention."""

POSITIONS = ("layer_idx", "layer_index", "layer_id", "block_idx", "block_index")
"""Attributes that state the position of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredPass:
    """The memory and the operators of a call.

    Attributes:
        num_bytes: peak of newly allocated bytes.
        work: the operators.
    """

    num_bytes: int
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedBlocks:
    """The blocks of a model, all of which repeat a pattern.

    Attributes:
        blocks: the list of them.
        period: blocks in the pattern.
    """

    blocks: nn.ModuleList
    period: int

    def extrapolated(self, meter: Callable[[], MeteredPass]) -> MeteredPass:
        """A pass of the model.

        Args:
            meter: meters the pass of a model with fewer blocks; called with two numbers of them.

        Returns:
            The pass with all blocks.
        """
        with _shortened(self.blocks, METERED * self.period):
            short = meter()
        with _shortened(self.blocks, (METERED + 1) * self.period):
            longer = meter()
        more = len(self.blocks) // self.period - METERED
        work = Counter(short.work)
        for operator in {*longer.work, *short.work}:
            work[operator] += more * (longer.work[operator] - short.work[operator])
        return MeteredPass(num_bytes=short.num_bytes + more * (longer.num_bytes - short.num_bytes), work=+work)


def repeated_blocks(modules: Sequence[nn.Module]) -> RepeatedBlocks | None:
    """The blocks of modules; None if they have several lists of blocks, or one that repeats no pattern often enough."""
    lists = [blocks for module in modules for blocks in _outer_lists(module)]
    if len(lists) != 1:
        return None
    (blocks,) = lists
    forms = [_form(block) for block in blocks]
    for period in range(1, LONGEST + 1):
        if len(forms) > (METERED + 1) * period and len(forms) % period == 0 and forms[period:] == forms[:-period]:
            return RepeatedBlocks(blocks=blocks, period=period)
    return None


def _outer_lists(part: nn.Module) -> Iterator[nn.ModuleList]:
    if isinstance(part, nn.ModuleList):
        yield part
        return
    for child in part.children():
        yield from _outer_lists(child)


def _form(block: nn.Module) -> object:
    """Everything of a block that its passes depend on: equal for blocks that differ in weights and position alone."""
    return [
        (
            name,
            type(part),
            part.extra_repr(),
            part.training,
            [(key, tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for key, tensor in _tensors(part)],
            [(key, value) for key, value in vars(part).items() if _is_plain(value) and key not in POSITIONS],
        )
        for name, part in block.named_modules()
    ]


def _tensors(part: nn.Module) -> list[tuple[str, Tensor]]:
    return [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]


def _is_plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, tuple) and all(map(_is_plain, value)))


@contextmanager
def _shortened(blocks: nn.ModuleList, number: int) -> Iterator[None]:
    """A context in which a list has its first blocks alone."""
    complete = blocks._modules
    blocks._modules = dict(list(complete.items())[:number])
    try:
        yield
    finally:
        blocks._modules = complete
