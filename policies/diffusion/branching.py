"""Rows as the leaves of trees: which of them share a state, and so a run of the pipeline up to it."""

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
"""Rows that have shared every state so far; the pipeline runs the first of them."""


@dataclass(frozen=True, slots=True)
class Stem:
    """Branches about to run, the decision they parted at, the step calls already drawn and what those cost."""

    branches: Sequence[Branch]
    parted_at: int = -1
    known: tuple[RecordedStep, ...] = ()
    num_forwards: int = 0

    @property
    def rows(self) -> list[DenoisingRow]:
        """The row that runs, of each branch."""
        return [branch[0] for branch in self.branches]

    @property
    def last_known(self) -> int:
        """The last decision that is drawn already; -1: none."""
        return self.known[-1].iteration if self.known else -1

    @property
    def next_split(self) -> int | None:
        """The decision that its branches part at next."""
        return self.branches[0][0].branching.next(self.parted_at)


def branching_of(plan: Plan, num_members: int) -> Branching:
    """How a plan's groups branch, their members numbered below ``num_members``.

    Noise that is shared is a tree of one split, at the first stochastic decision, into all that there are.
    """
    if plan.same_initial_noise:
        first = plan.stochastic[0] if plan.stochastic else 0
        return Branching(decisions=(first,), widths=(num_members,))
    return Branching.of(plan.splits)


def branches(rows: Sequence[DenoisingRow], decision: int) -> list[Branch]:
    """The rows by the branch they are on once a decision is taken; rows of different prompts are on none together."""
    found: dict[tuple[int, int, int], list[DenoisingRow]] = {}
    for row in rows:
        found.setdefault((row.group, row.entry, row.branch(decision)), []).append(row)
    return list(found.values())


def states_of(rows: Sequence[DenoisingRow], num_steps: int) -> Tensor:
    """(B, T) the state that each decision is taken in, numbered row by row, by the first row that is in it."""
    state_BT = torch.empty(len(rows), num_steps, dtype=torch.long)
    for t in range(num_steps):
        head_of: dict[tuple[int, int, int], int] = {}
        for index, row in enumerate(rows):
            head = head_of.setdefault((row.group, row.entry, row.branch(t - 1)), index)
            state_BT[index, t] = head * num_steps + t
    return state_BT


def require_parted(plan: Plan, mask_T: Tensor) -> None:
    """Raises ConfigError for a split at a step that nothing is drawn at."""
    T = len(mask_T)
    for split in plan.splits:
        if split.decision >= T or not bool(mask_T[split.decision]):
            raise ConfigError(
                f"the branches cannot part at decision {split.decision}: of the schedule's {T} steps "
                f"{mask_T.nonzero().flatten().tolist()} are drawn; move the split or take more steps"
            )
