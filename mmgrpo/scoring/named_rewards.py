"""A reward with its name, weight, gate and other run settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mmgrpo.config.rewards import Otherwise, gate_order
from mmgrpo.errors import ConfigError
from mmgrpo.scoring.column_uses import column_uses, wrapped_rewards
from mmgrpo.scoring.trl_form import as_reward
from mmgrpo.types import Plan, Score


@dataclass(frozen=True, slots=True)
class Gate:
    """Condition for a reward to count: another reward's value, before clipping, is at least a threshold.

    Attributes:
        reward: name of the other reward.
        at_least: the threshold.
        otherwise: value of the gated reward below the threshold: ``skip`` (does not apply) or ``zero``.
    """

    reward: str
    at_least: float
    otherwise: Otherwise


@dataclass(frozen=True, slots=True)
class NamedReward:
    """A reward, its name in the metrics, and its settings in the weighted total.

    Attributes:
        name: the NAME of ``reward/NAME/mean``.
        function: a ``Reward``, or a function in TRL's form, which is adapted here.
        weight: factor in the weighted sum; negative penalizes, 0 only reports.
        gate: condition for it to count; None: always.
        clip: bounds of the value; None: unclipped.
        schedule: factor on the weight as a function of the step, counted from 0; None: 1.
        timeout_s: time limit of a call in seconds; None: unlimited.
        concurrent: whether it may run on a thread, in parallel to rollout and other rewards; None: as the function
            declares.
        deterministic: whether results are cached; None: as the function declares. See ``Reward``.
        reads_environments: whether it is called where a sample's conversation took place; None: as the function
            declares. See ``Reward``.
        reads_latents: whether it reads ``Sample.latent`` and no decoded output; None: as the function declares. See
            ``Reward``.
        needs_values: names of ``Sample.values`` that it reads; None: as the function declares.
        needs_columns: data columns that it requires; None: those of ``column_uses``.
        verifier: whether rewards of methods may use it as the verifier; None: if its weight is above 0 and it is not a
            format or length reward.
        from_method: the method whose reward of this name it replaces; None: a method that defines one, if the run has
            another verifier, otherwise no method.
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
    reads_environments: bool | None = None
    reads_latents: bool | None = None
    needs_values: tuple[str, ...] | None = None
    needs_columns: tuple[str, ...] | None = None
    verifier: bool | None = None
    from_method: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a reward needs a non-empty name")
        if not math.isfinite(self.weight):
            raise ConfigError(f"weight of reward '{self.name}' must be a finite number, got {self.weight}")
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ConfigError(f"clip of reward '{self.name}' must be [low, high], low below high, got {self.clip}")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(f"timeout_s of reward '{self.name}' must be above 0, got {self.timeout_s}")
        for trait in ("concurrent", "deterministic", "reads_latents"):
            if getattr(self, trait) is None:
                object.__setattr__(self, trait, _declared(self.function, trait, default=False) is True)
        if self.needs_values is None:
            object.__setattr__(self, "needs_values", tuple(_declared(self.function, "needs_values", default=())))
        object.__setattr__(self, "function", as_reward(self.function))
        if self.reads_environments is None:
            reads_environments = _declared(self.function, "reads_environments", default=False) is True
            object.__setattr__(self, "reads_environments", reads_environments)
        if self.needs_columns is None:
            columns = [use.column for use in column_uses(self.function)]
            object.__setattr__(self, "needs_columns", tuple(dict.fromkeys(columns)))

    @property
    def needs_latents(self) -> bool:
        """Whether it, or a reward that it wraps, reads ``Sample.latent``."""
        inner = wrapped_rewards(self.function)
        return bool(self.reads_latents) or any(_declared(reward, "reads_latents", default=False) for reward in inner)

    def weight_at(self, step: int) -> float:
        """The weight at a step, counted from 0."""
        return self.weight if self.schedule is None else self.weight * self.schedule(step)


def named_rewards(rewards: Any) -> list[NamedReward]:
    """Rewards with their names.

    Raises: ConfigError if there are none, or gates reference unknown rewards or form a cycle.
    """
    if not rewards:
        raise ConfigError("there are no rewards: configure at least one")
    if isinstance(rewards, Mapping):
        return [NamedReward(name, function) for name, function in rewards.items()]
    named = [
        reward if isinstance(reward, NamedReward) else NamedReward(function_name(reward), reward) for reward in rewards
    ]
    gate_order(
        [reward.name for reward in named],
        {
            reward_with_gate.name: reward_with_gate.gate.reward
            for reward_with_gate in named
            if reward_with_gate.gate is not None
        },
    )
    return named


def with_reward_inputs(plan: Plan, rewards: Sequence[NamedReward]) -> Plan:
    """The plan of a rollout whose samples have what the rewards read.

    Args:
        plan: the plan.
        rewards: of its samples, or of some of them.

    Returns:
        The plan, with the values and latents that any reward needs; without decoding if all read latents alone.
    """
    return replace(
        plan,
        sample_values=tuple(sorted({name for reward in rewards for name in reward.needs_values or ()})),
        keep_latents=plan.keep_latents or any(reward.needs_latents for reward in rewards),
        decode=not rewards or not all(reward.reads_latents for reward in rewards),
    )


def _declared(function: Any, trait: str, *, default: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, trait, default)


def function_name(function: Any) -> str:
    """The name of a function, of the one in a ``partial``, or of the class of a callable object."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__
