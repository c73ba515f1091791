"""Watches the log of a run, and raises alerts that name the setting to change."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, final

from mmgrpo.config import AlertKind, EvaluationRewardConfig, RunConfig, WatchdogConfig
from mmgrpo.config.objective import NOISE_WITHOUT_CLIP
from mmgrpo.config.registry import resolve
from mmgrpo.errors import ConfigError
from mmgrpo.maths.changes import CHANGED_FRAC
from mmgrpo.system.site_pages import page_url

GRID = "grid_artifacts"
INTERVAL = 10
"""Steps before an alert of the same kind is raised again."""
DIVERSITY = ("samples/distinct_frac", "samples/pixel_spread", "policy/entropy_mean")
LENGTHS = {"completions/mean_length": "length", "samples/mean_boxes": "number of boxes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A problem that the user should look at.

    Attributes:
        step: step of the alert.
        kind: kind of the alert.
        measured: the observation, with numbers.
        suggested_fix: the setting to change.
    """

    step: int
    kind: AlertKind
    measured: str
    suggested_fix: str

    def as_line(self) -> dict[str, Any]:
        """Returns its line in ``alerts.jsonl``."""
        return {"step": self.step, "kind": self.kind, "measured": self.measured, "suggested_fix": self.suggested_fix}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogInputs:
    """The limits of the watchdog, and the facts about the run that its rules need.

    Attributes:
        config: the limits.
        held_out: evaluation rewards that must not fall.
        clip_bound: the smallest bound on |ratio - 1|; None without a bound.
        checkpoints: returns the steps that have a checkpoint.
    """

    config: WatchdogConfig
    held_out: tuple[str, ...]
    clip_bound: float | None
    checkpoints: Callable[[], Iterable[int]]


def watchdog_inputs(
    config: RunConfig,
    trained: Sequence[str],
    evaluated: Sequence[str],
    *,
    checkpoints: Callable[[], Iterable[int]] = tuple,
) -> WatchdogInputs | None:
    """Returns the inputs of a run's watchdog; None if its configuration has no watchdog.

    An evaluation reward counts as trained on if a training reward is the same with the same settings, under any name.
    Rewards that the configuration does not describe are compared by name.

    Args:
        config: the run's configuration.
        trained: names of the training rewards.
        evaluated: names of the evaluation rewards.
        checkpoints: returns the steps that have a checkpoint.

    Returns:
        The inputs.

    Raises:
        ConfigError: a held-out reward is no evaluation reward, or is trained on; or the watchdog stops at hacking and
            there is no held-out reward; or an alert takes another limit.
    """
    watchdog = config.watchdog
    if watchdog is None:
        return None
    evaluation = () if config.held_out is None else config.held_out.rewards or config.rewards
    only_reported = {reward.logged_name for reward in config.rewards if reward.weight == 0}
    trained_identities = set(_identities(config.rewards, [n for n in trained if n not in only_reported]).values())
    identities = _identities(evaluation, evaluated) if config.held_out is not None else {}
    untrained = [name for name, identity in identities.items() if identity not in trained_identities]
    invalid = [name for name in watchdog.held_out if name not in untrained]
    if invalid:
        valid_names = f"evaluation rewards that are not trained on: {', '.join(untrained) or 'none'}"
        no_evaluation = "there is no evaluation: set evaluation.prompts, or evaluation.watchdog.held_out=[]"
        reason = valid_names if config.held_out else no_evaluation
        raise ConfigError(f"evaluation.watchdog.held_out names {', '.join(invalid)}; {reason}")
    held_out = watchdog.held_out or tuple(name for name in untrained if name != GRID)
    if "hacking" in watchdog.stop and not held_out:
        raise ConfigError(
            "evaluation.watchdog.stop: hacking needs a reward in evaluation.rewards that is not trained on"
        )
    rules_of(watchdog)  # raises for other settings
    clip_bound = config.objective.clip_bound
    return WatchdogInputs(config=watchdog, held_out=held_out, clip_bound=clip_bound, checkpoints=checkpoints)


def _identities(rewards: Sequence[EvaluationRewardConfig], names: Sequence[str]) -> dict[str, str]:
    """Maps names to the identities of rewards."""
    described = {reward.logged_name: reward for reward in rewards}
    return {name: _identity(described[name]) if name in described else name for name in names}


def _identity(reward: EvaluationRewardConfig) -> str:
    """Returns a text that identifies a reward function with its settings, defaults included."""
    target = resolve("rewards", reward.name)
    try:
        settings = inspect.signature(target).bind_partial(**reward.settings)
        settings.apply_defaults()
        numbers: Mapping[str, Any] = settings.arguments
    except TypeError:  # invalid settings; building the reward raises the better error
        numbers = reward.settings
    return f"{target.__module__}:{target.__qualname__} {json.dumps(numbers, sort_keys=True, default=repr)}"


@final
class Watchdog:
    """Reads the log lines of a run, and raises alerts.

    Attributes:
        inputs: limits and facts about the run.
    """

    def __init__(self, inputs: WatchdogInputs) -> None:
        """Has read no line yet.

        Args:
            inputs: limits and facts about the run.
        """
        self.inputs, self._rules = inputs, rules_of(inputs.config)
        self._steps: list[Mapping[str, Any]] = []
        self._evaluations: list[dict[str, Any]] = []
        self._steps_since_evaluation: list[Mapping[str, Any]] = []
        self._last_step_of: dict[AlertKind, int] = {}

    def after_step(self, line: Mapping[str, Any]) -> list[Alert]:
        """Reads the line of a step's last update; returns the new alerts."""
        if self._evaluations and not self._steps:  # sampled by the weights that the first evaluation used
            self._evaluations[-1] |= _training_reward([line])
        self._steps.append(line)
        self._steps_since_evaluation.append(line)
        return self._new_alerts(STEP_RULES, self._steps)

    def after_evaluation(self, line: Mapping[str, Any]) -> list[Alert]:
        """Reads the line of an evaluation; returns the new alerts."""
        self._evaluations.append({**line, **_training_reward(self._steps_since_evaluation)})
        self._steps_since_evaluation = []
        return self._new_alerts(EVALUATION_RULES, self._evaluations)

    def replay(self, metrics: Sequence[Mapping[str, Any]], evaluation: Sequence[Mapping[str, Any]]) -> list[Alert]:
        """Reads the log of a resumed run; returns its earlier alerts, so that they are not raised again."""
        last_of_step: dict[int, Mapping[str, Any]] = {}
        for line in metrics:
            last_of_step[line["step"]] = step_summary(last_of_step.get(line["step"], {}), line)
        events = [(step, 0, line) for step, line in last_of_step.items()]
        events += [(line["step"], 1, line) for line in evaluation]
        ordered = sorted(events, key=lambda event: event[:2])
        return [
            alert
            for _, is_evaluation, line in ordered
            for alert in (self.after_evaluation(line) if is_evaluation else self.after_step(line))
        ]

    def _new_alerts(self, rules: Mapping[AlertKind, Rule], lines: Sequence[Mapping[str, Any]]) -> list[Alert]:
        step, alerts = int(lines[-1]["step"]), []
        for kind in rules:
            last_step = self._last_step_of.get(kind)
            is_recent = last_step is not None and step < last_step + INTERVAL
            finding = None if is_recent else next(self._rules[kind](lines, self.inputs), None)
            if finding is not None:
                self._last_step_of[kind] = step
                alerts.append(Alert(step=step, kind=kind, measured=finding[0], suggested_fix=finding[1]))
        return alerts


def step_summary(earlier: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the line of an update, with the largest changed fractions of it and the step's earlier updates."""
    largest = {
        key: max(value, line[key]) for key, value in earlier.items() if key.endswith(f"/{CHANGED_FRAC}") and key in line
    }
    return {**line, **largest}


def first_step_notes(line: Mapping[str, Any], noise_limit: float) -> Iterator[str]:
    """Yields notes on the first step: a gap of the log-probabilities, no gradient, and functions without effect.

    The latter are estimators, filters and method rewards; terms, selections and modulations are left out: several of
    them, such as a divergence from the reference, are 0 until the weights have changed.
    """
    gap = line.get("policy/on_policy_gap")
    if gap is not None and not gap <= noise_limit:
        yield (
            f"log-probabilities of the first update differ by up to {gap:.2g} from those of the rollout, where "
            f"{noise_limit:.2g} is numerical noise: the ratios are wrong by as much; run mmgrpo doctor"
        )
    if line.get("optimizer/grad_norm") == 0 and not line.get("reward/std"):  # functions of rewards have no effect
        if line.get("groups/zero_std_frac") == 1:
            yield (
                "the first step trained nothing: all rewards are equal, and no part of a sample has a score; look at "
                "the rewards in samples/, and use prompts that some samples of a group solve"
            )
        return
    if line.get("optimizer/grad_norm") == 0:
        yield (
            "the gradient of the first step is 0, although rewards differ: no weight is trained; the rewards of each "
            "group are equal (groups/zero_std_frac), or a layer of zeros hides the trained weights (mmgrpo doctor)"
        )
    keys = [
        key
        for key, value in line.items()
        if key.startswith(("credit/", "reward/")) and key.endswith(CHANGED_FRAC) and not value
    ]
    names = ", ".join(key.removesuffix(f"/{CHANGED_FRAC}") for key in keys)
    if keys:
        yield f"no decision is changed by {names} in the first step: {page_url('how-to/watchdog')}"


def _training_reward(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the mean of the training reward over the steps that have one; empty if none has."""
    rewarded = [step for step in steps if "reward/mean" in step]
    return {f"trained/{part}": fmean(s[f"reward/{part}"] for s in rewarded) for part in ("mean", "std") if rewarded}


Rule = Callable[..., Iterator[tuple[str, str]]]
"""Reads the lines so far and the WatchdogInputs; yields (measured, suggested fix) if there is a problem."""


def hacking(
    lines: Sequence[Mapping[str, Any]], inputs: WatchdogInputs, *, limit: float | None = 0.1
) -> Iterator[tuple[str, str]]:
    """The training reward rises while a held-out reward falls, from the older half of the window to the newer.

    Each changes by more than ``limit`` times the largest standard deviation of its samples (times its mean, if all
    samples have the same value).
    """
    window = inputs.config.window
    recent = [line for line in lines if "trained/mean" in line][-window:]
    if limit is None or len(recent) < window:
        return
    rise = _change(recent, "trained")
    if rise is None or rise.in_stds <= limit:
        return
    earlier = int(recent[window // 2 - 1]["step"])
    saved = [step for step in inputs.checkpoints() if step <= earlier]
    rollback = f"go back to the checkpoint of step {max(saved)}" if saved else "keep checkpoints: set checkpoint.every"
    for name in inputs.held_out:
        fall = _change([line for line in recent if f"eval/{name}/mean" in line], f"eval/{name}")
        if fall is not None and fall.in_stds < -limit:
            yield (
                f"the reward rose from {rise.before:.3g} to {rise.after:.3g}, and '{name}', which is not trained on, "
                f"fell from {fall.before:.3g} to {fall.after:.3g}",
                f"raise objective.kl.beta, lower update.optimizer.lr, or train on '{name}' as well; {rollback}",
            )


def diversity(
    lines: Sequence[Mapping[str, Any]], inputs: WatchdogInputs, *, limit: float | None = 0.5
) -> Iterator[tuple[str, str]]:
    """The members of a group become similar, or the entropy of the policy falls: below a share of the first window."""
    for key in DIVERSITY:
        ends = _ends(lines, key, inputs.config.window)
        if limit is not None and ends is not None and ends[1] < limit * ends[0]:
            yield (
                f"{key} fell from {ends[0]:.3g} to {ends[1]:.3g}",
                "raise objective.kl.beta, objective.entropy_bonus or the sampling's temperature or strength, lower "
                "update.optimizer.lr, or reward diversity (diversity_adjusted)",
            )


def length(
    lines: Sequence[Mapping[str, Any]], inputs: WatchdogInputs, *, limit: float | None = 2.0
) -> Iterator[tuple[str, str]]:
    """Answers become longer or shorter, or have more or fewer boxes, by more than a factor."""
    for key, quantity in LENGTHS.items():
        ends = _ends(lines, key, inputs.config.window)
        if limit is not None and ends is not None and not ends[0] / limit <= ends[1] <= ends[0] * limit:
            yield (
                f"the {quantity} of an answer went from {ends[0]:.3g} to {ends[1]:.3g}",
                "check whether the reward depends on the length alone; for boxes, length_power and max_boxes of "
                "detection; for texts, the rewards overlong and cosine_length, and objective.aggregate",
            )


def grid(
    lines: Sequence[Mapping[str, Any]], inputs: WatchdogInputs, *, limit: float | None = 0.1
) -> Iterator[tuple[str, str]]:
    """Images develop a regular pattern, measured by ``grid_artifacts``."""
    for key in (f"eval/{GRID}/mean", f"reward/{GRID}/mean"):
        ends = _ends(lines, key, inputs.config.window)
        if limit is not None and ends is not None and ends[1] - ends[0] > limit:
            yield (
                f"{GRID} rose from {ends[0]:.3g} to {ends[1]:.3g}",
                f"give {GRID} a negative weight, raise objective.kl.beta or lower update.optimizer.lr",
            )


def dead_groups(
    lines: Sequence[Mapping[str, Any]], inputs: WatchdogInputs, *, limit: float | None = 0.9
) -> Iterator[tuple[str, str]]:
    """Most groups have equal rewards, so that they give no gradient."""
    window = inputs.config.window
    values = _values(lines, "groups/zero_std_frac")[-window:]
    if limit is not None and len(values) == window and fmean(values) > limit:
        yield (
            f"{fmean(values):.0%} of the groups of {window} steps have no advantage",
            "raise rollout.group_size or the sampling's temperature or strength, use prompts that are neither solved "
            "nor out of reach, or a reward with more than two values",
        )


def on_policy_gap(
    lines: Sequence[Mapping[str, Any]], inputs: WatchdogInputs, *, limit: float | None = 1.0
) -> Iterator[tuple[str, str]]:
    """The log-probabilities of the update differ from those of the rollout by more than the clip bound."""
    gap = lines[-1].get("policy/on_policy_gap")
    clip_bound = NOISE_WITHOUT_CLIP if inputs.clip_bound is None else inputs.clip_bound
    if limit is not None and gap is not None and not gap <= limit * clip_bound:
        yield (
            f"log-probabilities differ by up to {gap:.2g} before any update, where {limit * clip_bound:.2g} is allowed",
            "run mmgrpo doctor; switch off dropout, score at the temperature of the rollout, or compute in float32",
        )


def no_effect(
    lines: Sequence[Mapping[str, Any]], inputs: WatchdogInputs, *, limit: float | None = 0.0
) -> Iterator[tuple[str, str]]:
    """A mechanism changes no decision in any step of the newest window."""
    window = inputs.config.window
    if limit is None:
        return
    series = {key: _values(lines, key)[-window:] for key in lines[-1] if key.endswith(f"/{CHANGED_FRAC}")}
    idle_keys = [key for key, values in series.items() if len(values) == window and max(values) <= limit]
    if idle_keys:
        share = "no decision is" if limit == 0 else f"at most {limit:.3g} of the decisions are"
        yield (
            f"in {window} steps {share} changed by {', '.join(idle_keys)}",
            "check that the run meets the needs of the method (mmgrpo explain), that it starts before the last step, "
            "and its thresholds; or remove it: the run is the same without it",
        )


STEP_RULES: Mapping[AlertKind, Rule] = {
    "diversity": diversity,
    "length": length,
    "grid": grid,
    "dead_groups": dead_groups,
    "on_policy_gap": on_policy_gap,
    "no_effect": no_effect,
}
"""Rules that are checked after every step."""

EVALUATION_RULES: Mapping[AlertKind, Rule] = {"hacking": hacking, "grid": grid}
"""Rules that are checked after every evaluation."""

LIMITS: Mapping[AlertKind, tuple[str, Callable[[float], bool]]] = {
    "hacking": ("above 0", lambda limit: limit > 0),
    "diversity": ("between 0 and 1", lambda limit: 0 < limit < 1),
    "length": ("above 1", lambda limit: limit > 1),
    "grid": ("above 0", lambda limit: limit > 0),
    "dead_groups": ("above 0 and at most 1", lambda limit: 0 < limit <= 1),
    "on_policy_gap": ("above 0", lambda limit: limit > 0),
    "no_effect": ("at least 0 and below 1", lambda limit: 0 <= limit < 1),
}
"""The limits that each alert takes."""


def rules_of(config: WatchdogConfig) -> dict[str, Rule]:
    """The rule of each alert with its limit.

    Args:
        config: the section ``evaluation.watchdog``.

    Returns:
        The rules, by the name of the alert.

    Raises:
        ConfigError: an alert takes other settings, or another limit.
    """
    rules: dict[str, Rule] = {**STEP_RULES, **EVALUATION_RULES}
    for alert in config.alerts:
        key, (text, is_valid) = "evaluation.watchdog.alerts", LIMITS[alert.name]
        if unknown := [name for name in alert.settings if name != "limit"]:
            raise ConfigError(f"{key}: {alert.name} takes no {unknown[0]!r}; its only setting is limit")
        limit = alert.settings.get("limit")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
            raise ConfigError(f"{key}: limit of {alert.name} must be float or null, got {limit!r:.80}")
        if "limit" in alert.settings:
            rules[alert.name] = partial(rules[alert.name], limit=limit)
        if limit is not None and not is_valid(limit):
            raise ConfigError(f"{key}: limit of {alert.name} must be {text}, got {limit}")
    return rules


@dataclass(frozen=True, slots=True)
class _Change:
    """Means of the older and the newer half of a window, and their difference in standard deviations."""

    before: float
    after: float
    in_stds: float


def _change(lines: Sequence[Mapping[str, Any]], key: str) -> _Change | None:
    values, half = _values(lines, f"{key}/mean"), len(lines) // 2
    if len(values) < len(lines) or half == 0:
        return None
    before, after = fmean(values[:half]), fmean(values[-half:])
    spread = max(_values(lines, f"{key}/std"), default=0.0)
    unit = spread if spread > 0 else abs(before)
    if unit == 0:
        return _Change(before, after, math.copysign(math.inf, after - before) if after != before else 0.0)
    return _Change(before, after, (after - before) / unit)


def _ends(lines: Sequence[Mapping[str, Any]], key: str, window: int) -> tuple[float, float] | None:
    """Returns the means of the first and the newest ``window`` values; None while they overlap."""
    values = _values(lines, key)
    return (fmean(values[:window]), fmean(values[-window:])) if len(values) >= 2 * window else None


def _values(lines: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [line[key] for line in lines if isinstance(line.get(key), int | float) and math.isfinite(line[key])]
