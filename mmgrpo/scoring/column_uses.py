"""The columns of the data that a reward reads, by itself and through the rewards that it wraps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

ReferenceCheck = Callable[[Any], str | None]
"""The reason why a value is no reference; None if it is one."""

_COLUMNS = ("column", "text_column")
"""Attributes of the shipped rewards that name the column which holds the reference."""

_WRAPPED = ("of", "grade", "likelihood", "judge")
"""Attributes of the shipped rewards that hold another reward, called with the rows of the same prompts."""

_SHIPPED = "mmgrpo.rewards."


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnUse:
    """A column without which a reward scores nothing.

    Attributes:
        column: its name.
        reference_error: the check of its values, of the reward that reads it; None if that reward has no such check.
    """

    column: str
    reference_error: ReferenceCheck | None


def column_uses(reward: Any) -> list[ColumnUse]:
    """The columns that a reward needs, those of the rewards within it included.

    A reward's attribute ``needs_columns``, if it has one, decides, also for the rewards within it. Of a shipped reward
    they are else its ``column`` and ``text_column``, those that are None excluded, and the columns of the rewards that
    it holds as ``of``, ``grade``, ``likelihood`` or ``judge``. ``in_place_of_columns`` of its class maps attributes to
    the value with which it reads no column; None: any value.

    Args:
        reward: a reward, or a partial of one.

    Returns:
        Each use once, in order.
    """
    return list(dict.fromkeys(_uses(reward)))


def _uses(reward: Any) -> Iterator[ColumnUse]:
    while isinstance(reward, partial):
        reward = reward.func
    check = getattr(reward, "reference_error", None)
    declared = getattr(reward, "needs_columns", None)
    if declared is not None:
        yield from (ColumnUse(column=column, reference_error=check) for column in declared)
        return
    if not type(reward).__module__.startswith(_SHIPPED):
        return
    yield from (ColumnUse(column=column, reference_error=check) for column in _own_columns(reward))
    for name in _WRAPPED:
        yield from _uses(getattr(reward, name, None))


def _own_columns(reward: Any) -> list[str]:
    substitutes: Mapping[str, Any] = getattr(reward, "in_place_of_columns", {})
    values = {name: getattr(reward, name) for name in substitutes}
    if any(value is not None and substitutes[name] in (None, value) for name, value in values.items()):
        return []
    columns = [getattr(reward, name, None) for name in _COLUMNS]
    return [column for column in columns if isinstance(column, str)]
