"""Which of many things are shown: chosen by their position, or, where the page says so, by how far they moved."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def evenly(items: Sequence[T], most: int) -> list[T]:
    """At most ``most`` of the items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / max(most - 1, 1))] for index in range(most)]


def in_turn(groups: Sequence[Sequence[T]], most: int) -> list[T]:
    """At most ``most`` members: the first of every group, then the second of every group, and so on.

    Of more groups than that, evenly spaced ones send their first member.
    """
    sending = evenly(groups, most)
    deepest = max((len(group) for group in sending), default=0)
    return [group[rank] for rank in range(deepest) for group in sending if rank < len(group)][:most]


def moved_most(movement: Mapping[T, float], kind: Callable[[T], Hashable], most: int) -> list[T]:
    """At most ``most`` of what moved: half of what rose, half of what fell, either more where the other lacks them.

    The farthest come first; of those that moved as far, the kinds take turns.
    """
    risen = _by_distance([one for one, by in movement.items() if by > 0], movement, kind)
    fallen = _by_distance([one for one, by in movement.items() if by < 0], movement, kind)
    num_fallen = min(len(fallen), max(most // 2, most - len(risen)))
    return risen[: most - num_fallen] + fallen[:num_fallen]


def _by_distance(items: Sequence[T], movement: Mapping[T, float], kind: Callable[[T], Hashable]) -> list[T]:
    seen: dict[Hashable, int] = {}
    ranked = []
    for one in sorted(items, key=lambda one: -abs(movement[one])):
        place = (round(abs(movement[one]), 6), kind(one))
        seen[place] = seen.get(place, -1) + 1
        ranked.append((-place[0], seen[place], one))
    return [one for *_, one in sorted(ranked, key=lambda entry: entry[:2])]
