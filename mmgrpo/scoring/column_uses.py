"""The data columns that a reward reads, directly and through the rewards that it wraps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

ReferenceCheck = Callable[[Any], str | None]
"""Returns the reason why a value is not a valid reference; None if it is valid."""

_COLUMNS = ("column", "text_column")
"""Attributes of the built-in rewards that name the reference column."""

_WRAPPED = ("of", "grade", "likelihood", "judge")
"""Attributes of the built-in rewards that hold a wrapped reward, called with rows of the same prompts."""

_SHIPPED = "mmgrpo.rewards."


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnUse:
    """A column that a reward requires.

    Attributes:
        column: its name.
        reference_error: validates its values; None if the reward that reads it has no validation.
    """

    column: str
    reference_error: ReferenceCheck | None


def column_uses(reward: Any) -> list[ColumnUse]:
    """The columns that a reward and its wrapped rewards require.

    The attribute ``needs_columns`` of a reward, if present, overrides everything, including its wrapped rewards.
    Otherwise, for built-in rewards, these are ``column`` and ``text_column`` where not None, and the columns of the
    wrapped rewards in ``of``, ``grade``, ``likelihood`` and ``judge``. The class attribute ``in_place_of_columns`` maps
    attributes to the value with which the reward reads no column; None means any value.

    Args:
        reward: a reward, or a partial of one.

    Returns:
        Unique uses, in order.
    """
    return list(dict.fromkeys(_uses(reward)))


def wrapped_rewards(reward: Any) -> Iterator[Any]:
    """The rewards within a built-in reward, those within them included.

    Args:
        reward: a reward, or a partial of one.

    Yields:
        Any: each wrapped reward.
    """
    for inner in _wrapped(_unbound(reward)):
        yield inner
        yield from wrapped_rewards(inner)


def _wrapped(reward: Any) -> list[Any]:
    if not type(reward).__module__.startswith(_SHIPPED):
        return []
    return [inner for name in _WRAPPED if (inner := getattr(reward, name, None)) is not None]


def _unbound(reward: Any) -> Any:
    while isinstance(reward, partial):
        reward = reward.func
    return reward


def _uses(reward: Any) -> Iterator[ColumnUse]:
    reward = _unbound(reward)
    check = getattr(reward, "reference_error", None)
    declared = getattr(reward, "needs_columns", None)
    if declared is not None:
        yield from (ColumnUse(column=column, reference_error=check) for column in declared)
        return
    if not type(reward).__module__.startswith(_SHIPPED):
        return
    yield from (ColumnUse(column=column, reference_error=check) for column in _declared_columns(reward))
    for inner in _wrapped(reward):
        yield from _uses(inner)


def _declared_columns(reward: Any) -> list[str]:
    substitutes: Mapping[str, Any] = getattr(reward, "in_place_of_columns", {})
    values = {name: getattr(reward, name) for name in substitutes}
    if any(value is not None and substitutes[name] in (None, value) for name, value in values.items()):
        return []
    columns = [getattr(reward, name, None) for name in _COLUMNS]
    return [column for column in columns if isinstance(column, str)]
