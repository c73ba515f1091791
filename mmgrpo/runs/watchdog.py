"""Watches what a run logs, and gives alarms that name the knob to turn."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, final

from mmgrpo.config import AlarmKind, RewardConfig, RunConfig, WatchdogConfig
from mmgrpo.config.registry import resolve
from mmgrpo.errors import ConfigError
from mmgrpo.maths.changes import CHANGED_FRAC

GRID = "grid_artifacts"
GAP_WITHOUT_CLIP = 1e-2  # a ratio wrong by 1 % scales its gradient by 1 %
DIVERSITY = ("samples/distinct_frac", "samples/pixel_spread", "policy/entropy_mean")
LENGTHS = {"completions/mean_length": "length", "samples/mean_boxes": "number of boxes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that a person should look at.

    Attributes:
        step: when.
        kind: which alarm.
        measured: what was seen, in numbers.
        cure: the knob to turn.
    """

    step: int
    kind: AlarmKind
    measured: str
    cure: str

    def as_line(self) -> dict[str, Any]:
        """As a line of ``alarms.jsonl``."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is watched, and against what.

    Attributes:
        config: the limits.
        held_out: evaluation rewards that must not fall.
        clip_bound: the smallest bound on |ratio - 1|, if there is one.
        checkpoints: gives the steps of which there is a checkpoint.
    """

    config: WatchdogConfig
    held_out: tuple[str, ...]
    clip_bound: float | None
    checkpoints: Callable[[], Iterable[int]]


def watched(
    config: RunConfig,
    trained: Sequence[str],
    judges: Sequence[str],
    *,
    checkpoints: Callable[[], Iterable[int]] = tuple,
) -> Watched | None:
    """What a run watches; None if its configuration has no watchdog.

    A judge is trained on where the run's rewards have the same one with the same settings, whatever either is called;
    what the configuration does not describe is known by its name.

    Args:
        config: the run.
        trained: names of the rewards that are trained on.
        judges: names of the evaluation's rewards.
        checkpoints: gives the steps of which there is a checkpoint.

    Returns:
        What is watched.

    Raises:
        ConfigError: a held-out reward is none of the evaluation's, or is trained on; or hacking is to end the run, and
            there is no held-out reward.
    """
    watchdog = config.watchdog
    if watchdog is None:
        return None
    evaluation = () if config.evaluation is None else config.evaluation.rewards or config.rewards
    only_reported = {reward.known_as for reward in config.rewards if reward.weight == 0}
    taught = set(_identities(config.rewards, [name for name in trained if name not in only_reported]).values())
    known = _identities(evaluation, judges) if config.evaluation is not None else {}
    free = [name for name, identity in known.items() if identity not in taught]
    wrong = [name for name in watchdog.held_out if name not in free]
    if wrong:
        there = f"of the evaluation's rewards, these are not trained on: {', '.join(free) or 'none'}"
        none = "there is no evaluation: leave the watchdog out as well (watchdog=null), or set watchdog.held_out=[]"
        raise ConfigError(f"watchdog.held_out names {', '.join(wrong)}; {there if config.evaluation else none}")
    held_out = watchdog.held_out or tuple(name for name in free if name != GRID)
    if "hacking" in watchdog.stop and not held_out:
        raise ConfigError("watchdog.stop: hacking needs a reward in evaluation.rewards that is not trained on")
    bound = config.objective.clip_bound
    return Watched(config=watchdog, held_out=held_out, clip_bound=bound, checkpoints=checkpoints)


def _identities(rewards: Sequence[RewardConfig], names: Sequence[str]) -> dict[str, str]:
    """Name -> which reward with which settings."""
    described = {reward.known_as: reward for reward in rewards}
    return {name: _identity(described[name]) if name in described else name for name in names}


def _identity(reward: RewardConfig) -> str:
    """Which reward it is with which settings, defaults included."""
    target = resolve("rewards", reward.name)
    try:
        settings = inspect.signature(target).bind_partial(**reward.numbers)
        settings.apply_defaults()
        numbers: Mapping[str, Any] = settings.arguments
    except TypeError:  # takes no such settings, which its construction says better
        numbers = reward.numbers
    return f"{target.__module__}:{target.__qualname__} {json.dumps(numbers, sort_keys=True, default=repr)}"


@final
class Watchdog:
    """Reads the lines of a run as they are logged."""

    def __init__(self, subject: Watched) -> None:
        self.subject = subject
        self._steps: list[Mapping[str, Any]] = []
        self._evaluations: list[dict[str, Any]] = []
        self._since: list[Mapping[str, Any]] = []
        self._last: dict[AlarmKind, int] = {}

    def stepped(self, line: Mapping[str, Any]) -> list[Alarm]:
        """After a step, with the line of its last update: the alarms to give now."""
        if self._evaluations and not self._steps:  # drawn by the very weights that the first evaluation judged
            self._evaluations[-1] |= _trained([line])
        self._steps.append(line)
        self._since.append(line)
        return self._due(STEP_ALARMS, self._steps)

    def judged(self, line: Mapping[str, Any]) -> list[Alarm]:
        """After an evaluation: the alarms to give now."""
        self._evaluations.append({**line, **_trained(self._since)})
        self._since = []
        return self._due(EVALUATION_ALARMS, self._evaluations)

    def recall(self, metrics: Sequence[Mapping[str, Any]], evaluation: Sequence[Mapping[str, Any]]) -> list[Alarm]:
        """Reads what a resumed run had logged, and says which alarms it gave, so that they are not given again."""
        last_of_step: dict[int, Mapping[str, Any]] = {}
        for line in metrics:
            last_of_step[line["step"]] = step_summary(last_of_step.get(line["step"], {}), line)
        events = [(step, 0, line) for step, line in last_of_step.items()]
        events += [(line["step"], 1, line) for line in evaluation]
        ordered = sorted(events, key=lambda event: event[:2])
        return [alarm for _, kind, line in ordered for alarm in (self.judged(line) if kind else self.stepped(line))]

    def _due(self, rules: Mapping[AlarmKind, Rule], lines: Sequence[Mapping[str, Any]]) -> list[Alarm]:
        step, alarms = int(lines[-1]["step"]), []
        for kind, rule in rules.items():
            recent = kind in self._last and step < self._last[kind] + self.subject.config.interval
            found = None if recent else next(rule(lines, self.subject), None)
            if found is not None:
                self._last[kind] = step
                alarms.append(Alarm(step=step, kind=kind, measured=found[0], cure=found[1]))
        return alarms


def step_summary(earlier: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """The line of an update, with the largest share of changed decisions among it and the step's earlier updates."""
    largest = {
        key: max(value, line[key]) for key, value in earlier.items() if key.endswith(f"/{CHANGED_FRAC}") and key in line
    }
    return {**line, **largest}


def first_step_note(line: Mapping[str, Any]) -> str | None:
    """A note of the estimators, filters and rewards of methods that changed nothing in the first step; None if all did.

    Terms, selections and modulations are left out: several of them, such as a divergence from the reference, are 0
    until the weights have moved.
    """
    keys = [
        key
        for key, value in line.items()
        if key.startswith(("credit/", "reward/")) and key.endswith(CHANGED_FRAC) and not value
    ]
    names = ", ".join(key.removesuffix(f"/{CHANGED_FRAC}") for key in keys)
    return f"no decision is changed by {names} in the first step: docs/watchdog.md" if keys else None


def _trained(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The reward that is trained on, over some steps; nothing of none."""
    return {f"trained/{part}": fmean(step[f"reward/{part}"] for step in steps) for part in ("mean", "std") if steps}


Rule = Callable[[Sequence[Mapping[str, Any]], Watched], Iterator[tuple[str, str]]]
"""Reads the lines so far, and gives what it saw and the knob to turn, if anything."""


def hacking(lines: Sequence[Mapping[str, Any]], subject: Watched) -> Iterator[tuple[str, str]]:
    """The reward rises while a held-out reward falls, from the older half of the window to the newer.

    Each by more than ``hacking`` times the largest standard deviation that its samples had (of its mean, where all
    samples share one value).
    """
    margin, window = subject.config.hacking, subject.config.window
    kept = [line for line in lines if "trained/mean" in line][-window:]
    if margin is None or len(kept) < window:
        return
    rise = _change(kept, "trained")
    if rise is None or rise.in_stds <= margin:
        return
    earlier = int(kept[window // 2 - 1]["step"])
    saved = [step for step in subject.checkpoints() if step <= earlier]
    cure = f"go back to the checkpoint of step {max(saved)}" if saved else "keep checkpoints: set checkpoint.every"
    for name in subject.held_out:
        fall = _change([line for line in kept if f"eval/{name}/mean" in line], f"eval/{name}")
        if fall is not None and fall.in_stds < -margin:
            yield (
                f"the reward rose from {rise.before:.3g} to {rise.after:.3g}, and '{name}', which is not trained on, "
                f"fell from {fall.before:.3g} to {fall.after:.3g}",
                f"raise objective.kl_beta, lower update.lr, or train on what '{name}' sees as well; {cure}",
            )


def diversity(lines: Sequence[Mapping[str, Any]], subject: Watched) -> Iterator[tuple[str, str]]:
    """The members of a group become alike, or the policy certain."""
    share = subject.config.diversity
    for key in DIVERSITY:
        ends = _ends(lines, key, subject.config.window)
        if share is not None and ends is not None and ends[1] < share * ends[0]:
            yield (
                f"{key} fell from {ends[0]:.3g} to {ends[1]:.3g}",
                "raise objective.kl_beta, objective.entropy_bonus or the sampling's temperature or strength, lower "
                "update.lr, or reward what differs (diversity_adjusted)",
            )


def length(lines: Sequence[Mapping[str, Any]], subject: Watched) -> Iterator[tuple[str, str]]:
    """Answers become much longer or shorter, or state many more or fewer boxes."""
    factor = subject.config.length
    for key, what in LENGTHS.items():
        ends = _ends(lines, key, subject.config.window)
        if factor is not None and ends is not None and not ends[0] / factor <= ends[1] <= ends[0] * factor:
            yield (
                f"the {what} of an answer went from {ends[0]:.3g} to {ends[1]:.3g}",
                "see what the reward gives for length alone; for boxes, length_power and max_boxes of detection; for "
                "texts, the rewards overlong and cosine_length, and objective.aggregate",
            )


def grid(lines: Sequence[Mapping[str, Any]], subject: Watched) -> Iterator[tuple[str, str]]:
    """Pictures gain a regular pattern, as ``grid_artifacts`` measures it."""
    limit = subject.config.grid
    for key in (f"eval/{GRID}/mean", f"reward/{GRID}/mean"):
        ends = _ends(lines, key, subject.config.window)
        if limit is not None and ends is not None and ends[1] - ends[0] > limit:
            yield (
                f"{GRID} rose from {ends[0]:.3g} to {ends[1]:.3g}",
                f"give {GRID} a negative weight, raise objective.kl_beta or lower update.lr",
            )


def dead_groups(lines: Sequence[Mapping[str, Any]], subject: Watched) -> Iterator[tuple[str, str]]:
    """Most groups earn the same throughout, so that nothing is learnt from them."""
    limit, window = subject.config.dead_groups, subject.config.window
    values = _values(lines, "groups/zero_std_frac")[-window:]
    if limit is not None and len(values) == window and fmean(values) > limit:
        yield (
            f"{fmean(values):.0%} of the groups of {window} steps have no advantage",
            "raise rollout.group_size or the sampling's temperature or strength, take prompts that are neither solved "
            "nor out of reach, or a reward with more than two values",
        )


def on_policy_gap(lines: Sequence[Mapping[str, Any]], subject: Watched) -> Iterator[tuple[str, str]]:
    """The log-probabilities of the update are not those of the rollout, by more than the clip bound."""
    factor, gap = subject.config.on_policy_gap, lines[-1].get("policy/on_policy_gap")
    bound = GAP_WITHOUT_CLIP if subject.clip_bound is None else subject.clip_bound
    if factor is not None and gap is not None and not gap <= factor * bound:
        yield (
            f"log-probabilities differ by up to {gap:.2g} before any update, where {factor * bound:.2g} is allowed",
            "run mmgrpo doctor; compute in float32, switch off dropout, or raise the bounds of objective.surrogate",
        )


def no_effect(lines: Sequence[Mapping[str, Any]], subject: Watched) -> Iterator[tuple[str, str]]:
    """A mechanism changes no decision in any step of the newest window."""
    limit, window = subject.config.no_effect, subject.config.window
    if limit is None:
        return
    series = {key: _values(lines, key)[-window:] for key in lines[-1] if key.endswith(f"/{CHANGED_FRAC}")}
    idle_keys = [key for key, values in series.items() if len(values) == window and max(values) <= limit]
    if idle_keys:
        share = "no decision is" if limit == 0 else f"at most {limit:.3g} of the decisions are"
        yield (
            f"in {window} steps {share} changed by {', '.join(idle_keys)}",
            "check that the run has what the method needs (mmgrpo explain), that its start is not after the last step, "
            "and its thresholds; or leave it out: without it the run is the same",
        )


STEP_ALARMS: Mapping[AlarmKind, Rule] = {
    "diversity": diversity,
    "length": length,
    "grid": grid,
    "dead_groups": dead_groups,
    "on_policy_gap": on_policy_gap,
    "no_effect": no_effect,
}
"""Judged after every step."""

EVALUATION_ALARMS: Mapping[AlarmKind, Rule] = {"hacking": hacking, "grid": grid}
"""Judged after every evaluation."""


@dataclass(frozen=True, slots=True)
class _Change:
    """Means of the older and the newer half of a window, and what lies between in standard deviations."""

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
    """Means of the first and the newest ``window`` values; None while they overlap."""
    values = _values(lines, key)
    return (fmean(values[:window]), fmean(values[-window:])) if len(values) >= 2 * window else None


def _values(lines: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [line[key] for line in lines if isinstance(line.get(key), int | float) and math.isfinite(line[key])]
