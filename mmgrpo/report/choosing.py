"""Which of many things are shown: chosen by their position, never by what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def evenly(items: Sequence[T], most: int) -> list[T]:
    """At most ``most`` of the items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def in_turn(groups: Sequence[Sequence[T]], most: int) -> list[T]:
    """At most ``most`` members: the first of every group, then the second of every group, and so on.

    Of more groups than that, evenly spaced ones send their first member.
    """
    sending = evenly(groups, most)
    deepest = max((len(group) for group in sending), default=0)
    return [group[rank] for rank in range(deepest) for group in sending if rank < len(group)][:most]
