"""Columns of the memory that a step fills: a number per prompt, from its previous number and the rewards of its
samples.

To add one: a ``Rule`` and a line in ``COLUMNS``; samplers and estimators that need it name it.

A prompt without any rewarded sample still counts as sampled; columns of rewards do not change.

Shapes: (K,) numbers of the step's K prompts before it -> (K,) after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.memory import Column, Outcomes
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def visits(before_K: Tensor, outcomes: Outcomes) -> Tensor:
    """The number of steps that sampled the prompt.

    after = before + 1
    """
    return before_K + 1


def num_samples(before_K: Tensor, outcomes: Outcomes) -> Tensor:
    """How many samples with a reward there were of the prompt.

    after = before + n
    """
    return before_K + outcomes.num_K


def reward_sum(before_K: Tensor, outcomes: Outcomes) -> Tensor:
    """The sum of the prompt's rewards over all samples.

    after = before + sum r
    """
    return before_K + outcomes.reward_sum_K


def reward_square_sum(before_K: Tensor, outcomes: Outcomes) -> Tensor:
    """The sum of the squares of the prompt's rewards over all samples.

    after = before + sum r ** 2
    """
    return before_K + outcomes.reward_square_sum_K


def last_rate(before_K: Tensor, outcomes: Outcomes) -> Tensor:
    """The mean reward of the prompt's last visit: its success rate where rewards are 0 and 1.

    after = mean r
    """
    return outcomes.rate_K.where(outcomes.scored_K, before_K)


def last_step(before_K: Tensor, outcomes: Outcomes) -> Tensor:
    """The last step that sampled the prompt, from 0.

    after = step
    """
    return torch.full_like(before_K, outcomes.step)


def right_streak(before_K: Tensor, outcomes: Outcomes, *, right: float = 0.98) -> Tensor:
    """How many of the prompt's last visits in a row were all right.

    after = before + 1 where mean r >= right, else 0

    Source: GRESO, arXiv:2506.02177, and its code, where a group is all right from 0.98.
    """
    return (before_K + 1).where(outcomes.rate_K >= right, 0).where(outcomes.scored_K, before_K)


def wrong_streak(before_K: Tensor, outcomes: Outcomes, *, wrong: float = 0.11) -> Tensor:
    """How many of the prompt's last visits in a row were all wrong.

    after = before + 1 where mean r <= wrong, else 0

    Source: GRESO, arXiv:2506.02177, and its code, where a group is all wrong up to 0.11.
    """
    return (before_K + 1).where(outcomes.rate_K <= wrong, 0).where(outcomes.scored_K, before_K)


def value(before_K: Tensor, outcomes: Outcomes, *, decay: float = 0.875) -> Tensor:
    """A running mean of the prompt's mean rewards.

    after = decay before + (1 - decay) mean r

    Source: SPO, arXiv:2509.13232, and its code (verl, recipe/spo): alpha <- rho alpha + r, beta <- rho beta + 1 - r
    with rho = 0.875 throughout and alpha + beta = 1 / (1 - rho) at the start, of which this is the mean.
    """
    return (decay * before_K + (1 - decay) * outcomes.rate_K).where(outcomes.scored_K, before_K)


COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        column.name: column
        for column in (
            Column("visits", "int64", rule=visits),
            Column("num_samples", "int64", rule=num_samples),
            Column("reward_sum", rule=reward_sum),
            Column("reward_square_sum", rule=reward_square_sum),
            Column("last_rate", rule=last_rate),
            Column("last_step", "int64", -1, rule=last_step),
            Column("right_streak", "int64", rule=right_streak),
            Column("wrong_streak", "int64", rule=wrong_streak),
            Column("share", default=-1.0),
            Column("value", default=0.5, rule=value),
        )
    }
)
"""Columns that a step fills, by the name that samplers, estimators and strategies read; ``share`` is the part of an
answer that the strategy showed last."""


def column_of(name: str, numbers: Mapping[str, float] | None = None) -> Column:
    """A registered column, its rule bound to other numbers than its own. Raises ConfigError for an unknown name."""
    if name not in COLUMNS:
        raise ConfigError(f"unknown column of the memory {name!r}; known are {', '.join(COLUMNS)}")
    column = COLUMNS[name]
    if not numbers:
        return column
    assert column.rule is not None
    bound = tuple(sorted((key, float(number)) for key, number in numbers.items()))
    return Column(column.name, column.dtype, column.default, partial(column.rule, **numbers), bound)
