"""The prompts of a run's steps, and the settings that change during the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import HeldOutPromptsConfig, PromptsConfig, RunConfig, TaskConfig
from mmgrpo.config.binding import named_in
from mmgrpo.data.samplers import SAMPLERS
from mmgrpo.explain.formulas import formula_of, numbers_text, with_defaults
from mmgrpo.maths.controllers import CONTROLLERS, METRICS
from mmgrpo.maths.schedules import SCHEDULES


def prompt_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Rows on the sources of prompts, and on their sampler if they are not in shuffled order."""
    prompts, evaluation = config.prompts, config.held_out
    held_out = f"; evaluation: {_sources(evaluation.prompts, 'evaluation.prompts')}" if evaluation is not None else ""
    yield "prompts", f"{_sources(prompts, 'prompts')}{held_out}"
    if prompts is not None and prompts.sampler is not None:
        function = named_in("prompts.sampler", SAMPLERS, prompts.sampler.name)
        numbers = numbers_text(with_defaults(function, prompts.sampler.settings))
        yield "", f"{prompts.sampler.name}: {formula_of(function)}{numbers}"


def task_rows(task: TaskConfig | None) -> Iterator[tuple[str, str]]:
    """Rows on the part of a task in its mixed run; none for a single run."""
    if task is None:
        return
    when = f", in the first and then each {task.every}th step of it; steps are those here" if task.every > 1 else ""
    yield "task", f"of a mixed run{when}"
    if task.policy_of is not None:
        yield "", f"trains the policy of {task.policy_of}, in the same updates"
    if task.weight != 1:
        yield "", f"its rows count {task.weight:g} times, relative to the other tasks that train the policy"
    if task.after is not None:
        compared = "one sample" if task.compare == "sample" else "all samples of a prompt"
        yield "", f"its prompts contain the samples of {task.after}; a group has the samples generated after {compared}"


def schedule_rows(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """Rows on schedules with their values."""
    config = algorithm.config
    for key, named in config.schedules.items():
        function = named_in(f"schedules.{key}", {**SCHEDULES, **CONTROLLERS}, named.name)
        schedule = algorithm.schedules.by_key[key]
        if schedule.metric is not None:
            numbers = {"metric": METRICS.get(named.name), **named.settings}
            yield "schedule", f"{key}, {named.name}: {formula_of(function)}{numbers_text(numbers)}"
            continue
        first, last = (_value(schedule.function(step)) for step in (0, max(config.steps - 1, 0)))
        ends = f"from {first} at the first step to {last} at the last"
        yield "schedule", f"{key}, {named.name}: {formula_of(function)}{numbers_text(named.settings)}; {ends}"


def moving_reference_rows(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """Rows on the updates of the reference, and on the hooks around each optimizer step."""
    config = algorithm.config
    if moving := [key for key in algorithm.schedules.keys if key.endswith(".kl.beta")]:
        yield "", f"{' and '.join(sorted(moving))} moves: a pass at the steps at which it is above 0"
    reference = config.update.reference
    if reference is not None and reference.reset_every is not None:
        anew = ", and the optimizer is reset" if reference.reset_optimizer else ""
        yield "", f"becomes the current weights every {reference.reset_every} steps{anew}"
    if reference is not None and reference.ema is not None:
        decay = reference.ema.decay
        yield "", f"follows the weights: {decay:g} reference + {1 - decay:g} now, every {reference.ema.every} steps"
    for named in config.update.hooks:
        yield "hook", f"{named.name}{numbers_text(named.settings)}"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _sources(prompts: PromptsConfig | HeldOutPromptsConfig | None, key: str) -> str:
    if prompts is not None and prompts.source is not None:
        return prompts.source
    if prompts is None or not prompts.sources:
        return f"passed in Python; the configuration names none, and `mmgrpo train` needs {key}.source"
    total_weight = sum(part.weight for part in prompts.sources)
    return " + ".join(f"{part.weight / total_weight:.3g} of {part.logged_name}" for part in prompts.sources)
