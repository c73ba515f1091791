"""Settings without effect: of mechanisms that begin after the last step, and those that need a missing one."""

from __future__ import annotations

from collections.abc import Iterator

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.schedules import configured_value, steps_of_change
from mmgrpo.explain.unmet_needs import unmet_needs


def idle_mechanisms(algorithm: Algorithm) -> tuple[str, ...]:
    """Every setting that changes nothing before the last step of a run, a sentence each with its fix.

    Args:
        algorithm: of the run.

    Returns:
        Sentences, in the order of the configuration.
    """
    return tuple(_idle(algorithm)) if algorithm.config.steps else ()


def _idle(algorithm: Algorithm) -> Iterator[str]:
    config = algorithm.config
    starts = [("rollout.strategy", algorithm.strategy.start)]
    estimators = zip(config.advantage.estimators, algorithm.advantages.estimators, strict=True)
    starts += [(f"advantage.estimators.{named.name}", estimator.start) for named, estimator in estimators]
    for key, start in starts:
        if start >= config.steps and not any(moving.startswith(f"{key}.") for moving in config.schedules):
            yield _sentence(config, f"{key} starts at step {start}, from 0", "a lower start")
    yield from _idle_schedules(algorithm)
    yield from _idle_sections(config)
    yield from unmet_needs(algorithm)


def _idle_schedules(algorithm: Algorithm) -> Iterator[str]:
    """Schedules whose value is the configured one at every step of the run."""
    config = algorithm.config
    for key, schedule in algorithm.schedules.by_key.items():
        configured = configured_value(config, key)
        if schedule.metric is None and all(schedule.function(step) == configured for step in range(config.steps)):
            yield _sentence(
                config, f"schedules.{key}: the value is {configured} at every step", "a schedule that begins sooner"
            )
        elif late := [step for step in steps_of_change(config.schedules[key]) if step >= config.steps]:
            yield _sentence(config, f"schedules.{key}: it changes at step {late[0]}", "a lower step")
    for reward in config.rewards:
        if reward.schedule is None or reward.schedule.name == "constant":
            continue
        factor = algorithm.reward_schedules[reward.logged_name]
        if all(factor(step) == 1 for step in range(config.steps)):
            key = f"rewards ({reward.logged_name}).schedule"
            yield _sentence(config, f"{key}: the factor is 1 at every step", "a schedule that begins sooner")


def _idle_sections(config: RunConfig) -> Iterator[str]:
    reference, critic, update = config.update.reference, config.advantage.critic, config.update
    if reference is not None:
        every = min((n for n in (reference.reset_every, reference.ema and reference.ema.every) if n), default=0)
        if every >= config.steps:
            yield _sentence(config, f"update.reference: it first moves after step {every}", "a lower reset_every")
    if critic is not None and critic.warmup_steps >= config.steps:
        yield _sentence(
            config,
            f"advantage.critic.warmup_steps: the policy does not train before step {critic.warmup_steps}",
            "a lower number",
        )
    num_updates = config.steps * update.epochs * update.minibatches
    for hook in update.hooks:
        first_round = hook.settings.get("inner", 0)
        if isinstance(first_round, int) and first_round > num_updates:
            text = (
                f"update.hooks: {hook.name} first acts after {first_round} updates, of which the run has {num_updates}"
            )
            yield _sentence(config, text, "a lower inner")


def _sentence(config: RunConfig, text: str, fix: str) -> str:
    return f"no effect in {config.steps} steps: {text}; set {fix}, more steps, or leave it out"
