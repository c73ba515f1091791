"""What a denoising rollout remembers of itself, row by row, so that any rows can be replayed in any batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .denoising_rows import DenoisingRow
from .sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One ``step`` call as one row saw it.

    Attributes:
        iteration: the decision it belongs to.
        next_state: (1, ...) what ``step`` returned, in the dtype the pipeline goes on with: what is stored is scored.
        keep: (1, ...) bool, False where the pipeline overwrote the state afterwards; None if it did not.
        mean: (1, ...) float32 mean under the policy that sampled, if the plan keeps it.
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
        drawings: how each was drawn, and is to be scored.
        transitions: per row, its step calls in order.
        run_ghosts: whether replay has to run the denoiser in the iterations it passes through.
    """

    rows: tuple[DenoisingRow, ...]
    drawings: tuple[SamplingParams, ...]
    transitions: tuple[tuple[Transition, ...], ...]
    run_ghosts: bool = False

    def shapes(self, row: int) -> tuple[torch.Size, ...]:
        """Shapes of a row's states."""
        return tuple(transition.next_state.shape for transition in self.transitions[row])

    def alike(self, row: int, other: int) -> bool:
        """Whether two rows were drawn alike, in states of one shape."""
        return self.drawings[row] is self.drawings[other] and self.shapes(row) == self.shapes(other)


def batched_next_states(transitions: Sequence[tuple[Transition, ...]], position: int) -> Tensor:
    """The next states of several rows at one step call, as a batch the pipeline may write into."""
    return torch.cat([row[position].next_state for row in transitions])
