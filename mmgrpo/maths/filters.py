"""Filters: which samples or decisions train, told after the advantages are known. Normalisers count what is kept.

Each looks at a group by itself. Its members are the samples to which a reward applies and that have a kept decision;
others are not kept. Members that tie go by their order.

Axes: B samples, T decisions, G members of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.maths.feedback import Estimator, Feedback
from mmgrpo.maths.forest_credit import forest_of
from mmgrpo.maths.groups import grouped
from mmgrpo.maths.registry import Registry
from mmgrpo.system.lazy import torch
from mmgrpo.values import GRADIENT_CURVATURE, GRADIENT_SQUARE, Value, seen_in

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """One filter, its numbers bound.

    Attributes:
        keep: (feedback, advantage_BT) -> bool keep_B, or keep_BT where single decisions are chosen.
        values: what the feedback must carry beside the log-probability.
        columns: columns of the data rows that it reads, of numbers.
        keeps: members of a group that it keeps at most; None: as many as there are.
    """

    keep: Callable[[Feedback, Tensor], Tensor]
    values: tuple[Value, ...] = ()
    columns: tuple[str, ...] = ()
    keeps: int | None = None


def largest_advantages(*, rate: float) -> Filter:
    """The members whose advantages are the largest in size.

    keep = the max(floor(n (1 - rate)), 1) largest |A| of n members.

    Units: rate is dimensionless, the share that is left out.   Raises: ConfigError for a rate outside 0 .. 1.
    Source: CPPO, arXiv:2503.22342, and its code (lzhxmu/CPPO); per group, as the paper has it.
    """
    if not 0 <= rate < 1:
        raise ConfigError(f"the rate that is left out lies from 0 to below 1, got {rate}")
    return Filter(keep=partial(_largest, rate=rate))


def _largest(feedback: Feedback, advantage_BT: Tensor, *, rate: float) -> Tensor:
    size_B = feedback.mean(advantage_BT.abs())
    keep_B = torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        # 10 (1 - 0.9) is a little below 1
        num = max(math.floor(len(rows) * (1 - rate) + 1e-9), 1)
        keep_B[rows[_descending(size_B[rows])[:num]]] = True
    return keep_B


def beyond(*, size: float, members: int = 2) -> Filter:
    """Of groups of at least so many members, those whose advantage is larger than a number; other groups whole.

    keep = |A| > size, or fewer than ``members`` rows in the group.

    Units: size in those of the advantage; members are rows.   Raises: ConfigError for a number below 0.
    Source: EFRame, arXiv:2506.22200, and its code (597358816/EFRame, ``ray_trainer.py``, ``_select_by_advantage``).
    """
    if size < 0:
        raise ConfigError(f"beyond keeps advantages larger than a number of 0 or more, got {size}")
    return Filter(keep=partial(_beyond, size=size, least=members))


def _beyond(feedback: Feedback, advantage_BT: Tensor, *, size: float, least: int) -> Tensor:
    large_B, keep_B = feedback.mean(advantage_BT.abs()) > size, torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        keep_B[rows] = large_B[rows] if len(rows) >= least else True
    return keep_B


def most_varied(*, count: int) -> Filter:
    """The ``count`` members whose advantages vary the most: some of the highest and some of the lowest.

    keep = argmax Var(A) over the subsets of that size; of equal ones that with the fewest of the highest.

    Units: count is members, at least 2.   Raises: ConfigError for fewer.
    Source: D3S, arXiv:2509.22115, whose sample level maximises Var(A); the subset is found as PODS does,
        arXiv:2504.13818.
    """
    if count < 2:
        raise ConfigError(f"members vary from each other: keep at least 2, got {count}")
    return Filter(keep=partial(_most_varied, count=count), keeps=count)


def _most_varied(feedback: Feedback, advantage_BT: Tensor, *, count: int) -> Tensor:
    advantage_B = feedback.mean(advantage_BT).double()
    keep_B = torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        advantage_G = advantage_B[rows]
        subsets = [_ends(advantage_G, best, count - best) for best in range(count + 1)]
        keep_B[rows[max(subsets, key=lambda chosen: round(float(advantage_G[chosen].var(correction=0)), 12))]] = True
    return keep_B


def best_and_worst(*, best: int, worst: int) -> Filter:
    """The members of the highest and of the lowest rewards.

    keep = the ``best`` highest r, and of the others the ``worst`` lowest.

    Units: members.   Raises: ConfigError for negative numbers, or if nobody is kept.
    Source: DanceGRPO, arXiv:2505.07818, and its code's best-of-N: 4 and 4 of 16, 8 and 8 of 24.
    """
    if best < 0 or worst < 0 or best + worst == 0:
        raise ConfigError(f"numbers of members must not be negative, and keep somebody, got {best} and {worst}")
    return Filter(keep=partial(_best_and_worst, best=best, worst=worst), keeps=best + worst)


def _best_and_worst(feedback: Feedback, advantage_BT: Tensor, *, best: int, worst: int) -> Tensor:
    del advantage_BT
    keep_B = torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        keep_B[rows[_ends(feedback.reward_B[rows], best, worst)]] = True
    return keep_B


def most_efficient(*, count: int, by: str = "length") -> Filter:
    """The ``count`` shortest members, or those of the most reward per decision.

    keep = the ``count`` highest of -T (``length``) or r / T (``reward_per_decision``), T the kept decisions.

    Units: count is members.   Raises: ConfigError for none; UnknownNameError for another measure.
    Source: GFPO, arXiv:2508.09726. There the kept are also compared among themselves alone: the estimator
        ``among_most_efficient`` does that.
    """
    return Filter(keep=partial(_most_efficient, count=_checked(count), measure=_measure(by)), keeps=count)


def among_most_efficient(*, count: int, by: str = "length", eps: float = 1e-4) -> Estimator:
    """An estimator: rewards standardised over the members that ``most_efficient`` keeps; the others get 0.

    A = (r - mean_S r) / (std_S r + eps), S the kept members of the group, sample std. It replaces the advantage.

    Units: any reward scale -> dimensionless; eps in the reward's units.   Raises: as ``most_efficient``.
    Source: GFPO, arXiv:2508.09726. Deviation: eps in the denominator.
    """
    keep = partial(_most_efficient, count=_checked(count), measure=_measure(by))
    return Estimator(assign=partial(standardised_among, keep=keep, eps=eps), keeps=count)


def each_decision_once() -> Filter:
    """Of the samples that share a decision the first trains it: means over decisions count it once.

    keep_BT = whether no row before took the decision; it goes by the group's forest, whose nodes tell which are one.
    What other filters leave out it does not know.

    Units: none.
    Source: SPO-tree's code (AIFrameResearch/SPO, extract_edges_from_tree), which trains a row for every edge.
    """
    return Filter(keep=_each_decision_once)


def _each_decision_once(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    del advantage_BT
    tree = forest_of(feedback)
    row_BT = torch.arange(len(tree.mask_BT))[:, None].expand_as(tree.mask_BT)
    reached_K = tree.to_BT[tree.mask_BT]
    first_M = torch.full_like(tree.depth_M, len(row_BT)).scatter_reduce(0, reached_K, row_BT[tree.mask_BT], "amin")
    return tree.mask_BT & (tree.laid(first_M) == row_BT)


def _most_efficient(
    feedback: Feedback, advantage_BT: Tensor, *, count: int, measure: Callable[[Feedback], Tensor]
) -> Tensor:
    del advantage_BT
    value_B = measure(feedback)
    keep_B = torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        keep_B[rows[_descending(value_B[rows])[:count]]] = True
    return keep_B


MEASURES: Mapping[str, Callable[[Feedback], Tensor]] = MappingProxyType(
    {
        "length": lambda feedback: -feedback.length_B.double(),
        "reward_per_decision": lambda feedback: feedback.reward_B / feedback.length_B.clamp(min=1),
    }
)
"""What ``most_efficient`` goes by, the highest first."""


def in_view(*, view: str) -> Filter:
    """The members that have a view, such as that of a peer's right answer.

    Units: view is a name of ``views``.
    Source: SDPO, arXiv:2601.20802, and its code (lasgroup/SDPO), whose mean is over those that have a teacher's prompt.
    """
    return Filter(keep=lambda feedback, advantage_BT: feedback.seen(view).any(1), values=(seen_in(view),))


def unlikely(*, below: float) -> Filter:
    """The decisions whose probability was under a bound when they were drawn.

    keep_BT = exp(old_logprob) < below. For decisions that have a probability.

    Units: below is a probability (0.9).   Raises: ConfigError for none.
    Source: SPO, arXiv:2505.23564, and its code (AIFrameResearch/SPO, ``ppo_trainer.py``, ``use_prob_mask``).
    """
    if not 0 < below <= 1:
        raise ConfigError(f"unlikely keeps decisions under a probability above 0 and at most 1, got {below}")
    return Filter(keep=lambda feedback, advantage_BT: feedback.old_logprob_BT.exp() < below)


def at_least_column(*, column: str) -> Filter:
    """The members whose reward reaches a number of their data row, as that of an answer without a thought.

    keep = r >= column.

    Units: those of the reward.
    Source: RAIF, arXiv:2506.01413, and its code (yuleiqin/RAIF, ``enforce_superior_CoT``).
    """
    return Filter(keep=partial(_at_least_column, column=column), columns=(column,))


def _at_least_column(feedback: Feedback, advantage_BT: Tensor, *, column: str) -> Tensor:
    del advantage_BT
    return feedback.valid_B & (feedback.length_B > 0) & (feedback.reward_B >= feedback.column(column))


def outdo_begun() -> Filter:
    """The members that wrote all of their answer, unless each did worse than every one whose beginning was given.

    keep = all of it was drawn, and max r of such members of the group >= min r of the begun ones, if there are any.

    Units: none.
    Source: RAIF, arXiv:2506.01413, and its code (yuleiqin/RAIF, ``replay_buffer.py``): begun with an empty thought.
    """
    return Filter(keep=_outdo_begun)


def _outdo_begun(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    del advantage_BT
    begun_B, keep_B = ~feedback.mask_BT[:, 0], torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        begun, whole = rows[begun_B[rows]], rows[~begun_B[rows]]
        outdone = len(begun) > 0 and len(whole) > 0 and feedback.reward_B[whole].max() < feedback.reward_B[begun].min()
        keep_B[whole] = not outdone
    return keep_B


def within_curvature(*, shift: float, divergence: float, lr: float | None = None) -> Filter:
    """Decisions whose own step of gradient ascent in the last layer would move the objective and the policy little.

    keep = |lr A^2 a + lr^2 A^3 c / 2| < shift and lr^2 A^2 a^2 / 2 < divergence.

    a is the squared gradient of the log-probability and c the curvature along it; the step is lr A times the gradient.

    Units: lr is the step, by default that of the update, ``update.lr``; shift in those of the objective; divergence in
        nats.
    Raises: ConfigError unless all three are above 0.
    Source: CAPO, arXiv:2510.00819, eq. 10, and its code (luckeciano/stable-pg-llm, ``grpo_entropy_trainer.py``,
        ``sparse_sgd_model.py``, hessian_symmetric_clipping).
    """
    if not min(1.0 if lr is None else lr, shift, divergence) > 0:
        raise ConfigError(f"within_curvature needs numbers above 0, got {lr}, {shift}, {divergence}")
    keep = partial(_within_curvature, lr=lr, shift=shift, divergence=divergence)
    return Filter(keep=keep, values=(GRADIENT_SQUARE, GRADIENT_CURVATURE))


def _within_curvature(
    feedback: Feedback, advantage_BT: Tensor, *, lr: float | None, shift: float, divergence: float
) -> Tensor:
    if lr is None:
        raise ConfigError("within_curvature needs lr, the learning rate of the update: bind it by advantage_of(config)")
    square_BT, step_BT = feedback[GRADIENT_SQUARE].double(), lr * advantage_BT.double()
    moved_BT = advantage_BT * (step_BT * square_BT + step_BT.square() * feedback[GRADIENT_CURVATURE] / 2)
    return (moved_BT.abs() < shift) & ((step_BT * square_BT).square() / 2 < divergence)


FILTERS: Registry[Callable[..., Filter]] = Registry(
    {
        "at_least_column": at_least_column,
        "outdo_begun": outdo_begun,
        "unlikely": unlikely,
        "largest_advantages": largest_advantages,
        "most_varied": most_varied,
        "best_and_worst": best_and_worst,
        "beyond": beyond,
        "most_efficient": most_efficient,
        "each_decision_once": each_decision_once,
        "in_view": in_view,
        "within_curvature": within_curvature,
    }
)
"""Filters by the name that a method's configuration uses; called with their numbers, applied in order."""


def standardised_among(
    feedback: Feedback, advantage_BT: Tensor, *, keep: Callable[[Feedback, Tensor], Tensor], eps: float
) -> Tensor:
    """Rewards standardised over the members of each group that are kept; 0 for the others, and where all are equal.

    Shapes: (B, T) -> (B, T).
    """
    keep_B = keep(feedback, advantage_BT)
    advantage_B = torch.zeros_like(feedback.reward_B)
    for rows in members(feedback):
        kept = rows[keep_B[rows]]
        reward_G = feedback.reward_B[kept]
        if len(kept) > 1 and bool((reward_G != reward_G[0]).any()):
            advantage_B[kept] = (reward_G - reward_G.mean()) / (reward_G.std() + eps)
    return advantage_B[:, None].to(advantage_BT).expand_as(advantage_BT)


def members(feedback: Feedback) -> Iterator[Tensor]:
    """The rows of each group that are members of it; groups without any are left out."""
    member_B = feedback.valid_B & (feedback.length_B > 0)
    groups = grouped(feedback.group_B)
    for index_G, member_G in zip(groups.index_PG, groups.valid(member_B), strict=True):
        if bool(member_G.any()):
            yield index_G[member_G]


def _descending(value_G: Tensor) -> Tensor:
    """Places of the values from the highest on, the first of equals first."""
    return value_G.argsort(descending=True, stable=True)


def _ends(value_G: Tensor, best: int, worst: int) -> Tensor:
    """Places of some of the highest values, and of the lowest of the others; the first of equals first."""
    chosen = _descending(value_G)[:best]
    others_G = torch.ones_like(value_G, dtype=torch.bool).index_fill(0, chosen, False)
    lowest = value_G.where(others_G, torch.inf).argsort(stable=True)[: min(worst, int(others_G.sum()))]
    return torch.cat([chosen, lowest])


def _checked(count: int) -> int:
    if count < 1:
        raise ConfigError(f"keep at least one member of a group, got {count}")
    return count


def _measure(by: str) -> Callable[[Feedback], Tensor]:
    if by not in MEASURES:
        raise UnknownNameError(f"unknown measure {by!r}; choose from {', '.join(MEASURES)}")
    return MEASURES[by]
