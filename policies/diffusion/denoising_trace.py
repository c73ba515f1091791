"""The trace of a denoising rollout, row by row, so that any rows can be replayed in any batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .denoising_rows import DenoisingRow
from .sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One ``step`` call of one row.

    Attributes:
        iteration: its decision.
        next_state: (1, ...) the result of ``step``, in the pipeline's dtype: the stored state is the scored state.
        keep: (1, ...) bool, False where the pipeline overwrote the state afterwards; None if it did not.
        mean: (1, ...) float32 mean under the behavior policy, if the plan stores it.
    """

    iteration: int
    next_state: Tensor
    keep: Tensor | None = None
    mean: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoisingTrace:
    """The record of a rollout.

    Attributes:
        rows: B identities.
        row_params: sampling parameters per row.
        transitions: per row, its step calls in order.
        run_ghosts: whether replay runs the denoiser in ghost iterations.
    """

    rows: tuple[DenoisingRow, ...]
    row_params: tuple[SamplingParams, ...]
    transitions: tuple[tuple[Transition, ...], ...]
    run_ghosts: bool = False

    def shapes(self, row: int) -> tuple[torch.Size, ...]:
        """Shapes of a row's states."""
        return tuple(transition.next_state.shape for transition in self.transitions[row])

    def alike(self, row: int, other: int) -> bool:
        """Whether two rows have the same sampling parameters and states of one shape."""
        return self.row_params[row] is self.row_params[other] and self.shapes(row) == self.shapes(other)


def batched_next_states(transitions: Sequence[tuple[Transition, ...]], position: int) -> Tensor:
    """The next states of several rows at one step call, as a new batch."""
    return torch.cat([row[position].next_state for row in transitions])
