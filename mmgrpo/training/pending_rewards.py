"""The pending scores of a step with several rounds: groups are scored with their final members.

Axes: B rows of this process, of all rounds, one round after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from torch import Tensor

from mmgrpo.scoring import PendingScores, Scorer
from mmgrpo.types import Sample, Scores


@dataclass(frozen=True, slots=True)
class PendingSamples:
    """The rewards' work on some samples.

    Attributes:
        pending: takes samples and gives their scores.
        samples: in order.
        scores: the scores, if already awaited.
    """

    pending: PendingScores
    samples: Sequence[Sample]
    scores: Scores | None = None

    def collected(self) -> Scores:
        """The scores, waited for now if they were not."""
        return self.pending.collect(self.samples) if self.scores is None else self.scores


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRewards:
    """The rewards' work on the rows of a step.

    Attributes:
        rounds: on all rows of each round.
        rows: those of them that are the step's, counted over all rounds.
        regrouped: on the members of groups that were scored in several rounds, once they are complete, and on those
            that were sampled after others with these; None: there are none.
        regrouped_rows: their indices among those of the step; None for those that are not of the step.
    """

    rounds: Sequence[PendingSamples]
    rows: Sequence[int]
    regrouped: PendingSamples | None = None
    regrouped_rows: Sequence[int | None] = ()

    def collected(self) -> Scores:
        """The scores of the step's rows, waited for now if they were not."""
        rounds = [pending.collected() for pending in self.rounds]
        duration_s = {name: sum(pending.duration_s[name] for pending in rounds) for name in rounds[0].duration_s}
        scores = replace(Scores.concat(rounds).rows(self.rows), duration_s=duration_s)
        if self.regrouped is None:
            return scores
        of_step = [index for index, row in enumerate(self.regrouped_rows) if row is not None]
        rows = [row for row in self.regrouped_rows if row is not None]
        return scores.updated(rows, self.regrouped.collected().rows(of_step))


def pending_rewards(
    scorer: Scorer | None,
    rounds: Sequence[PendingSamples],
    trained_B: Tensor,
    keep_B: Tensor,
    root_of: Mapping[int, int] | None = None,
) -> PendingRewards:
    """Calls the rewards that may compare the members of a group once more, if no round had the final group.

    Args:
        scorer: the rewards; None: another process calls them.
        rounds: their work so far.
        trained_B: bool, the rows that may be trained on.
        keep_B: bool, those that groups are compared by.
        root_of: the group whose data row a group has, where that is another one.

    Returns:
        The work, begun.
    """
    rows = trained_B.nonzero().flatten().tolist()
    comparing = scorer.comparing() if scorer else None
    samples_of_rounds = [sample for work in rounds for sample in work.samples]
    chains = in_chains(samples_of_rounds, root_of or {}) if len(rounds) > 1 else []
    parted = in_pieces([work.samples for work in rounds], keep_B) if comparing else []
    pieces = [*chains, *(row for row in parted if row not in set(chains))]
    if comparing is None or not pieces:
        return PendingRewards(rounds=rounds, rows=rows)
    samples = [samples_of_rounds[row] for row in pieces]
    pending = comparing.open(group_sizes=Counter(sample.group for sample in samples))
    pending.submit(samples)
    index_of = {row: index for index, row in enumerate(rows)}
    return PendingRewards(
        rounds=rounds,
        rows=rows,
        regrouped=PendingSamples(pending, samples),
        regrouped_rows=[index_of.get(row) for row in pieces],
    )


def in_chains(samples: Sequence[Sample], root_of: Mapping[int, int]) -> list[int]:
    """The rows of every family in which some are sampled after others, trained or not: they are scored together.

    A family is a group with all that have its data row.

    Shapes: B samples -> rows, those of a family side by side, its groups one after the other.
    """
    family_B = [root_of.get(sample.group, sample.group) for sample in samples]
    chained = {family for family, sample in zip(family_B, samples, strict=True) if sample.follows}
    rows = [row for row, family in enumerate(family_B) if family in chained]
    return sorted(rows, key=lambda row: (family_B[row], samples[row].group, samples[row].member))


def in_pieces(rounds: Sequence[Sequence[Sample]], keep_B: Tensor) -> list[int]:
    """The kept rows of every group whose kept members are not exactly those that one round brought.

    Shapes: samples of each round, (B,) -> rows, those of a group side by side.
    """
    starts = accumulate([len(samples) for samples in rounds], initial=0)
    brought = [_by_group(samples, start) for samples, start in zip(rounds, starts, strict=False)]
    keep = keep_B.tolist()
    rows_of_group: dict[int, list[int]] = {}
    for groups in brought:
        for group, rows in groups.items():
            rows_of_group.setdefault(group, []).extend(row for row in rows if keep[row])
    return [
        row
        for group, rows in rows_of_group.items()
        if all(groups_of_round.get(group) != rows for groups_of_round in brought)
        for row in rows
    ]


def _by_group(samples: Sequence[Sample], start: int) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for row, sample in enumerate(samples, start):
        groups.setdefault(sample.group, []).append(row)
    return groups
