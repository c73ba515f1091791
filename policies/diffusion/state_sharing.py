"""Rows as leaves of trees: rows that share a state share the pipeline run up to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.splits import Branching
from mmgrpo.types import Plan

from .denoising_rows import DenoisingRow
from .recorder import RecordedStep

Branch = Sequence[DenoisingRow]
"""Rows that share every state so far; the pipeline runs the first one."""


@dataclass(frozen=True, slots=True)
class Stem:
    """Branches to run next, the decision at which they split, the step calls already sampled and their forwards."""

    branches: Sequence[Branch]
    split_at: int = -1
    recorded: tuple[RecordedStep, ...] = ()
    num_forwards: float = 0

    @property
    def rows(self) -> list[DenoisingRow]:
        """The first row of each branch, which the pipeline runs."""
        return [branch[0] for branch in self.branches]

    @property
    def last_recorded(self) -> int:
        """The last decision already sampled; -1: none."""
        return self.recorded[-1].iteration if self.recorded else -1

    @property
    def next_split(self) -> int | None:
        """The decision at which its branches split next."""
        return self.branches[0][0].branching.next(self.split_at)


def branching_of(plan: Plan, num_members: int) -> Branching:
    """How the plan's groups branch, with members numbered below ``num_members``.

    ``same_initial_noise`` is a tree with one split, at the first stochastic decision, into all members.
    """
    if plan.same_initial_noise:
        first = plan.stochastic[0] if plan.stochastic else 0
        return Branching(decisions=(first,), widths=(num_members,))
    return Branching.of(plan.splits)


def branches(rows: Sequence[DenoisingRow], decision: int) -> list[Branch]:
    """The rows grouped by their branch after a decision; rows of different prompts never share a branch."""
    branch_rows: dict[tuple[int, int, int], list[DenoisingRow]] = {}
    for row in rows:
        branch_rows.setdefault((row.group, row.entry, row.branch(decision)), []).append(row)
    return list(branch_rows.values())


def states_of(rows: Sequence[DenoisingRow], num_steps: int) -> Tensor:
    """(B, T) the state of each decision, numbered row by row after the first row in that state."""
    state_BT = torch.empty(len(rows), num_steps, dtype=torch.long)
    for t in range(num_steps):
        head_of: dict[tuple[int, int, int], int] = {}
        for index, row in enumerate(rows):
            head = head_of.setdefault((row.group, row.entry, row.branch(t - 1)), index)
            state_BT[index, t] = head * num_steps + t
    return state_BT


def require_split_noise(plan: Plan, mask_T: Tensor) -> None:
    """Raises ConfigError for a split at a step without noise."""
    T = len(mask_T)
    for split in plan.splits:
        if split.decision >= T or not bool(mask_T[split.decision]):
            raise ConfigError(
                f"branches cannot split at decision {split.decision}: of the schedule's {T} steps "
                f"{mask_T.nonzero().flatten().tolist()} are stochastic; move the split or use more steps"
            )
