"""Filters: choose the samples or decisions that train, after the advantages are computed. Normalizers count the kept
ones.

Each filter handles every group separately. Its members are the samples to which a reward applies and that have a kept
decision; others are not kept. Ties keep the order of the members.

Axes: B samples, T decisions, G members of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate

from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.maths.estimators.tree_credit import forest_of
from mmgrpo.maths.factories import Numbers, factory
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import grouped
from mmgrpo.maths.registry import Registry
from mmgrpo.system.lazy import torch
from mmgrpo.values import Value

if TYPE_CHECKING:
    from torch import Tensor

FILTERS: Registry[Callable[..., Filter]] = Registry(arguments=(), decorator="mmgrpo.maths.filters.sample_filter")
"""Filters by the name that a method's configuration uses; called with their numbers, applied in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """One filter, its settings bound.

    Attributes:
        keep: (feedback, advantage_BT) -> bool keep_B, or keep_BT where single decisions are chosen.
        values: values that the feedback must have besides the log-probability.
        columns: columns of the data rows that it reads, of numbers.
        keeps: members of a group that it keeps at most; None: as many as there are.
    """

    keep: Callable[[Feedback, Tensor], Tensor]
    values: tuple[Value, ...] = ()
    columns: tuple[str, ...] = ()
    keeps: int | None = None


def sample_filter(
    *,
    values: Callable[..., tuple[Value, ...]] | tuple[Value, ...] = (),
    columns: Callable[..., tuple[str, ...]] | tuple[str, ...] = (),
    keeps: Callable[..., int | None] | int | None = None,
    check: Callable[..., Any] | None = None,
) -> Callable[[Callable[Concatenate[Feedback, Tensor, Numbers], Tensor]], Callable[Numbers, Filter]]:
    """A decorator: a function (feedback, advantage_BT, *, numbers) -> keep_B or keep_BT becomes a factory of filters.

    Args:
        values: as the attribute of ``Filter``, or a function of the settings that it names; so are those that follow.
        columns: likewise.
        keeps: likewise.
        check: raises ConfigError for settings that do not go together; called with those that it names.

    Returns:
        The decorator.
    """
    return factory(Filter, "keep", check=check, values=values, columns=columns, keeps=keeps)


def require_positive(count: int) -> None:
    """Raises ConfigError for less than one member."""
    if count < 1:
        raise ConfigError(f"keep at least one member of a group, got {count}")


def require_measured(count: int, by: str) -> None:
    """Raises ConfigError for less than one member, UnknownNameError for a measure that is none of ``MEASURES``."""
    require_positive(count)
    if by not in MEASURES:
        raise UnknownNameError(f"unknown measure {by!r}; choose from {', '.join(MEASURES)}")


def _check_best_and_worst(best: int, worst: int) -> None:
    if best < 0 or worst < 0 or best + worst == 0:
        raise ConfigError(f"best and worst must not be negative, and not both 0, got {best} and {worst}")


@FILTERS.register
@sample_filter(keeps=lambda best, worst: best + worst, check=_check_best_and_worst)
def best_and_worst(feedback: Feedback, advantage_BT: Tensor, *, best: int, worst: int) -> Tensor:
    """The members of the highest and of the lowest rewards.

    keep = the ``best`` highest r, and of the others the ``worst`` lowest.

    Units: members.   Raises: ConfigError for negative numbers, or if no member is kept.
    Source: DanceGRPO, arXiv:2505.07818, and its code's best-of-N: 4 and 4 of 16, 8 and 8 of 24.
    """
    del advantage_BT
    keep_B = torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        keep_B[rows[highest_and_lowest(feedback.reward_B[rows], best, worst)]] = True
    return keep_B


@FILTERS.register
@sample_filter(keeps=lambda count: count, check=require_measured)
def most_efficient(feedback: Feedback, advantage_BT: Tensor, *, count: int, by: str = "length") -> Tensor:
    """The ``count`` shortest members, or those of the most reward per decision.

    keep = the ``count`` highest of -T (``length``) or r / T (``reward_per_decision``), T the kept decisions.

    Units: count is members.   Raises: ConfigError for none; UnknownNameError for another measure.
    Source: GFPO, arXiv:2508.09726. There the kept members are also compared only with each other: the estimator
        ``among_most_efficient`` does that.
    """
    del advantage_BT
    return most_efficient_B(feedback, count=count, by=by)


@FILTERS.register
@sample_filter()
def each_decision_once(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    """A decision that several samples share trains in the first of them: means over decisions count it once.

    keep_BT = whether no earlier row took the decision, by the nodes of the group's forest. It ignores other
    filters.

    Units: none.
    Source: SPO-tree's code (AIFrameResearch/SPO, extract_edges_from_tree), which trains a row for every edge.
    """
    del advantage_BT
    tree = forest_of(feedback)
    row_BT = torch.arange(len(tree.mask_BT))[:, None].expand_as(tree.mask_BT)
    reached_K = tree.to_BT[tree.mask_BT]
    first_M = torch.full_like(tree.depth_M, len(row_BT)).scatter_reduce(0, reached_K, row_BT[tree.mask_BT], "amin")
    return tree.mask_BT & (tree.at_decisions(first_M) == row_BT)


def most_efficient_B(feedback: Feedback, *, count: int, by: str) -> Tensor:
    """The ``count`` members of each group that are highest by one of ``MEASURES``. Shapes: -> bool (B,)."""
    value_B = MEASURES[by](feedback)
    keep_B = torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        keep_B[rows[descending_order(value_B[rows])[:count]]] = True
    return keep_B


MEASURES: Mapping[str, Callable[[Feedback], Tensor]] = MappingProxyType(
    {
        "length": lambda feedback: -feedback.length_B.double(),
        "reward_per_decision": lambda feedback: feedback.reward_B / feedback.length_B.clamp(min=1),
    }
)
"""The measures of ``most_efficient``, the highest first."""


def standardized_among(feedback: Feedback, advantage_BT: Tensor, keep_B: Tensor, *, eps: float) -> Tensor:
    """Rewards standardized over the members of each group that are kept; 0 for the others, and where all are equal.

    Shapes: (B, T), bool (B,) -> (B, T).
    """
    advantage_B = torch.zeros_like(feedback.reward_B)
    for rows in members(feedback):
        selected_rows = rows[keep_B[rows]]
        reward_G = feedback.reward_B[selected_rows]
        if len(selected_rows) > 1 and bool((reward_G != reward_G[0]).any()):
            advantage_B[selected_rows] = (reward_G - reward_G.mean()) / (reward_G.std() + eps)
    return advantage_B[:, None].to(advantage_BT).expand_as(advantage_BT)


def members(feedback: Feedback) -> Iterator[Tensor]:
    """The rows of each group that are members of it; groups without any are left out."""
    member_B = feedback.valid_B & (feedback.length_B > 0)
    groups = grouped(feedback.group_B)
    for index_G, member_G in zip(groups.index_PG, groups.valid(member_B), strict=True):
        if bool(member_G.any()):
            yield index_G[member_G]


def descending_order(value_G: Tensor) -> Tensor:
    """Places of the values from the highest on, the first of equals first."""
    return value_G.argsort(descending=True, stable=True)


def highest_and_lowest(value_G: Tensor, best: int, worst: int) -> Tensor:
    """Places of some of the highest values, and of the lowest of the others; the first of equals first."""
    chosen = descending_order(value_G)[:best]
    others_G = torch.ones_like(value_G, dtype=torch.bool).index_fill(0, chosen, False)
    lowest = value_G.where(others_G, torch.inf).argsort(stable=True)[: min(worst, int(others_G.sum()))]
    return torch.cat([chosen, lowest])
