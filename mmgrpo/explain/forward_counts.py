"""The cost of a sample of a denoising policy, in forwards of the model, computed from the configuration.

N = denoising steps of a sample, ``num_inference_steps``; unknown if the default of the pipeline is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any, final

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import Named, RunConfig
from mmgrpo.errors import ConfigError
from mmgrpo.explain.simulated_rounds import simulate_rounds
from mmgrpo.explain.view_passes import frozen_views
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.windows import shortened, subset_size
from mmgrpo.policy import SupportsWindows
from mmgrpo.splits import Branching
from mmgrpo.values import OF_TWO_DISTRIBUTIONS, OLD, Value, from_reference

MAX_WINDOWS = 1000  # steps of a run whose windows are evaluated


@dataclass(frozen=True, slots=True)
class StepForwards:
    """A number of forwards per sample as a function of N: per_step * N + constant.

    Attributes:
        per_step: factor of N.
        constant: constant part.
    """

    per_step: float
    constant: float

    def __add__(self, other: StepForwards) -> StepForwards:
        return StepForwards(self.per_step + other.per_step, self.constant + other.constant)

    def times(self, factor: float) -> StepForwards:
        """The number of forwards of ``factor`` passes."""
        return StepForwards(self.per_step * factor, self.constant * factor + 0.0)

    def at(self, num_steps: int) -> float:
        """The number of forwards for N = ``num_steps``."""
        return self.per_step * num_steps + self.constant


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleForwards:
    """Forwards per sample and step of the run, in rows of one sample, without guidance, which doubles each.

    Attributes:
        rollout: to generate the sample; None if it depends on both N and the positions of the windows.
        values: without grad, for the values that coupled objectives, selections, estimators, filters and a divergence
            in the reward read.
        views: of other weights: the frozen reference, and other named weights.
        update: with grad, each followed by a backward.
        view_names: names of the views.
        weight_sets: all of the updates of further weights, those with grad among them.
    """

    rollout: StepForwards | None
    values: StepForwards
    views: StepForwards
    update: StepForwards
    view_names: tuple[str, ...] = ()
    weight_sets: StepForwards = StepForwards(0, 0)


def forwards_per_sample(algorithm: Algorithm, num_steps: int | None, num_levels: int | None = None) -> SampleForwards:
    """The forwards of a sample at a step of the run, on average over the run's windows.

    rollout = N, less (f + 1) (1 - 1 / G) if the group shares its noise: the steps up to the first stochastic one, f,
    run once for its G members. A pass over the sample costs one forward per trained step; with shared noise the first
    of them costs 1 / G. In a tree a step costs 1 / w, w the leaves of a branch before it. With
    ``rollout.training_states: renoised``, rollout = N + K for K levels of noise, or K of a strategy that generates
    nothing, and a pass costs K.
    ``policy.fast_remainder`` reduces the steps of the rollout. What ``policy.cache`` skips depends on the samples and
    is not subtracted; a run logs it.

    Args:
        algorithm: the algorithm of the run.
        num_steps: N, or None if it is unknown.
        num_levels: K, for ``rollout.training_states: renoised``.

    Returns:
        The counts over all updates of a rollout.

    Raises:
        ConfigError: the window or the tree does not fit the schedule, N or K is needed and unknown, or the objective
            is not valid.
    """
    config, objective = algorithm.config, algorithm.objective
    update, rollout = config.update, config.rollout
    if rollout.training_states == "renoised":
        if num_levels is None:
            raise ConfigError("rollout.training_states: renoised needs the number of noise levels: set policy.reading")
        sampling, per_pass = StepForwards(float(_generates(algorithm)), num_levels), StepForwards(0, num_levels)
    elif rollout.tree is not None:
        sampling, per_pass = _tree(algorithm, num_steps)
    else:
        saved = 1 - 1 / rollout.group_size if rollout.same_initial_noise else 0.0
        per_pass = _trained_steps(rollout.window, num_steps) + StepForwards(0, -saved)
        first, spared = _mean_first(algorithm, num_steps), _mean_spared(algorithm, num_steps)
        shared = 0.0 if not saved else None if first is None else (first + 1) * saved
        sampling = None if shared is None or spared is None else StepForwards(1, -shared - spared)
    passes = float(update.epochs)
    values = 0.0
    if objective.needs_values:
        first_minibatch = ceil(rollout.prompts_per_step / update.minibatches) / rollout.prompts_per_step
        values = passes - first_minibatch if objective.rollout_knows_values else passes
    frozen = _views_evaluated_alone(objective) & frozen_views(config)
    in_loss = sorted((objective.views - {OLD} - frozen) | objective.views_with_logits)
    per_view = passes + (0.0 if objective.separable else values)
    credit_views = [sorted({value.view for value in part if value.view} - {OLD}) for part in _credit_passes(algorithm)]
    num_credit_passes = sum(
        any(value.view not in config.objective.views for value in part) for part in _credit_passes(algorithm)
    )
    in_credit = {name for names in credit_views for name in names}
    return SampleForwards(
        rollout=sampling,
        values=per_pass.times(values + num_credit_passes),
        views=per_pass.times(per_view * len(in_loss) + len(frozen - in_credit) + sum(map(len, credit_views))),
        update=per_pass.times(passes),
        view_names=tuple(sorted({*in_loss, *frozen, *in_credit})),
        weight_sets=per_pass.times(_weight_set_passes(algorithm)),
    )


def _weight_set_passes(algorithm: Algorithm) -> float:
    """Passes of the updates of weight sets: renoised rows are read first, and values that couple decisions precede."""
    renoised = algorithm.config.rollout.training_states == "renoised"
    passes = 0.0
    for name, section in algorithm.config.update.weight_sets.items():
        objective = algorithm.weight_sets[name].objective
        per_update = (1 + len(objective.views - {OLD})) * (2 if objective.needs_values else 1)
        passes += section.updates * (renoised + per_update)
    return passes


def _generates(algorithm: Algorithm) -> bool:
    """Whether any step of the strategy generates samples."""
    named = algorithm.config.rollout.strategy.name
    return named == "fixed" or any(case.num_sampled for case in simulate_rounds(algorithm))


def _views_evaluated_alone(objective: Objective) -> frozenset[str]:
    """The views whose values do not need the policy's own distribution."""
    return frozenset(
        value.view for value in objective.values if value.view is not None and value.name not in OF_TWO_DISTRIBUTIONS
    )


def _credit_passes(algorithm: Algorithm) -> list[frozenset[Value]]:
    """The values that rewards and credit read under the behavior policy; each set takes a pass."""
    credit = algorithm.config.advantage
    reward_values = {from_reference(credit.kl.divergence)} if credit.kl.divergence is not None else set()
    in_chain = algorithm.advantages.values - reward_values
    return [frozenset(part) for part in (reward_values, in_chain) if part]


def _num_windows(config: RunConfig) -> int:
    return min(max(config.steps, 1), MAX_WINDOWS)


@final
class _Schedule(SupportsWindows):
    """A policy with a number of stochastic steps, which is all that windows need."""

    def __init__(self, num_decisions: int) -> None:
        self._num_decisions = num_decisions

    @property
    def num_decisions(self) -> int:
        return self._num_decisions


def _tree(algorithm: Algorithm, num_steps: int | None) -> tuple[StepForwards, StepForwards]:
    """Forwards to generate a tree, and of a pass over its trained steps, on average over the run's windows."""
    if num_steps is None:
        raise ConfigError("the cost of a tree needs the number of steps: set policy.call.num_inference_steps")
    schedule = _Schedule(num_steps - 1)
    branching = Branching.of(algorithm.splits(schedule))
    cost_T = [1 / branching.width(step - 1) for step in range(num_steps)]
    windows = [algorithm.window_at(schedule, step) for step in range(_num_windows(algorithm.config))]
    trained = fmean(sum(cost_T[t] for t in (range(num_steps - 1) if w is None else w)) for w in windows)
    return StepForwards(0, sum(cost_T)), StepForwards(0, trained)


def _trained_steps(window: Named | None, num_steps: int | None) -> StepForwards:
    if window is None or window.name == "all":
        return StepForwards(1, -1)  # every step but the last, which is never stochastic
    numbers: dict[str, Any] = window.settings
    size, low, high = numbers["size"], numbers.get("low", 0), numbers.get("high")
    if size >= 1:
        return StepForwards(0, size)
    if high is None:
        if num_steps is None:
            return StepForwards(size, -size * (1 + low))
        high = num_steps - 1
    return StepForwards(0, subset_size(size, high - low))


def _mean_first(algorithm: Algorithm, num_steps: int | None) -> float | None:
    """Mean over the run of the windows' first steps; None if they depend on an unknown N.

    Raises ConfigError if a window does not fit the schedule.
    """
    window = algorithm.config.rollout.window
    if window is None or window.name == "all":
        return 0.0
    numbers = window.settings
    end = numbers["start"] + numbers["size"] if window.name == "fixed" else numbers.get("high")
    if num_steps is not None:
        end = num_steps - 1
    if end is None:
        return None
    schedule = _Schedule(end)
    chosen = (algorithm.window_at(schedule, step) for step in range(_num_windows(algorithm.config)))
    return fmean(steps[0] for steps in chosen if steps)


def _mean_spared(algorithm: Algorithm, num_steps: int | None) -> float | None:
    """Mean over the run of the steps that ``policy.fast_remainder`` saves; None if they depend on an unknown N."""
    config = algorithm.config
    fast_remainder = config.policy.settings.get("fast_remainder") if config.policy else None
    if fast_remainder is None:
        return 0.0
    if num_steps is None:
        return None
    schedule = _Schedule(num_steps - 1)
    windows = [algorithm.window_at(schedule, step) for step in range(_num_windows(algorithm.config))]
    return fmean(num_steps - len(shortened(num_steps, w[-1], fast_remainder["frac"])) if w else 0 for w in windows)
