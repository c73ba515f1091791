"""The section ``rewards``: name, weight, gate and settings of a reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from mmgrpo.config.sections import Named, Section
from mmgrpo.errors import ConfigError
from mmgrpo.system.targets import is_python_target

Otherwise = Literal["skip", "zero"]


NO_VERIFIERS = frozenset(
    {
        "clipping",
        "curiosity",
        "explorability",
        "format",
        "json_schema",
        "length_peak",
        "math_form",
        "overlong",
        "rarity",
        "repetition",
        "self_certainty",
        "semantic_clusters",
        "sound_length",
        "sounding",
        "tagged",
        "unique_formulas",
        "where_useful",
    }
)
"""Registered rewards of form, of length, or of a sample relative to its group, which verify no answer."""


COUNTING = ("weight", "gate", "clip", "schedule", "verifier", "from_method")
"""Settings of a reward that is trained on, which those of an evaluation do not have."""


class GateConfig(Section):
    """A condition under which a reward counts: another reward's value, before clipping, is at least a threshold.

    Below it, or where the other reward's own gate is closed, ``otherwise`` applies. Where the other reward gave
    no value, the gated one has none either.
    """

    reward: str = Field(description="the other reward, by the name it is logged under")
    at_least: float = Field(description="the threshold")
    otherwise: Otherwise = Field(description="skip: as if the reward did not apply; zero: 0, before its weight")


class EvaluationRewardConfig(Named):
    """A reward of an evaluation: its registered name (or ``python:module:attribute``) and its settings.

    Every other key is a setting of the reward.
    """

    label: str | None = Field(
        default=None, description="name it is logged under; null: the registered name, or the function's"
    )
    timeout_s: float | None = Field(
        default=None, gt=0, description="seconds a call may take; a longer call fails for all of its samples"
    )
    concurrent: bool | None = Field(
        default=None,
        description="runs on a thread, in parallel with the rollout and other rewards; null: if the reward declares "
        "that it may",
    )
    deterministic: bool | None = Field(
        default=None,
        description="results are cached by sample; null: if the reward declares that they depend on nothing else",
    )

    @property
    def logged_name(self) -> str:
        """The name it is logged under: its label, its registered name, or the name of the user's function or class."""
        return self.label or (self.name.rpartition(":")[2] if is_python_target(self.name) else self.name)

    @model_validator(mode="after")
    def _is_reported(self) -> EvaluationRewardConfig:
        if counting := [name for name in COUNTING if name in self.settings]:
            raise ValueError(
                f"an evaluation reports the values of '{self.logged_name}' unchanged: leave out {', '.join(counting)}"
            )
        return self


class RewardConfig(EvaluationRewardConfig):
    """A reward: its registered name (or ``python:module:attribute``), how it counts, and its settings.

    Every other key is a setting of the reward. ``reward/NAME/mean`` is the mean of its values before gate, clip and
    weight.
    """

    weight: float = Field(
        default=1.0, description="factor in the weighted sum; a negative one penalizes, 0 only reports"
    )
    gate: GateConfig | None = Field(default=None, description="when it counts; null: always")
    clip: tuple[float, float] | None = Field(
        default=None, description="values are clipped to [low, high] before they count"
    )
    schedule: Named | None = Field(
        default=None, description="factor on the weight as a function of the step, counted from 0; null: 1"
    )
    verifier: bool | None = Field(
        default=None,
        description="whether it verifies answers, so that rewards of methods are computed from it; null: if its "
        "weight is above 0 and it does not score form or length",
    )
    from_method: str | None = Field(
        default=None,
        description="the method that adds this reward; written by the loader. Set by hand, this reward replaces the "
        "method's reward of the same label, and keeps the settings that it does not set",
    )

    @model_validator(mode="after")
    def _clips(self) -> RewardConfig:
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(
                f"clip of reward '{self.logged_name}' must be [low, high], low below high, got {self.clip}"
            )
        return self


def is_verifier(reward: RewardConfig) -> bool:
    """Whether a reward of a run verifies its answers.

    The value of its ``verifier:``; else every reward with a weight above 0 does, but those in ``NO_VERIFIERS`` and
    those that a method brings.
    """
    if reward.verifier is not None:
        return reward.verifier
    return reward.weight > 0 and reward.name not in NO_VERIFIERS and reward.from_method is None


def no_verifier(labels: Sequence[str]) -> str:
    """The message for a missing verifier, with the fix."""
    return (
        f"a verifier, a reward that scores answers, and rewards: has {', '.join(labels) or 'none'}: add one, for "
        "example {name: exact_match}, or state verifier: true at the reward that is one"
    )


def listed_rewards(value: Any) -> Any:
    """A bare name, or a mapping with a name, as a list of one reward; any other value unchanged."""
    return [value] if isinstance(value, str) or (isinstance(value, Mapping) and "name" in value) else value


RewardList = Annotated[tuple[RewardConfig, ...], BeforeValidator(listed_rewards)]
"""Rewards of a run; a single one may be a name."""

EvaluationRewardList = Annotated[tuple[EvaluationRewardConfig, ...], BeforeValidator(listed_rewards)]
"""Rewards of an evaluation, likewise."""


def gate_order(names: Sequence[str], gates: Mapping[str, str]) -> list[str]:
    """The gated rewards, each after those that its gate depends on.

    Args:
        names: all rewards.
        gates: gated reward -> the reward that opens its gate.

    Returns:
        The keys of ``gates``.

    Raises:
        ConfigError: a gate names no reward of the run, or gates depend on each other in a circle.
    """
    for name, other in gates.items():
        if other not in names:
            raise ConfigError(f"reward '{name}' is gated by '{other}', which is none of {', '.join(names)}")
    try:
        order = TopologicalSorter({name: [other] for name, other in gates.items()}).static_order()
        return [name for name in order if name in gates]
    except CycleError as error:
        raise ConfigError(f"gates depend on each other in a circle: {' -> '.join(error.args[1])}") from None
