"""A reward with its name and with how it counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmgrpo.config.rewards import Otherwise, gate_order
from mmgrpo.errors import ConfigError
from mmgrpo.scoring.column_uses import column_uses
from mmgrpo.scoring.trl_form import as_reward
from mmgrpo.types import Score


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition under which a reward counts: another reward's value, before clipping, is at least a threshold.

    Attributes:
        reward: name of the other reward.
        at_least: the threshold.
        otherwise: the value of the gated reward below it: ``skip``, as if it did not apply, or ``zero``.
    """

    reward: str
    at_least: float
    otherwise: Otherwise


@dataclass(frozen=True, slots=True)
class NamedReward:
    """A reward, what it is called in the metrics, and how it counts in the total.

    Attributes:
        name: the NAME of ``reward/NAME/mean``.
        function: a ``Reward``, or a function in TRL's form, which is adapted here.
        weight: factor in the weighted sum; negative punishes, 0 only reports.
        gate: when it counts; None: always.
        clip: lowest and highest value that counts; None: as it is.
        schedule: factor on the weight as a function of the step, counted from 0; None: 1.
        timeout_s: seconds a call may take; None: any time.
        concurrent: whether it may run beside rollout and other rewards, on a thread; None: as the function declares.
        deterministic: whether known results are kept; None: as the function declares. See ``Reward``.
        needs_values: names of ``Sample.values`` that it reads; None: as the function declares.
        needs_columns: columns of the data without which it scores nothing; None: those of ``column_uses``.
        verifier: whether rewards of methods are computed of it; None: if its weight is above 0 and its name is not that
            of a reward of form or length.
        from_method: the method whose reward of this name it replaces; None: a method that has one, if the run has
            another verifier; else it is the run's own.
    """

    name: str
    function: Callable[..., Sequence[float | Score | None]]
    weight: float = 1.0
    gate: Gate | None = None
    clip: tuple[float, float] | None = None
    schedule: Callable[[int], float] | None = None
    timeout_s: float | None = None
    concurrent: bool | None = None
    deterministic: bool | None = None
    needs_values: tuple[str, ...] | None = None
    needs_columns: tuple[str, ...] | None = None
    verifier: bool | None = None
    from_method: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a reward needs a name that is not empty")
        if not math.isfinite(self.weight):
            raise ConfigError(f"weight of reward '{self.name}' must be a finite number, got {self.weight}")
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ConfigError(f"clip of reward '{self.name}' must be [low, high], low below high, got {self.clip}")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(f"timeout_s of reward '{self.name}' must be above 0, got {self.timeout_s}")
        for trait in ("concurrent", "deterministic"):
            if getattr(self, trait) is None:
                object.__setattr__(self, trait, _declared(self.function, trait, default=False) is True)
        if self.needs_values is None:
            object.__setattr__(self, "needs_values", tuple(_declared(self.function, "needs_values", default=())))
        object.__setattr__(self, "function", as_reward(self.function))
        if self.needs_columns is None:
            columns = [use.column for use in column_uses(self.function)]
            object.__setattr__(self, "needs_columns", tuple(dict.fromkeys(columns)))

    def weight_at(self, step: int) -> float:
        """The weight at a step, counted from 0."""
        return self.weight if self.schedule is None else self.weight * self.schedule(step)


def named_rewards(rewards: Any) -> list[NamedReward]:
    """Rewards with their names. Raises ConfigError if there are none, or their gates lead nowhere or in a circle."""
    if not rewards:
        raise ConfigError("there are no rewards: give at least one")
    if isinstance(rewards, Mapping):
        return [NamedReward(name, function) for name, function in rewards.items()]
    named = [
        reward if isinstance(reward, NamedReward) else NamedReward(_own_name(reward), reward) for reward in rewards
    ]
    gate_order([reward.name for reward in named], {one.name: one.gate.reward for one in named if one.gate is not None})
    return named


def _declared(function: Any, trait: str, *, default: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, trait, default)


def _own_name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__
