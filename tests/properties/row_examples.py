"""Rows of decisions for property tests: groups of any rewards, masks of any shape, trees, chains, views.

Values at masked decisions and of rewards that do not apply may be anything: ``junk`` is written there. Numbers are
multiples of 1/64, which are exact in float32 and float64.

Axes: B samples, T decisions, S scopes of a sample, N samples of all processes (here N = B).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from mmgrpo.maths.aggregates import count, sequence_mean
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.feedback import Feedback, SampleColumn, Scoped, Turns, job_feedback, joined
from mmgrpo.values import OLD, REFERENCE, Value, mask_of_view

GRID = 64
SIZES: Sequence[Sequence[int]] = ([4, 3], [4, 4, 2], [3, 1, 2], [6, 6], [2], [1], [1, 1, 1, 1])
JUNK = (float("nan"), float("inf"), -float("inf"), 1e30)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The structure of some rows, which ``Feedback`` and ``Decisions`` are made of.

    Attributes:
        random: of everything else that is made of the rows.
    """

    random: Random
    group_B: Tensor
    reward_B: Tensor
    valid_B: Tensor
    mask_BT: Tensor
    token_BT: Tensor
    state_BT: Tensor
    segment_BT: Tensor
    sampled_by_BT: Tensor | None
    after_B: Tensor | None
    source_B: Tensor | None
    step: int

    def grid(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """float32 multiples of 1/64 within bounds."""
        steps = [self.random.randint(int(low * GRID), int(high * GRID)) for _ in range(_size(shape))]
        return torch.tensor(steps, dtype=torch.float32).reshape(shape) / GRID

    def flags(self, *shape: int, chance: float) -> Tensor:
        """bool, each True with a chance."""
        return torch.tensor([self.random.random() < chance for _ in range(_size(shape))]).bool().reshape(shape)

    def integers(self, *shape: int, low: int, high: int) -> Tensor:
        """int64 within bounds, the upper one included."""
        return torch.tensor([self.random.randint(low, high) for _ in range(_size(shape))]).reshape(shape)

    def per_group(self, *, low: float, high: float) -> Tensor:
        """(B,) float64, the same number for all rows of a group."""
        number = {group: self.random.randint(int(low * GRID), int(high * GRID)) / GRID for group in set(self.groups)}
        return torch.tensor([number[group] for group in self.groups], dtype=torch.float64)

    @property
    def groups(self) -> list[int]:
        return self.group_B.tolist()


@st.composite
def rows(draw: st.DrawFn, *, rewards: str = "any", ties: bool = True, ordered: bool = False) -> Rows:
    """Rows of some groups.

    Args:
        draw: of hypothesis.
        rewards: ``any`` kind in each group, or ``equal`` in all.
        ties: whether rewards of a group may be equal.
        ordered: whether the rows of a group are adjacent.

    Returns:
        The rows.
    """
    sizes, T = draw(st.sampled_from(SIZES)), draw(st.sampled_from([5, 3, 1, 6]))
    shape = draw(st.sampled_from(["prefix", "holes", "full"]))
    tree, chain, reads, all_valid, apart = (draw(st.booleans()) for _ in range(5))
    random = Random(draw(st.integers(0, 2**32)))
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    if apart and not ordered:
        random.shuffle(groups)
    B = len(groups)
    reward_B = torch.zeros(B, dtype=torch.float64)
    for group in range(len(sizes)):
        members = [row for row in range(B) if groups[row] == group]
        values = _rewards(random, len(members), rewards, ties)
        reward_B[members] = torch.tensor(values, dtype=torch.float64)
    mask, token, sampled_by = _decisions(random, groups, T, shape, tree)
    return Rows(
        random=random,
        group_B=torch.tensor(groups),
        reward_B=reward_B,
        valid_B=torch.tensor([all_valid or random.random() < 0.75 for _ in groups]),
        mask_BT=torch.tensor(mask).reshape(B, T).bool(),
        token_BT=torch.tensor(token).reshape(B, T),
        state_BT=torch.tensor(_states(groups, mask, token)).reshape(B, T),
        segment_BT=torch.tensor([sorted(random.randint(0, 2) for _ in range(T)) for _ in groups]),
        sampled_by_BT=torch.tensor(sampled_by).reshape(B, T) if tree else None,
        after_B=torch.tensor(_after(random, groups)) if chain else None,
        source_B=torch.tensor([random.choice([0, 0, 1, 2]) for _ in groups]) if reads else None,
        step=random.randint(0, 4),
    )


def _size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _rewards(random: Random, num: int, kind: str, ties: bool) -> list[float]:
    if kind == "equal":
        return [random.choice([0.0, 1.0, 0.3])] * num
    if not ties:
        return [step / GRID for step in random.sample(range(GRID + 1), num)]
    which = random.choice(["binary", "binary", "levels", "real", "equal"])
    if which == "equal":
        return [random.choice([0.0, 1.0, 0.5])] * num
    values = {"binary": [0.0, 1.0], "levels": [0.0, 0.25, 0.5, 1.0], "real": [step / GRID for step in range(GRID + 1)]}
    return [random.choice(values[which]) for _ in range(num)]


def _decisions(random: Random, groups: Sequence[int], T: int, shape: str, tree: bool) -> tuple[Any, Any, Any]:
    """The mask, the tokens and the row that sampled each decision; rows of a tree take over beginnings of others."""
    mask, token, sampled_by = [], [], []
    for row, group in enumerate(groups):
        length = random.choice([T, T, random.randint(0, T)])
        keep = [shape == "full" or (t < length and (shape == "prefix" or random.random() < 0.7)) for t in range(T)]
        words, by = [random.randint(0, 2) for _ in range(T)], [row] * T
        earlier = [other for other in range(row) if groups[other] == group]
        if tree and earlier and random.random() < 0.7:
            source = random.choice(earlier)
            num = random.randint(0, max(sum(mask[source]) - 1, 0))
            num = num if num < T else 0
            keep[:num], words[:num], by[:num] = mask[source][:num], token[source][:num], sampled_by[source][:num]
        mask.append(keep)
        token.append(words)
        sampled_by.append(by)
    return mask, token, sampled_by


def _states(groups: Sequence[int], mask: Any, token: Any) -> list[list[int]]:
    """Ids of what was decided before each decision, the same for the rows of a group that decided the same."""
    ids: dict[Any, int] = {}
    return [
        [
            ids.setdefault((group, *zip(mask[row][:t], token[row][:t], strict=True)), len(ids))
            for t in range(len(mask[row]))
        ]
        for row, group in enumerate(groups)
    ]


def _after(random: Random, groups: Sequence[int]) -> list[int]:
    earlier = [[other for other in range(row) if groups[other] == group] for row, group in enumerate(groups)]
    return [random.choice(others) if others and random.random() < 0.6 else -1 for others in earlier]


RANGES = {
    "logprob": (-3.0, -1 / GRID),
    "logprob_mean": (-4.0, -1.0),
    "top_logprob": (-2.0, -1 / GRID),
    "value": (-1.0, 1.0),
    "gradient_curvature": (-1.0, 1.0),
    "rank_velocity": (-1.0, 1.0),
    "rank_acceleration": (-1.0, 1.0),
}
"""Bounds of values that are not from 0 to 2."""


def value_of(rows: Rows, value: Value) -> Tensor:
    """(B, T) float32 numbers that such a value may have."""
    B, T = rows.mask_BT.shape
    if value.name == "view_mask":
        return rows.flags(B, 1, chance=0.6).float().expand(B, T).clone()
    if value.name == "rank":
        return rows.integers(B, T, low=0, high=2).float()
    if value.name == "end_logprob":
        last_BT = rows.mask_BT & (rows.mask_BT.cumsum(1) == rows.mask_BT.sum(1, keepdim=True))
        ended_BT = last_BT & rows.flags(B, 1, chance=0.7)
        return rows.grid(B, T, low=-24, high=-8).where(ended_BT, 0.0)
    low, high = RANGES.get(value.name, (0.0, 2.0))
    return rows.grid(B, T, low=low, high=high)


def values_of(rows: Rows, values: Iterable[Value]) -> dict[Value, Tensor]:
    """Values by name, and of views whether each row has them, as in a run."""
    views = {value.view for value in values if value.view not in (None, OLD, REFERENCE)}
    every = {*values, *(mask_of_view(str(view)) for view in views)}
    return {value: value_of(rows, value) for value in sorted(every, key=str)}


def scoped_of(rows: Rows, *, each_turn: bool = False) -> Scoped:
    """Scores of spans; of turns every decision is in one."""
    B, T = rows.mask_BT.shape
    scope_BT = rows.integers(B, T, low=0 if each_turn else -1, high=2).sort(1).values
    return Scoped(scope_BT=scope_BT, value_BS=rows.grid(B, 3, low=0, high=1), valid_BS=rows.flags(B, 3, chance=0.8))


def advantage_of(rows: Rows) -> Tensor:
    """(B, T) float32 advantages of the samples, the same at all their decisions; 0 where no reward applies."""
    B, T = rows.mask_BT.shape
    return rows.grid(B, 1, low=-2, high=2).where(rows.valid_B[:, None], 0.0).expand(B, T).clone()


def feedback_of(rows: Rows, part: Any, labels: Sequence[str] = ()) -> Feedback:
    """The rows with all that an estimator or a filter declares to read, and single rewards of these labels."""
    B, T = rows.mask_BT.shape
    values = values_of(rows, part.values)
    old_logprob_BT = rows.grid(B, T, low=-3, high=-1 / GRID)
    memory = getattr(part, "memory", ())
    turns = scoped_of(rows, each_turn=True) if getattr(part, "turns", False) else None
    keys = [[rows.random.choice(["a", "ab", "c", None]) for _ in range(3)] for _ in range(B)]
    return Feedback(
        reward_B=rows.reward_B,
        valid_B=rows.valid_B,
        group_B=rows.group_B,
        mask_BT=rows.mask_BT,
        segment_BT=rows.segment_BT,
        state_BT=rows.state_BT,
        old_logprob_BT=old_logprob_BT,
        finished_B=rows.flags(B, chance=0.8),
        job=job_feedback(rows.reward_B, rows.valid_B, rows.group_B, rows.mask_BT, old_logprob_BT, values),
        std_BT=rows.grid(B, T, low=1 / GRID, high=1),
        token_BT=rows.token_BT,
        values=values,
        rewards={
            name: SampleColumn(value_B=rows.grid(B, low=0, high=1).double(), valid_B=rows.flags(B, chance=0.8))
            for name in labels
        },
        columns={name: rows.per_group(low=0, high=1) for name in part.columns},
        scoped={name: scoped_of(rows) for name in getattr(part, "parts", ())},
        source_B=rows.source_B,
        sampled_by_BT=rows.sampled_by_BT,
        after_B=rows.after_B,
        step=rows.step,
        memory_columns={column.name: rows.per_group(low=0, high=1) for column in memory},
        exchanges=None if turns is None else Turns(rewards=turns, keys_B_S=keys),
    )


def decisions_of(rows: Rows, values: Sequence[Value]) -> Decisions:
    """The rows under the current policy, near the one that sampled them, with the weights of ``sequence_mean``."""
    B, T = rows.mask_BT.shape
    old_BT = rows.grid(B, T, low=-3, high=-1)
    totals = count(rows.mask_BT, group_B=rows.group_B)
    reward_B1 = rows.reward_B.float().where(rows.valid_B, torch.nan)[:, None]
    return Decisions(
        logprob_BT=old_BT + rows.grid(B, T, low=-1, high=1 - 1 / GRID).where(rows.flags(B, T, chance=0.8), 0.0),
        old_logprob_BT=old_BT,
        advantage_BT=advantage_of(rows),
        mask_BT=rows.mask_BT,
        weight_BT=sequence_mean(rows.mask_BT, totals),
        segment_BT=rows.segment_BT,
        mean_weight_BT=sequence_mean(rows.mask_BT, totals),
        std_BT=rows.grid(B, T, low=1 / GRID, high=1),
        reward_BT=reward_B1.expand(B, T).clone(),
        group_BT=rows.group_B[:, None].expand(B, T).clone(),
        source_BT=None if rows.source_B is None else rows.source_B[:, None].expand(B, T).clone(),
        num_groups=float(max(totals.num_groups, 1)),
        values=values_of(rows, values),
    )


def map_feedback(
    feedback: Feedback, of_rows: Callable[[Tensor], Tensor], of_job: Callable[[Tensor], Tensor], number: Tensor
) -> Feedback:
    """The feedback with a function of every tensor of its rows, one of those of the job, and new numbers of rows.

    Args:
        feedback: of some rows.
        of_rows: (B, ...) -> some rows.
        of_job: (N,) -> some rows.
        number: (B,) the new number of each row.

    Returns:
        The feedback.
    """

    def scoped(each: Scoped) -> Scoped:
        return Scoped(scope_BT=of_rows(each.scope_BT), value_BS=of_rows(each.value_BS), valid_BS=of_rows(each.valid_BS))

    changed: dict[str, Any] = {
        each.name: of_rows(tensor)
        for each in fields(feedback)
        if isinstance(tensor := getattr(feedback, each.name), Tensor)
    }
    if feedback.sampled_by_BT is not None:
        changed["sampled_by_BT"] = number[changed["sampled_by_BT"]]
    if feedback.after_B is not None:
        changed["after_B"] = number[changed["after_B"]].where(changed["after_B"] >= 0, -1)
    job = feedback.job
    changed["job"] = replace(
        job,
        **{  # pyrefly: ignore[bad-argument-type]
            name: of_job(getattr(job, name))
            for name in ("reward_N", "valid_N", "group_N", "length_N", "logprob_mean_N")
        },
        value_mean={value: of_job(mean_N) for value, mean_N in job.value_mean.items()},
    )
    if feedback.exchanges is not None:
        turns = feedback.exchanges
        index = of_rows(torch.arange(len(turns.keys_B_S))).tolist()
        changed["exchanges"] = Turns(rewards=scoped(turns.rewards), keys_B_S=[turns.keys_B_S[row] for row in index])
    return replace(
        feedback,
        **changed,
        values={value: of_rows(tensor) for value, tensor in feedback.values.items()},
        rewards={
            name: SampleColumn(value_B=of_rows(column.value_B), valid_B=of_rows(column.valid_B))
            for name, column in feedback.rewards.items()
        },
        columns={name: of_rows(column) for name, column in feedback.columns.items()},
        scoped={name: scoped(each) for name, each in feedback.scoped.items()},
        memory_columns={name: of_job(column) for name, column in feedback.memory_columns.items()},
    )


def permuted(feedback: Feedback, order: Tensor) -> Feedback:
    """The rows in another order."""
    return map_feedback(feedback, lambda tensor: tensor[order], lambda tensor: tensor[order], order.argsort())


def process_parts(feedback: Feedback, order: Tensor, num: int) -> list[Feedback]:
    """The rows of each of two processes: the first so many of an order, of complete groups, or those that follow."""
    slices = [part for part in (slice(0, num), slice(num, len(order))) if part.stop > part.start]
    parts = []
    for local_rows in slices:
        indices = order[local_rows]
        number = torch.full((len(order),), -1).scatter(0, indices, torch.arange(len(indices)))
        parts.append(map_feedback(feedback, _taken(indices), _taken(order), number))
    columns = [
        job_feedback(part.reward_B, part.valid_B, part.group_B, part.mask_BT, part.old_logprob_BT, part.values)
        for part in parts
    ]
    return [replace(part, job=joined(columns, rank)) for rank, part in enumerate(parts)]


def _taken(order: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor[order]


def relabeled(feedback: Feedback, group_of: Callable[[Tensor], Tensor]) -> Feedback:
    """The groups under other numbers."""
    job = replace(feedback.job, group_N=group_of(feedback.job.group_N))
    return replace(feedback, group_B=group_of(feedback.group_B), job=job)


def junk(tensor: Tensor, keep: Tensor) -> Tensor:
    """A tensor with NaN, infinities and large numbers where nothing is kept; integers and flags stay."""
    if not tensor.is_floating_point():
        return tensor
    values = torch.tensor(JUNK).repeat(tensor.numel() // len(JUNK) + 1)[: tensor.numel()].reshape(tensor.shape)
    return tensor.where(keep, values.to(tensor))


def junk_feedback(feedback: Feedback) -> Feedback:
    """The feedback with junk wherever its contract says that a number may be anything."""
    mask_BT, valid_B, job = feedback.mask_BT, feedback.valid_B, feedback.job
    changed = {
        name: junk(tensor, mask_BT)
        for name in ("old_logprob_BT", "std_BT")
        if (tensor := getattr(feedback, name)) is not None
    }
    has_token_BT = feedback.token_BT
    return replace(
        feedback,
        **changed,  # pyrefly: ignore[bad-argument-type]
        token_BT=None if has_token_BT is None else has_token_BT.where(mask_BT, -1),
        reward_B=junk(feedback.reward_B, valid_B),
        job=replace(job, reward_N=junk(job.reward_N, job.valid_N)),
        values={
            value: tensor if value.name == "view_mask" else junk(tensor, mask_BT)
            for value, tensor in feedback.values.items()
        },
        rewards={
            name: replace(column, value_B=junk(column.value_B, column.valid_B))
            for name, column in feedback.rewards.items()
        },
        scoped={name: _junk_scoped(each) for name, each in feedback.scoped.items()},
        exchanges=None
        if feedback.exchanges is None
        else replace(feedback.exchanges, rewards=_junk_scoped(feedback.exchanges.rewards)),
    )


def _junk_scoped(scoped: Scoped) -> Scoped:
    return replace(scoped, value_BS=junk(scoped.value_BS, scoped.valid_BS))


def double(feedback: Feedback) -> Feedback:
    """The feedback with what is measured of decisions in float64."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    return map_feedback(feedback, cast, cast, torch.arange(len(feedback.group_B)))


def unlikely(feedback: Feedback) -> Feedback:
    """The feedback with log-probabilities down to -100, and other values of decisions of 0."""
    values = {
        value: tensor * 32 if value.name in ("logprob", "end_logprob") else torch.zeros_like(tensor)
        for value, tensor in feedback.values.items()
    }
    old_logprob_BT = feedback.old_logprob_BT * 32
    job = job_feedback(feedback.reward_B, feedback.valid_B, feedback.group_B, feedback.mask_BT, old_logprob_BT, values)
    return replace(feedback, old_logprob_BT=old_logprob_BT, values=values, job=job)


def without_decisions(feedback: Feedback) -> Feedback:
    """The feedback with no kept decision."""
    mask_BT = torch.zeros_like(feedback.mask_BT)
    job = job_feedback(
        feedback.reward_B, feedback.valid_B, feedback.group_B, mask_BT, feedback.old_logprob_BT, feedback.values
    )
    return replace(feedback, mask_BT=mask_BT, job=job)
