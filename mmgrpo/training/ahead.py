"""Sampling one step ahead: an engine generates the samples of a step during the updates of the step before.

The samples are of the weights before these updates. They are trained on with the objective of decoupled PPO: the ratio
is that to the weights at the beginning of the step, by which the trainer scores the samples, and each decision has the
importance weight of these over the weights that sampled it (``sampler_weight_truncated``, ``sampler_weight_within``).

Source: Hilton et al., arXiv:2110.00641, decoupled PPO-clip; AReaL, arXiv:2505.24298, for text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mmgrpo.algorithm import Algorithm
from mmgrpo.errors import ConfigError
from mmgrpo.memory import Memory
from mmgrpo.policy import SupportsEngine
from mmgrpo.training.build import plan_at
from mmgrpo.training.components import Components
from mmgrpo.training.rollout_rounds import request_rollouts_ahead
from mmgrpo.values import SAMPLER_LOGPROB

KEY = "rollout.engine.steps_ahead"
SAMPLING_SECTIONS = ("policy.", "prompts.", "rollout.")
"""Sections with settings of the samples."""

Completions = Mapping[str, Any]
"""Completions by request, as ``Plan.ahead`` has them."""


def require_ahead(algorithm: Algorithm, *, is_task: bool) -> None:
    """Checks that the samples of a step can be requested before the update of the step before.

    Args:
        algorithm: of the run.
        is_task: whether the run is a task of a mixed run.

    Raises:
        ConfigError: the samples depend on that update, or no importance weight corrects for the older weights.
    """
    if not algorithm.steps_ahead:
        return
    strategy, sampler, config = algorithm.strategy, algorithm.prompt_sampler, algorithm.config
    schedules = [
        key
        for key, schedule in algorithm.schedules.by_key.items()
        if schedule.metric is not None and key.startswith(SAMPLING_SECTIONS)
    ]
    reasons = {
        "a run of several tasks samples them one after another": is_task,
        "rollout.environment answers the turns of a sample": config.rollout.environment is not None,
        f"the strategy {config.rollout.strategy.name} requests samples by earlier rewards, memory or weights": (
            strategy.looks_back
            or strategy.off_policy
            or strategy.looks_ahead
            or strategy.window is not None
            or bool(strategy.replay or strategy.memory or strategy.weights or strategy.forgetting)
        ),
        "prompts.sampler chooses prompts by earlier rewards": sampler is not None
        and bool(sampler.columns or sampler.learn),
        f"schedules of {', '.join(schedules)} follow metrics": bool(schedules),
    }
    for reason, applies in reasons.items():
        if applies:
            raise ConfigError(f"{KEY}: samples are requested before the last update, and {reason}: set it to 0")
    if not any(SAMPLER_LOGPROB in part.values for _, part in algorithm.advantages.named()):
        raise ConfigError(
            f"{KEY}: samples are of the weights before the last update, and no importance weight corrects for it: add "
            "methods/tis, methods/mis or methods/icepop to include, or set it to 0"
        )


def sample_ahead(components: Components, step: int, memory: Memory) -> Callable[[], Completions]:
    """Requests the samples of a step, which the engine generates with the current weights meanwhile.

    Args:
        components: of the run.
        step: counted from 0.
        memory: before the update that comes before the step.

    Returns:
        A function that waits for the completions of all processes. A collective; it raises EngineError if the server
        fails.
    """
    policy, job = components.policy, components.job
    assert isinstance(policy, SupportsEngine)
    algorithm, prompts = components.algorithm.at(step, memory), components.stream.at_step(step, memory)
    pending = request_rollouts_ahead(
        policy,
        algorithm.strategy,
        prompts.prompt,
        setting=algorithm.step_setting(step, memory, prompts.key),
        plan=plan_at(algorithm, components.policy, step),
        job=job,
        prompt_templates=algorithm.prompt_templates,
    )

    def collect() -> Completions:
        of_processes = job.run_on_all(lambda: [wait() for wait in pending])
        return {key: completions for parts in of_processes for part in parts for key, completions in part.items()}

    return collect
