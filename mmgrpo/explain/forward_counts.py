"""What a sample of a denoising policy costs, in forwards of the model, told from the configuration alone.

N = denoising steps of a sample, ``num_inference_steps``; not known where the pipeline's default is left in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any, final

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import Named, RunConfig
from mmgrpo.errors import ConfigError
from mmgrpo.explain.view_passes import still_views
from mmgrpo.maths.windows import shortened, subset_size
from mmgrpo.policy import SupportsWindows
from mmgrpo.splits import Branching
from mmgrpo.values import OLD, Value, from_reference

MAX_WINDOWS = 1000  # steps of a run whose windows are looked at


@dataclass(frozen=True, slots=True)
class StepForwards:
    """A number of forwards per sample that may still depend on N: per_step * N + constant.

    Attributes:
        per_step: factor of N.
        constant: what does not depend on N.
    """

    per_step: float
    constant: float

    def __add__(self, other: StepForwards) -> StepForwards:
        return StepForwards(self.per_step + other.per_step, self.constant + other.constant)

    def times(self, factor: float) -> StepForwards:
        """The same for ``factor`` passes."""
        return StepForwards(self.per_step * factor, self.constant * factor + 0.0)

    def at(self, num_steps: int) -> float:
        """The number, once N is known."""
        return self.per_step * num_steps + self.constant


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleForwards:
    """Forwards per sample and step of the run, in rows of one sample, without guidance, which doubles each.

    Attributes:
        rollout: to draw the sample; None where it depends on both N and where the windows lie.
        values: without grad, for the values that a coupled objective is differentiated at, that selections look at,
            and that estimators, filters and a divergence in the reward read.
        views: of other weights: the frozen reference, and whatever else is kept under a name.
        update: with grad, each followed by its backward.
        view_names: whose the forwards of views are.
    """

    rollout: StepForwards | None
    values: StepForwards
    views: StepForwards
    update: StepForwards
    view_names: tuple[str, ...] = ()


def forwards_per_sample(algorithm: Algorithm, num_steps: int | None, num_levels: int | None = None) -> SampleForwards:
    """Counts what a sample costs at a step of the run, on average over the run's windows.

    rollout = N, less (f + 1) (1 - 1 / G) where the group shares its noise: the steps up to the first stochastic one,
    f, run once for its G members. A pass over the sample costs one forward per trained step; with shared noise the
    first of them costs 1 / G. In a tree a step costs 1 / w, w the leaves of a branch before it. Where samples are read
    (``rollout.decisions: read``), rollout = N + K for K levels of noise, and a pass costs K. With
    ``policy.fast_remainder`` the steps of the rollout are as few as it makes them.

    Args:
        algorithm: of the run.
        num_steps: N, if it is known.
        num_levels: K, where samples are read.

    Returns:
        The counts, over all updates that a rollout is used for.

    Raises:
        ConfigError: the window or the tree does not fit the schedule, a tree is counted without N, samples that are
            read without K, or the objective is not one.
    """
    config, objective = algorithm.config, algorithm.objective
    update, rollout = config.update, config.rollout
    if rollout.decisions == "read":
        if num_levels is None:
            raise ConfigError("samples that are read are counted for a known number of levels: policy.reading")
        drawing, one_pass = StepForwards(1, num_levels), StepForwards(0, num_levels)
    elif rollout.tree is not None:
        drawing, one_pass = _tree(algorithm, num_steps)
    else:
        saved = 1 - 1 / rollout.group_size if rollout.same_initial_noise else 0.0
        one_pass = _trained_steps(rollout.window, num_steps) + StepForwards(0, -saved)
        first, spared = _mean_first(algorithm, num_steps), _mean_spared(algorithm, num_steps)
        shared = 0.0 if not saved else None if first is None else (first + 1) * saved
        drawing = None if shared is None or spared is None else StepForwards(1, -shared - spared)
    passes = float(update.epochs)
    values = 0.0
    if objective.needs_values:
        first_minibatch = ceil(rollout.prompts_per_step / update.minibatches) / rollout.prompts_per_step
        values = passes - first_minibatch if objective.rollout_knows_values else passes
    still = objective.views & still_views(config)
    in_loss = sorted(objective.views - {OLD} - still)
    beside = passes + (0.0 if objective.separable else values)
    of_credit = [sorted({value.view for value in part if value.view} - {OLD}) for part in _credit_passes(algorithm)]
    own = sum(any(value.view not in config.views for value in part) for part in _credit_passes(algorithm))
    in_credit = {name for names in of_credit for name in names}
    return SampleForwards(
        rollout=drawing,
        values=one_pass.times(values + own),
        views=one_pass.times(beside * len(in_loss) + len(still - in_credit) + sum(map(len, of_credit))),
        update=one_pass.times(passes),
        view_names=tuple(sorted({*in_loss, *still, *in_credit})),
    )


def _credit_passes(algorithm: Algorithm) -> list[frozenset[Value]]:
    """What is measured of the decisions at the weights that sampled, a pass each: for the rewards, and for credit."""
    credit = algorithm.config.advantage
    in_reward = {from_reference(credit.divergence)} if credit.divergence is not None else set()
    in_chain = algorithm.advantages.values - in_reward
    return [frozenset(part) for part in (in_reward, in_chain) if part]


def _num_windows(config: RunConfig) -> int:
    return min(max(config.steps, 1), MAX_WINDOWS)


@final
class _Schedule(SupportsWindows):
    """So many steps that can be stochastic; all that a window asks of a policy."""

    def __init__(self, num_decisions: int) -> None:
        self._num_decisions = num_decisions

    @property
    def num_decisions(self) -> int:
        return self._num_decisions


def _tree(algorithm: Algorithm, num_steps: int | None) -> tuple[StepForwards, StepForwards]:
    """What a tree takes to draw, and a pass over its trained steps, on average over the run's windows."""
    if num_steps is None:
        raise ConfigError("the states of a tree are counted for a known number of steps: set num_inference_steps")
    schedule = _Schedule(num_steps - 1)
    branching = Branching.of(algorithm.splits(schedule))
    cost_T = [1 / branching.width(step - 1) for step in range(num_steps)]
    windows = [algorithm.window_at(schedule, step) for step in range(_num_windows(algorithm.config))]
    trained = fmean(sum(cost_T[t] for t in (range(num_steps - 1) if w is None else w)) for w in windows)
    return StepForwards(0, sum(cost_T)), StepForwards(0, trained)


def _trained_steps(window: Named | None, num_steps: int | None) -> StepForwards:
    if window is None or window.name == "all":
        return StepForwards(1, -1)  # every step but the last, which is never stochastic
    numbers: dict[str, Any] = window.numbers
    size, low, high = numbers["size"], numbers.get("low", 0), numbers.get("high")
    if size >= 1:
        return StepForwards(0, size)
    if high is None:
        if num_steps is None:
            return StepForwards(size, -size * (1 + low))
        high = num_steps - 1
    return StepForwards(0, subset_size(size, high - low))


def _mean_first(algorithm: Algorithm, num_steps: int | None) -> float | None:
    """Mean over the run of the windows' first steps; None if they depend on an N that is not known.

    Raises ConfigError if a window does not fit the schedule.
    """
    window = algorithm.config.rollout.window
    if window is None or window.name == "all":
        return 0.0
    numbers = window.numbers
    end = numbers["start"] + numbers["size"] if window.name == "fixed" else numbers.get("high")
    if num_steps is not None:
        end = num_steps - 1
    if end is None:
        return None
    schedule = _Schedule(end)
    chosen = (algorithm.window_at(schedule, step) for step in range(_num_windows(algorithm.config)))
    return fmean(steps[0] for steps in chosen if steps)


def _mean_spared(algorithm: Algorithm, num_steps: int | None) -> float | None:
    """Mean over the run of the steps that ``policy.fast_remainder`` spares; None if they depend on an unknown N."""
    config = algorithm.config
    fast_remainder = config.policy.numbers.get("fast_remainder") if config.policy else None
    if fast_remainder is None:
        return 0.0
    if num_steps is None:
        return None
    schedule = _Schedule(num_steps - 1)
    windows = [algorithm.window_at(schedule, step) for step in range(_num_windows(algorithm.config))]
    return fmean(num_steps - len(shortened(num_steps, w[-1], fast_remainder["frac"])) if w else 0 for w in windows)
