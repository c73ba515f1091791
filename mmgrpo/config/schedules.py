"""The configuration as it is at each step of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, final

from pydantic import ValidationError

from mmgrpo.config import Named, RunConfig
from mmgrpo.config.binding import require_arguments
from mmgrpo.config.registry import settings_type
from mmgrpo.config.validating import explain_validation, policy_settings
from mmgrpo.errors import ConfigError
from mmgrpo.maths.controllers import CONTROLLERS, METRICS, SERIES
from mmgrpo.maths.schedules import SCHEDULES
from mmgrpo.memory import Memory
from mmgrpo.system.targets import is_python_target

STATE = "schedules."


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The values of one key over a run: by the step, or by feedback, a metric of the steps before.

    Attributes:
        key: dotted.
        function: step -> value; with a metric: the number so far and the metric of the steps since it last changed ->
            the number of the next step.
        metric: the metric that it follows; None: it follows the step.
        every: how many steps with the metric it takes to change once.
        initial: the number of the first step, where it follows a metric: the configuration's own.
    """

    key: str
    function: Callable[..., Any]
    metric: str | None = None
    every: int = 1
    initial: float = 0.0

    def value(self, step: int, memory: Memory) -> Any:
        """Its value at a step, counted from 0."""
        if self.metric is None:
            return self.function(step)
        return memory.state(STATE + self.key).get("value", self.initial)

    def updated(self, memory: Memory, metrics: Mapping[str, float]) -> Memory:
        """The memory after a step with these metrics: the new number, or the measurements until the next change."""
        if self.metric is None or (measured := metrics.get(self.metric)) is None:
            return memory
        state = memory.state(STATE + self.key)
        measurements = [*(state[str(step)] for step in range(len(state) - 1)), measured]
        value, is_due = state.get("value", self.initial), len(measurements) == self.every
        pending = {} if is_due else {str(step): measurement for step, measurement in enumerate(measurements)}
        return memory.with_state(
            STATE + self.key, {"value": self.function(value, measurements) if is_due else value, **pending}
        )


@final
@dataclass(frozen=True, slots=True)
class StepConfig:
    """The configuration of a step.

    Attributes:
        config: the configuration; that of the run if nothing changes.
        values: of the keys that change.
    """

    config: RunConfig
    values: Mapping[str, Any]

    @property
    def sampling_settings(self) -> dict[str, Any]:
        """The policy's settings among them, as ``Plan.settings`` takes them."""
        settings: dict[str, Any] = {}
        for key, value in self.values.items():
            if key.startswith("policy."):
                _set(settings, key.removeprefix("policy.").split("."), value)
        return settings

    @property
    def rewards(self) -> dict[str, dict[str, Any]]:
        """The rewards' numbers among them, by label."""
        numbers_by_label: dict[str, dict[str, Any]] = {}
        for key, value in self.values.items():
            if key.startswith("rewards."):
                label, _, number = key.removeprefix("rewards.").rpartition(".")
                numbers_by_label.setdefault(label, {})[number] = value
        return numbers_by_label

    @property
    def metrics(self) -> dict[str, float]:
        """The numeric values, as a run logs them: ``config/KEY``."""
        numbers = {key: value for key, value in self.values.items() if isinstance(value, int | float)}
        return {f"config/{key}": float(value) for key, value in numbers.items()}


@final
class RunSchedules:
    """The schedules of a run; ``mmgrpo.algorithm.schedules_of`` binds the functions.

    Attributes:
        by_key: each schedule, by its key.
        keys: those of all schedules.
    """

    def __init__(self, config: RunConfig, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Validates the configuration of the first step, of the last and of each change of a step schedule.

        Args:
            config: the run's.
            functions: those of ``schedules`` by key, bound to the numbers of ``function_of_schedule``.

        Raises:
            ConfigError: an unknown key, or a value that is not allowed.
        """
        self._config = config
        self.by_key = {
            key: _schedule(key, config.schedules[key], function, config) for key, function in functions.items()
        }
        self.keys = frozenset(config.schedules)
        self._latest: StepConfig | None = None
        _require_sampling_settings(config)
        changes = [step for named in config.schedules.values() for step in steps_of_change(named)]
        for step in sorted({0, max(config.steps - 1, 0), *changes}):
            self.at(step, Memory())

    def at(self, step: int, memory: Memory) -> StepConfig:
        """The configuration at a step, counted from 0; the very same object while nothing moves.

        Raises ConfigError for a value that its key cannot have.
        """
        values = {key: schedule.value(step, memory) for key, schedule in self.by_key.items()}
        values = {key: _rounded(self._config, key, value) for key, value in values.items()}
        if self._latest is None or self._latest.values != values:
            self._latest = StepConfig(_applied(self._config, values) if values else self._config, values)
        return self._latest

    def updated(self, memory: Memory, metrics: Mapping[str, float]) -> Memory:
        """The memory after a step: the number of every schedule that follows a metric, changed by that step's metrics.

        Args:
            memory: before.
            metrics: of the step, the same on every process; a schedule whose metric is not among them stays.

        Returns:
            The memory; itself without such schedules.
        """
        for schedule in self.by_key.values():
            memory = schedule.updated(memory, metrics)
        return memory

    def inactive(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """1 for each schedule that follows a metric which a step does not have, as a run logs it."""
        return {
            f"schedules/{key}/inactive": 1.0
            for key, schedule in self.by_key.items()
            if schedule.metric is not None and schedule.metric not in metrics
        }


def steps_of_change(named: Named) -> Sequence[int]:
    """The steps at which a step schedule changes its value; none for other schedules."""
    return named.settings["at"] if named.name == "step" else ()


def follows_metric(named: Named) -> bool:
    """Whether a schedule follows a metric of the run: one of ``CONTROLLERS``, or a custom function with ``metric``."""
    return named.name in CONTROLLERS or (named.name not in SCHEDULES and "metric" in named.settings)


def function_of_schedule(named: Named) -> Named:
    """The function of a schedule with its settings, except ``metric`` and ``every``, which ``RunSchedules`` reads."""
    if not follows_metric(named):
        return named
    numbers = {key: value for key, value in named.settings.items() if key not in ("metric", "every")}
    return Named.model_validate({"name": named.name, **numbers})


def _schedule(key: str, named: Named, function: Callable[..., Any], config: RunConfig) -> Schedule:
    if not follows_metric(named):
        if is_python_target(named.name) and _num_positional(function) == 2:
            raise ConfigError(
                f"schedules.{key}: {named.name} takes a number and a metric: name the metric, for example metric: "
                "reward/mean"
            )
        require_arguments(f"schedules.{key}", named.name, function, SCHEDULES.arguments)
        return Schedule(key=key, function=function)
    require_arguments(f"schedules.{key}", named.name, function, CONTROLLERS.arguments)
    numbers = named.settings
    metric, every = numbers.pop("metric", METRICS.get(named.name)), numbers.pop("every", 1)
    if not isinstance(metric, str):
        raise ConfigError(f"schedules.{key}: {named.name} needs metric, for example reward/mean")
    least = 2 if named.name in SERIES else 1
    if not isinstance(every, int) or every < least:
        raise ConfigError(f"schedules.{key}: {named.name} moves every {least} steps or more, got every: {every!r}")
    initial = configured_value(config, key)
    if isinstance(initial, bool) or not isinstance(initial, int | float):
        raise ConfigError(f"schedules.{key} begins with the configuration's own number, which is {initial!r}; set it")
    if named.name == "adaptive_kl" and not initial > 0:
        raise ConfigError(f"schedules.{key}: adaptive_kl multiplies the number, so that {key} must begin above 0")
    may_end = named.name == "dual_ascent" and not numbers.get("low", 0) > 0
    if metric == _measured_by(key, config) and (may_end or not initial > 0):
        raise ConfigError(
            f"schedules.{key}: {metric} is measured only while {key} is above 0, and would rest for ever at 0: begin "
            "above 0, and give dual_ascent a low above 0"
        )
    by_step = function if named.name in SERIES else lambda value, measurements: function(value, fmean(measurements))
    return Schedule(key=key, function=by_step, metric=metric, every=every, initial=float(initial))


def _num_positional(function: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds for parameter in inspect.signature(function).parameters.values())


def _measured_by(key: str, config: RunConfig) -> str | None:
    """The metric that a weight of the loss has to be above 0 for."""
    if key == "objective.kl.beta":
        return "policy/kl_mean"
    named = {f"objective.terms.{term.label or term.name}.weight": term for term in config.objective.terms}
    return f"policy/{named[key].label or named[key].name}_mean" if key in named else None


def _require_sampling_settings(config: RunConfig) -> None:
    """Raises ConfigError for policy settings that cannot change per rollout."""
    policy_keys = [key for key in config.schedules if key.startswith("policy.")]
    if not policy_keys or config.policy is None:
        return
    allowed = getattr(settings_type(config.policy.name), "of_a_rollout", None)
    wrong = [key for key in policy_keys if allowed is not None and key.split(".")[1] not in allowed]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)} cannot change during a run; of {config.policy.name} these sampling settings "
            f"can: {', '.join(allowed or ())}"
        )


def _rounded(config: RunConfig, key: str, value: Any) -> Any:
    """A scheduled number, rounded if the configured one is an int."""
    configured = configured_value(config, key) if isinstance(value, float) else None
    return round(value) if isinstance(configured, int) and not isinstance(configured, bool) else value


def configured_value(config: RunConfig, key: str) -> Any:
    """The configured value of a key, including defaults; None if there is none."""
    if key.startswith("rewards."):
        label, _, number = key.removeprefix("rewards.").rpartition(".")
        named = {reward.logged_name: reward.model_dump() for reward in config.rewards}
        return named.get(label, {"weight": 1.0}).get(number)
    values: Any = config.model_dump()
    if key.startswith("policy.") and config.policy is not None:
        values["policy"] = policy_settings(config.policy).model_dump()
    for part in key.split("."):
        values = _inner(values, part)
    return values


def _applied(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    plain = config.model_dump()
    for key, value in values.items():
        if not key.startswith("rewards.") and (config.policy is not None or not key.startswith("policy.")):
            _require_section(plain, key)
            _set(plain, key.split("."), value)
    rewards = StepConfig(config, values).rewards
    labels = [reward.logged_name for reward in config.rewards]
    if unknown := [label for label in rewards if labels and label not in labels]:
        raise ConfigError(f"rewards.{unknown[0]}: there is no reward of that label, known are {', '.join(labels)}")
    plain["rewards"] = [
        {**plain_reward, **rewards.get(label, {})} for label, plain_reward in zip(labels, plain["rewards"], strict=True)
    ]
    at = ", ".join(f"{key} = {value!r}" for key, value in values.items())
    try:
        applied = RunConfig.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(f"with {at}: {explain_validation(error, RunConfig)}") from None
    if applied.policy is not None and any(key.startswith("policy.") for key in values):
        try:
            policy_settings(applied.policy)
        except ConfigError as error:
            raise ConfigError(f"with {at}: {error}") from None
    return applied


def _require_section(plain: Mapping[str, Any], key: str) -> None:
    """Raises ConfigError for a key in a section that is not configured: a number of a function that is not named."""
    inner: Any = plain
    for part in key.split(".")[:-1]:
        inner = _inner(inner, part)
        if inner is None and not key.startswith("policy."):
            raise ConfigError(f"{key} cannot move: the configuration has no {part}")
    if isinstance(inner, list | tuple):
        raise ConfigError(f"{key} cannot move: say which number of it, as {key}.weight")


def _inner(values: Any, part: str) -> Any:
    """The value under a part of a key; in a list that of the item of this label, or name where it has none."""
    if isinstance(values, list | tuple):
        return next((item for item in values if isinstance(item, Mapping) and _label(item) == part), None)
    return values.get(part) if isinstance(values, Mapping) else None


def _label(item: Mapping[str, Any]) -> Any:
    return item.get("label") or item.get("name")


def _set(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Sets a value in place; mappings on the path are copied, and created if missing."""
    first, *rest = path
    if not rest:
        values[first] = value
        return
    inner = values.get(first)
    if isinstance(inner, list | tuple):
        values[first] = [dict(item) if isinstance(item, Mapping) else item for item in inner]
        _set(_inner(values[first], rest[0]), rest[1:], value)
        return
    values[first] = dict(inner) if isinstance(inner, Mapping) else {}
    _set(values[first], rest, value)
