"""What a step draws, trains on and costs in forwards, in words and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.numbers import named_in
from mmgrpo.explain.formulas import numbers_text, summary, with_defaults
from mmgrpo.explain.forward_counts import SampleForwards, StepForwards, forwards_per_sample
from mmgrpo.explain.simulated_rounds import MAX_ROUNDS, SimulatedRounds, played
from mmgrpo.maths.second_chances import PLANNERS


def cases_of(algorithm: Algorithm) -> list[SimulatedRounds]:
    """A step as the run's planner may play it; none where every step is the same."""
    return [] if algorithm.config.rollout.planner.name == "fixed" else played(algorithm)


def planner_rows(config: RunConfig, cases: Sequence[SimulatedRounds]) -> Iterator[tuple[str, str]]:
    """What is drawn, read and trained on at a step, where that is not the same at every one."""
    if not cases:
        return
    named = config.rollout.planner
    function = named_in("rollout.planner", PLANNERS, named.name)
    yield "planner", f"{named.name}: {summary(function)}{numbers_text(with_defaults(function, named.numbers))}"
    rounds = _between(case.num_rounds for case in cases)
    said = [
        f"{_between(case.num_drawn for case in cases)} samples drawn a step",
        f"in {rounds} round{'' if rounds == '1' else 's'}",
    ]
    if any(case.num_read for case in cases):
        said.append(f"{_between(case.num_read for case in cases)} read that were there already")
    said.append(f"{_between(case.num_trained for case in cases)} trained on")
    yield "", ", ".join(said)
    if max(case.num_rounds for case in cases) == MAX_ROUNDS:
        yield "", f"it was asked {MAX_ROUNDS} times and no further: see that it asks for nothing some time"


def drawn_in_all(config: RunConfig, cases: Sequence[SimulatedRounds]) -> str:
    """The samples that a run draws; the least and the most where rewards decide."""
    if not cases:
        return f"{config.steps * config.rollout.prompts_per_step * config.rollout.group_size:,}"
    return _between(config.steps * case.num_drawn for case in cases)


def cost_rows(
    algorithm: Algorithm, settings: Mapping[str, Any] | None, cases: Sequence[SimulatedRounds]
) -> Iterator[tuple[str, str]]:
    """What a sample costs in forwards, of a policy whose samples take a known number of decisions, and a step of it."""
    config = algorithm.config
    of_tokens = config.policy is None and config.method is not None and config.method.applies_to == "tokens"
    if of_tokens or (config.policy is not None and (settings is None or "call" not in settings)):
        yield "forwards", "counted by the policy as it runs: count/forwards_per_sample in metrics.jsonl"
        return
    num_steps, num_levels = num_steps_of(settings, "call"), _num_levels(settings)
    if num_steps is None and config.rollout.tree is not None:
        yield "forwards", "the states of a tree are counted once policy.call.num_inference_steps is known"
        return
    if config.rollout.decisions == "read" and num_levels is None:
        yield "forwards", "one a step of the rollout, one a level of what is read; one a level, with grad, in an update"
        return
    counted = forwards_per_sample(algorithm, num_steps, num_levels)
    views = " and ".join(counted.view_names)
    parts = {"rollout": counted.rollout, "values": counted.values, views: counted.views}
    parts = {name: count for name, count in parts.items() if count != StepForwards(0, 0)} | {"update": counted.update}
    text = ", ".join(f"{name} {_count(count, num_steps)}" for name, count in parts.items())
    if num_steps is not None and counted.rollout is not None:
        text += f"; in all {_count(counted.rollout + _trained(counted), num_steps)}"
    elif config.policy is None:
        text += ", for a denoising policy of N steps"
    else:
        text += ", with N = num_inference_steps, the pipeline's default"
    yield "forwards", f"per sample and step: {text}"
    if cases and num_steps is not None and counted.rollout is not None:
        drawing = [_drawing(case, counted, num_steps, num_levels) for case in cases]
        training = [_training(case, counted, num_steps, num_levels) for case in cases]
        least = min(map(sum, zip(drawing, training, strict=True)))  # and at the most all is drawn, and all trained on
        most = max(drawing) + max(training)
        yield "", f"{_between(map(round, (least, most)))} a step, of all samples that its planner asks for"
    yield "", "guidance doubles each if it is on; a pipeline that cannot skip its earlier steps replays those as well"


def num_steps_of(settings: Mapping[str, Any] | None, *calls: str) -> int | None:
    """``num_inference_steps`` as the last of the calls has it; None where it is left to the pipeline."""
    found = [call["num_inference_steps"] for name in calls if "num_inference_steps" in (call := _call(settings, name))]
    return found[-1] if found and isinstance(found[-1], int) else None


def _call(settings: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    return {} if settings is None else settings.get(name, {})


def _num_levels(settings: Mapping[str, Any] | None) -> int | None:
    return None if settings is None else settings.get("reading", {}).get("num_levels")


def _trained(counted: SampleForwards) -> StepForwards:
    return counted.values + counted.views + counted.update


def _drawing(case: SimulatedRounds, counted: SampleForwards, num_steps: int, num_levels: int | None) -> float:
    """Forwards that a step's samples take, each drawn with the steps of its own request, or read at each level."""
    assert counted.rollout is not None
    drawn = sum(num * counted.rollout.at(num_steps_of(one.settings, "call") or num_steps) for one, num in case.drawn)
    return drawn + case.num_read * (num_levels or 0)


def _training(case: SimulatedRounds, counted: SampleForwards, num_steps: int, num_levels: int | None) -> float:
    """Forwards of the passes over what is trained on; one over a sample that was read takes one a level."""
    of_drawn = _trained(counted).at(num_steps)
    passes = of_drawn / counted.update.at(num_steps) if of_drawn else 0.0
    return case.trained_drawn * of_drawn + case.trained_read * (num_levels or 0) * passes


def _count(count: StepForwards | None, num_steps: int | None) -> str:
    if count is None:
        return "fewer than N"
    if num_steps is not None:
        return f"{count.at(num_steps):.1f}"
    if count.per_step == 0:
        return f"{count.constant:.1f}"
    steps = "N" if count.per_step == 1 else f"{count.per_step:g} N"
    sign = "-" if count.constant < 0 else "+"
    return steps if count.constant == 0 else f"{steps} {sign} {abs(count.constant):.1f}"


def _between(numbers: Iterable[int]) -> str:
    """One number, or the least and the most."""
    found: Sequence[int] = sorted(numbers)
    return f"{found[0]:,}" if found[0] == found[-1] else f"at least {found[0]:,} and at most {found[-1]:,}"
