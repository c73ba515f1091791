"""Estimators by name: how the advantage of a sample becomes the advantage of each of its decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate

from mmgrpo.maths.factories import Numbers, factory
from mmgrpo.maths.feedback import Estimator as Estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.registry import Registry
from mmgrpo.memory import Column
from mmgrpo.values import Value

if TYPE_CHECKING:
    from torch import Tensor

ESTIMATORS: Registry[Callable[..., Estimator]] = Registry(arguments=(), decorator="mmgrpo.maths.estimators.estimator")
"""Estimators by the name that a method's configuration uses; called with their numbers, applied in order."""


def estimator(
    *,
    values: tuple[Value, ...] | Callable[..., tuple[Value, ...]] = (),
    tokens: bool = False,
    parts: Callable[..., tuple[str, ...]] | tuple[str, ...] = (),
    memory: Callable[..., tuple[Column, ...]] | tuple[Column, ...] = (),
    unscored: bool = False,
    partial: bool = False,
    turns: bool = False,
    columns: Callable[..., tuple[str, ...]] | tuple[str, ...] = (),
    keeps: Callable[..., int | None] | int | None = None,
    turn_rewards: Callable[..., bool] | bool = False,
    start: Callable[..., int] | int = 0,
    check: Callable[..., Any] | None = None,
) -> Callable[[Callable[Concatenate[Feedback, Tensor, Numbers], Tensor]], Callable[Numbers, Estimator]]:
    """A decorator: a function (feedback, advantage_BT, *, numbers) -> advantage_BT becomes a factory of estimators.

    Args:
        values: as the attribute of ``Estimator``, or a function of the settings that it names; so are the next.
        tokens: likewise.
        parts: likewise.
        memory: likewise.
        unscored: likewise.
        partial: likewise.
        turns: likewise.
        columns: likewise.
        keeps: likewise.
        turn_rewards: likewise.
        start: likewise.
        check: raises ConfigError for settings that do not go together; called with those that it names.

    Returns:
        The decorator.
    """
    return factory(
        Estimator,
        "assign",
        check=check,
        values=values,
        tokens=tokens,
        parts=parts,
        memory=memory,
        unscored=unscored,
        partial=partial,
        turns=turns,
        columns=columns,
        keeps=keeps,
        turn_rewards=turn_rewards,
        start=start,
    )
