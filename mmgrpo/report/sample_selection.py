"""Selects items to show: by position, or by the change of their scores."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def evenly(items: Sequence[T], most: int) -> list[T]:
    """At most ``most`` of the items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / max(most - 1, 1))] for index in range(most)]


def in_turn(groups: Sequence[Sequence[T]], most: int) -> list[T]:
    """At most ``most`` members: the first of every group, then the second of every group, and so on.

    If there are more than ``most`` groups, the first members of evenly spaced groups.
    """
    selected = evenly(groups, most)
    depth = max((len(group) for group in selected), default=0)
    return [group[rank] for rank in range(depth) for group in selected if rank < len(group)][:most]


def moved_most(movement: Mapping[T, float], kind: Callable[[T], Hashable], most: int) -> list[T]:
    """At most ``most`` items: half of them rose, half fell; either half is larger if the other has fewer items.

    The largest changes come first; among equal changes the kinds take turns.
    """
    risen = _by_distance([item for item, rise in movement.items() if rise > 0], movement, kind)
    fallen = _by_distance([item for item, rise in movement.items() if rise < 0], movement, kind)
    num_fallen = min(len(fallen), max(most // 2, most - len(risen)))
    return risen[: most - num_fallen] + fallen[:num_fallen]


def _by_distance(items: Sequence[T], movement: Mapping[T, float], kind: Callable[[T], Hashable]) -> list[T]:
    num_equal: dict[Hashable, int] = {}
    ranked = []
    for item in sorted(items, key=lambda item: -abs(movement[item])):
        key = (round(abs(movement[item]), 6), kind(item))
        num_equal[key] = num_equal.get(key, -1) + 1
        ranked.append((-key[0], num_equal[key], item))
    return [item for *_, item in sorted(ranked, key=lambda entry: entry[:2])]
