"""The loss of an update written from its formulas, number by number: nothing of the objective's code is in it.

Axes: B rows, T decisions; a list of lists holds a scalar tensor for each decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Numbers = Mapping[str, Any]
Matrix = Sequence[Sequence[Tensor]]
SAMPLED = 0  # Source.ON_POLICY


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The parts of a loss, each with its numbers.

    Attributes:
        surrogate: name and numbers.
        level: of the ratio.
        bound: low and high of the pessimistic bound of each log-ratio; None: none.
        aggregate: name and numbers.
        divergence: of the reference: form, weight and level of its ratio; None: none.
        entropy_bonus: weight of the entropy.
        terms: weight by name: departure, negative_logprob, k3_old.
        selection: name and numbers; None: none.
        covariance: share of ``kl_covariance``; None: none.
        replayed: name and numbers of the surrogate of rows that are not sampled, its level and weight; None: as others.
    """

    surrogate: tuple[str, Numbers]
    level: str
    bound: tuple[float, float] | None = None
    aggregate: tuple[str, Numbers]
    divergence: tuple[str, float, str | None] | None = None
    entropy_bonus: float = 0.0
    terms: Mapping[str, float] = field(default_factory=dict)
    selection: tuple[str, Numbers] | None = None
    covariance: float | None = None
    replayed: tuple[str, Numbers, str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What a loss is a function of.

    Attributes:
        now: log-probabilities with their graph.
        entropy: likewise; None where decisions have none.
        old: those of the behavior policy.
        ref: those of the reference.
        advantage: of each decision.
        keep: whether each is trained.
        segment: of each.
        group: of each row.
        source: source of each row.
        unchanged: whether old is of the current weights, of each row.
    """

    now: Matrix
    entropy: Matrix | None
    old: Sequence[Sequence[float]]
    ref: Sequence[Sequence[float]]
    advantage: Sequence[Sequence[float]]
    keep: Sequence[Sequence[bool]]
    segment: Sequence[Sequence[int]]
    group: Sequence[int]
    source: Sequence[int]
    unchanged: Sequence[bool]


def loss_of(loss: Loss, rows: Rows) -> Tensor:
    """The scalar, with its graph."""
    cells = [(b, t) for b, mask in enumerate(rows.keep) for t, is_trained in enumerate(mask) if is_trained]
    weight = _weights(loss.aggregate, rows, cells)
    selected, in_ratio = _selected(loss.selection, rows, cells)
    factor = _factors(loss.covariance, rows, cells)
    change = {(b, t): rows.now[b][t] - rows.old[b][t] for b, t in cells}
    total = torch.zeros(())
    for b, t in cells:
        of_replayed = loss.replayed if rows.source[b] != SAMPLED else None
        name, numbers, level, times = (*loss.surrogate, loss.level, 1.0) if of_replayed is None else of_replayed
        if (b, t) in selected:
            bounded = dict(change)
            if of_replayed is None and loss.bound is not None:
                bounded = {
                    cell: _bounded(loss.bound, change[cell], _advantage(rows, cell)) for cell in cells if cell[0] == b
                }
            ratio = _at_level(level, bounded, rows, (b, t), in_ratio).exp()
            value = SURROGATES[name](ratio, rows.now[b][t], rows.advantage[b][t], **numbers)
            total = total + times * weight[b] * value
        if loss.divergence is not None:
            form, beta, level = loss.divergence
            value = DIVERGENCES[form](rows.ref[b][t] - rows.now[b][t])
            if level is not None:
                value = value * _at_level(level, change, rows, (b, t), set(cells)).exp()
            total = total + beta * weight[b] * factor[b, t] * value
        if loss.entropy_bonus:
            assert rows.entropy is not None
            total = total - loss.entropy_bonus * weight[b] * rows.entropy[b][t]
        for name, times in loss.terms.items():
            total = total + times * weight[b] * _term(name, rows, (b, t), change[b, t], factor[b, t])
    return total


def _weights(aggregate: tuple[str, Numbers], rows: Rows, cells: Sequence[tuple[int, int]]) -> list[float]:
    name, numbers = aggregate
    counts = [sum(mask) for mask in rows.keep]
    num_rows = sum(count > 0 for count in counts)
    num_groups = len({group for group, count in zip(rows.group, counts, strict=True) if count > 0})
    each = {
        "token_mean": lambda count: 1 / len(cells),
        "sequence_mean": lambda count: 1 / (count * num_rows),
        "sample_sum": lambda count: 1 / num_rows,
        "constant_length": lambda count: 1 / (num_rows * numbers["length"]),
        "group_sum": lambda count: 1 / num_groups,
    }
    return [each[name](max(count, 1)) for count in counts]


def _selected(
    selection: tuple[str, Numbers] | None, rows: Rows, cells: Sequence[tuple[int, int]]
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """The decisions whose surrogate counts, and those that a ratio is taken over."""
    every = set(cells)
    if selection is None:
        return every, every
    name, numbers = selection
    if name == "near_policy":
        fall = mean_falls(rows)
        return {(b, t) for b, t in cells if rows.advantage[b][t] >= 0 or fall[b] <= numbers["limit"]}, every
    assert rows.entropy is not None
    entropy = {(b, t): rows.entropy[b][t].item() for b, t in cells}
    highest = set()
    for cell in cells:
        among = [entropy[other] for other in cells if name != "sample_top_entropy" or other[0] == cell[0]]
        if entropy[cell] >= float(torch.tensor(among).quantile(1 - numbers["share"])):
            highest.add(cell)
    return (every, highest) if name == "ratio_top_entropy" else (highest, every)


def mean_falls(rows: Rows) -> dict[int, float]:
    """By how much the log-probability of each trained row fell, the mean over its decisions."""
    return {
        b: sum(rows.old[b][t] - rows.now[b][t].item() for t, is_trained in enumerate(mask) if is_trained) / sum(mask)
        for b, mask in enumerate(rows.keep)
        if any(mask)
    }


def _factors(share: float | None, rows: Rows, cells: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """1, or where a covariance chooses: 1 for the decisions of the highest, 0 for the others."""
    if share is None:
        return dict.fromkeys(cells, 1.0)
    logprob = {(b, t): rows.now[b][t].item() for b, t in cells}
    means = [sum(each) / len(cells) for each in ([_advantage(rows, cell) for cell in cells], list(logprob.values()))]
    size = {cell: (_advantage(rows, cell) - means[0]) * (logprob[cell] - means[1]) for cell in cells}
    least = sorted(size.values(), reverse=True)[max(int(share * len(cells)), 1) - 1]
    return {cell: float(size[cell] >= least) for cell in cells}


def _advantage(rows: Rows, cell: tuple[int, int]) -> float:
    return rows.advantage[cell[0]][cell[1]]


def _bounded(bound: tuple[float, float], change: Tensor, advantage: float) -> Tensor:
    low, high = bound
    limited = min(change.item(), high) if advantage > 0 else max(change.item(), -low)
    return change if limited == change.item() else torch.tensor(limited)


def _at_level(
    level: str, change: Mapping[tuple[int, int], Tensor], rows: Rows, cell: tuple[int, int], among: set[tuple[int, int]]
) -> Tensor:
    b, t = cell
    if level == "token":
        return change[cell]
    cells = [other for other in change if other[0] == b and other in among]
    if level == "segment":
        cells = [other for other in cells if rows.segment[b][other[1]] == rows.segment[b][t]]
    if not cells:
        return torch.zeros(())
    total = torch.stack([change[other] for other in cells]).sum()
    return total if level == "trajectory" else total / len(cells)


def _term(name: str, rows: Rows, cell: tuple[int, int], change: Tensor, factor: float) -> Tensor:
    b, t = cell
    if name == "negative_logprob":
        return -rows.now[b][t]
    if name == "departure":
        return change * 0.0 if rows.unchanged[b] else factor * change * math.copysign(1.0, change.item())
    assert name == "k3_old"
    return factor * DIVERGENCES["k3"](rows.old[b][t] - rows.now[b][t])


def _constant(number: float) -> Tensor:
    return torch.tensor(number)


def clipped(ratio: Tensor, now: Tensor, advantage: float, *, low: float, high: float) -> Tensor:
    """PPO: no gradient beyond the bound on the side of the gain."""
    if advantage > 0 and ratio.item() > 1 + high:
        return _constant(-advantage * (1 + high))
    if advantage < 0 and ratio.item() < 1 - low:
        return _constant(-advantage * (1 - low))
    return -advantage * ratio


def dual_clipped(ratio: Tensor, now: Tensor, advantage: float, *, low: float, high: float, bound: float) -> Tensor:
    """PPO with a ceiling on the loss of decisions of negative advantage."""
    if advantage < 0 and ratio.item() > bound:
        return _constant(-advantage * bound)
    return clipped(ratio, now, advantage, low=low, high=high)


def two_sided_clipped(ratio: Tensor, now: Tensor, advantage: float, *, low: float, high: float, delta: float) -> Tensor:
    """PPO whose unclipped ratio has a ceiling."""
    if advantage < 0 and ratio.item() > max(delta, 1 + high):
        return _constant(-advantage * max(delta, 1 + high))
    return clipped(ratio, now, advantage, low=low, high=high)


def cispo(ratio: Tensor, now: Tensor, advantage: float, *, low: float | None, high: float) -> Tensor:
    """The bounded ratio as a constant weight of the log-likelihood."""
    weight = min(ratio.item(), 1 + high)
    return -advantage * (weight if low is None else max(weight, 1 - low)) * now


def sapo(
    ratio: Tensor, now: Tensor, advantage: float, *, positive_temperature: float, negative_temperature: float
) -> Tensor:
    """A sigmoid of the ratio."""
    heat = positive_temperature if advantage > 0 else negative_temperature
    return -advantage * 4 / heat / (1 + torch.exp(-heat * (ratio - 1)))


def vespo(
    ratio: Tensor,
    now: Tensor,
    advantage: float,
    *,
    positive_power: float,
    positive_decay: float,
    negative_power: float,
    negative_decay: float,
) -> Tensor:
    """A weight r^k exp(lambda (1 - r)) without gradient."""
    power, decay = (negative_power, negative_decay) if advantage < 0 else (positive_power, positive_decay)
    return -advantage * (ratio.item() ** power * math.exp(decay * (1 - ratio.item()))) * now


SURROGATES: Mapping[str, Callable[..., Tensor]] = {
    "clipped": clipped,
    "dual_clipped": dual_clipped,
    "two_sided_clipped": two_sided_clipped,
    "cispo": cispo,
    "sapo": sapo,
    "vespo": vespo,
    "policy_gradient": lambda ratio, now, advantage: -advantage * now,
    "unclipped": lambda ratio, now, advantage: -advantage * ratio,
    "spo": lambda ratio, now, advantage, eps: abs(advantage) * (ratio - 1) ** 2 / (2 * eps) - advantage * ratio,
}

DIVERGENCES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: -d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: d.exp() - 1 - d,
}
"""Of d = other - now."""
