"""The samples of a step, and its cost in forwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.binding import named_in
from mmgrpo.explain.formulas import numbers_text, summary, with_defaults
from mmgrpo.explain.forward_counts import SampleForwards, StepForwards, forwards_per_sample
from mmgrpo.explain.simulated_rounds import MAX_ROUNDS, SimulatedRounds, simulate_rounds
from mmgrpo.maths.strategies import STRATEGIES
from mmgrpo.memory import Memory


def simulated_cases(algorithm: Algorithm) -> list[SimulatedRounds]:
    """Simulated steps of the run's strategy; empty if every step is the same."""
    return [] if algorithm.config.rollout.strategy.name == "fixed" else simulate_rounds(algorithm)


def strategy_rows(config: RunConfig, cases: Sequence[SimulatedRounds]) -> Iterator[tuple[str, str]]:
    """Rows on the samples that a step generates, scores and trains on, if steps differ."""
    if not cases:
        return
    named = config.rollout.strategy
    function = named_in("rollout.strategy", STRATEGIES, named.name)
    yield "strategy", f"{named.name}: {summary(function)}{numbers_text(with_defaults(function, named.settings))}"
    rounds = _range_text(case.num_rounds for case in cases)
    counts = [
        f"{_range_text(case.num_sampled for case in cases)} samples generated a step",
        f"in {rounds} round{'' if rounds == '1' else 's'}",
    ]
    if any(case.num_supplied for case in cases):
        counts.append(f"{_range_text(case.num_supplied for case in cases)} scored that exist already")
    counts.append(f"{_range_text(case.num_trained for case in cases)} trained on")
    yield "", ", ".join(counts)
    if max(case.num_rounds for case in cases) == MAX_ROUNDS:
        yield "", f"stopped after {MAX_ROUNDS} rounds: the strategy must return no requests at some time"


def total_samples(algorithm: Algorithm, cases: Sequence[SimulatedRounds]) -> str:
    """The number of samples of a run; a range if it depends on rewards. A size that follows a metric stays as it is."""
    config, schedules = algorithm.config, algorithm.schedules
    if cases:
        return _range_text(config.steps * case.num_sampled for case in cases)
    moving = not schedules.keys.isdisjoint(("rollout.prompts_per_step", "rollout.group_size"))
    numbers = range(config.steps) if moving else range(1)
    rollouts = [schedules.at(step, Memory()).config.rollout for step in numbers]
    total = sum(rollout.prompts_per_step * rollout.group_size for rollout in rollouts)
    return f"{total if moving else config.steps * total:,}"


def cost_rows(
    algorithm: Algorithm, settings: Mapping[str, Any] | None, cases: Sequence[SimulatedRounds]
) -> Iterator[tuple[str, str]]:
    """Rows on the forwards of a sample and a step, for a policy with a fixed number of decisions per sample."""
    config = algorithm.config
    of_tokens = config.policy is None and config.about.method is not None and config.about.method.applies_to == "tokens"
    if of_tokens or (config.policy is not None and (settings is None or "call" not in settings)):
        yield "forwards", "counted by the policy as it runs: count/forwards_per_sample in metrics.jsonl"
        return
    num_steps = num_steps_of(settings, "call")
    num_levels = num_levels_of(settings, num_steps)
    if num_steps is None and config.rollout.tree is not None:
        yield "forwards", "the states of a tree are counted once policy.call.num_inference_steps is known"
        return
    if config.rollout.training_states == "renoised" and num_levels is None:
        yield (
            "forwards",
            "one a step of the rollout, one a noise level of evaluated states; one a level, with grad, in an update",
        )
        return
    counted = forwards_per_sample(algorithm, num_steps, num_levels)
    views = " and ".join(counted.view_names)
    parts = {"rollout": counted.rollout, "values": counted.values, views: counted.views}
    parts |= {"weight sets": counted.weight_sets}
    parts = {name: count for name, count in parts.items() if count != StepForwards(0, 0)} | {"update": counted.update}
    text = ", ".join(f"{name} {_count_text(count, num_steps)}" for name, count in parts.items())
    if num_steps is not None and counted.rollout is not None:
        text += f"; in all {_count_text(counted.rollout + _trained_forwards(counted), num_steps)}"
    elif config.policy is None:
        text += ", for a denoising policy of N steps"
    else:
        text += ", with N = num_inference_steps, the pipeline's default"
    yield "forwards", f"per sample and step: {text}"
    if cases and num_steps is not None and counted.rollout is not None:
        sampling = [_sampling_cost(case, counted, num_steps, num_levels) for case in cases]
        training = [_training_cost(case, counted, num_steps, num_levels) for case in cases]
        least = min(map(sum, zip(sampling, training, strict=True)))
        most = max(sampling) + max(training)  # all samples are generated and trained on
        yield "", f"{_range_text(map(round, (least, most)))} a step, for all samples of its strategy"
    yield "", "guidance doubles each if it is on; a pipeline that cannot skip its earlier steps replays those as well"


def num_steps_of(settings: Mapping[str, Any] | None, *calls: str) -> int | None:
    """``num_inference_steps`` of the last call that sets it; None if the default of the pipeline is used."""
    values = [call["num_inference_steps"] for name in calls if "num_inference_steps" in (call := _call(settings, name))]
    return values[-1] if values and isinstance(values[-1], int) else None


def _call(settings: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    return {} if settings is None else settings.get(name, {})


def num_levels_of(settings: Mapping[str, Any] | None, num_steps: int | None) -> int | None:
    """The number of renoised decisions of a sample: one per noise level, or per step of the sampler; None: unknown."""
    reading: Mapping[str, Any] = {} if settings is None else settings.get("reading", {})
    return reading.get("num_levels") if reading.get("states", "sample") == "sample" else num_steps


def _trained_forwards(counted: SampleForwards) -> StepForwards:
    return counted.values + counted.views + counted.update + counted.weight_sets


def _sampling_cost(case: SimulatedRounds, counted: SampleForwards, num_steps: int, num_levels: int | None) -> float:
    """Forwards of a step's samples: the steps of their request, or one per noise level for supplied samples."""
    assert counted.rollout is not None
    sampled = sum(
        num * counted.rollout.at(num_steps_of(request.settings, "call") or num_steps) for request, num in case.sampled
    )
    return sampled + case.num_supplied * (num_levels or 0)


def _training_cost(case: SimulatedRounds, counted: SampleForwards, num_steps: int, num_levels: int | None) -> float:
    """Forwards of the passes over trained samples; a supplied sample takes one forward per noise level and pass."""
    per_sample = _trained_forwards(counted).at(num_steps)
    passes = per_sample / counted.update.at(num_steps) if per_sample else 0.0
    return case.trained_sampled * per_sample + case.trained_supplied * (num_levels or 0) * passes


def _count_text(count: StepForwards | None, num_steps: int | None) -> str:
    if count is None:
        return "fewer than N"
    if num_steps is not None:
        return f"{count.at(num_steps):.1f}"
    if count.per_step == 0:
        return f"{count.constant:.1f}"
    steps = "N" if count.per_step == 1 else f"{count.per_step:g} N"
    sign = "-" if count.constant < 0 else "+"
    return steps if count.constant == 0 else f"{steps} {sign} {abs(count.constant):.1f}"


def _range_text(numbers: Iterable[int]) -> str:
    """A number, or a range."""
    ordered: Sequence[int] = sorted(numbers)
    return f"{ordered[0]:,}" if ordered[0] == ordered[-1] else f"at least {ordered[0]:,} and at most {ordered[-1]:,}"
