"""Adds rewards of methods to live reward functions, as ``mmgrpo.config.method_rewards`` adds them to configured
ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmgrpo.config import GateConfig, RewardConfig, RunConfig
from mmgrpo.config.method_rewards import VERIFIERS, with_method_rewards
from mmgrpo.config.methods import MethodConfig
from mmgrpo.config.needs import require_needs
from mmgrpo.config.rewards import NO_VERIFIERS, is_verifier
from mmgrpo.errors import ConfigError
from mmgrpo.scoring import NamedReward
from mmgrpo.scoring.required_columns import require_rows
from mmgrpo.training.build import LIVE, build_rewards
from mmgrpo.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRewards:
    """The rewards of a run.

    Attributes:
        named: the rewards.
        configs: the same, as a configuration states them; a live function's name begins with ``live:``.
    """

    named: list[NamedReward]
    configs: tuple[RewardConfig, ...]

    def explained(self, config: RunConfig) -> RunConfig:
        """The configuration as ``explain`` shows it: with live functions to which a method adds rewards."""
        is_added = any(reward.from_method for reward in self.configs)
        return config.model_copy(update={"rewards": self.configs}) if is_added else config


def rewards_of_run(rewards: Sequence[NamedReward], config: RunConfig, prompts: Sequence[Prompt]) -> RunRewards:
    """Live rewards with those that the run's methods add; rewards built from the configuration as they are.

    Args:
        rewards: the argument of the trainer.
        config: the run.
        prompts: its rows.

    Returns:
        The rewards that the run is trained on.

    Raises:
        ConfigError: as ``with_method_rewards``; a live reward and the method's reward of it both have a schedule; or
            the rows, or the run, lack a need of a reward or a method.
    """
    run_rewards = joined_rewards(rewards, config)
    require_rows(run_rewards.named, prompts, "prompts")
    follows = config.task is not None and config.task.after is not None
    require_needs(config, rewards=run_rewards.configs, prompts=None if follows else prompts)
    return run_rewards


def joined_rewards(rewards: Sequence[NamedReward], config: RunConfig) -> RunRewards:
    """As ``rewards_of_run``, without a look at rows and needs."""
    methods = () if config.method is None else (*config.method.over, config.method)
    live = {f"{LIVE}{reward.name}": reward for reward in rewards}
    stated = _with_labels_of(methods, [_config_of(key, reward) for key, reward in live.items()])
    if {reward.name for reward in rewards} == {reward.known_as for reward in config.rewards}:
        return RunRewards(named=list(rewards), configs=config.rewards)
    if not any(method.rewards.substitutes or method.rewards.added for method in methods):
        return RunRewards(named=list(rewards), configs=tuple(stated))
    placed = with_method_rewards(stated, methods)
    return RunRewards(named=[_named(reward, live) for reward in placed], configs=placed)


def _with_labels_of(methods: Sequence[MethodConfig], stated: Sequence[RewardConfig]) -> list[RewardConfig]:
    """Live rewards; one with the label of a method's reward replaces it, except the only verifier of the run."""
    labels = {
        reward.known_as: method.name
        for method in methods
        for reward in (*method.rewards.substitutes, *method.rewards.added)
        if reward.name != VERIFIERS
    }
    verifiers = [reward for reward in stated if is_verifier(reward)]
    others = [reward for reward in verifiers if reward.known_as not in labels]
    verifiers_to_keep = others or verifiers[:1]
    return [
        reward
        if reward in verifiers_to_keep or reward.from_method is not None or reward.known_as not in labels
        else reward.model_copy(update={"from_method": labels[reward.known_as], "verifier": False})
        for reward in stated
    ]


def _config_of(name: str, reward: NamedReward) -> RewardConfig:
    """A live reward as a configuration states it."""
    gate = reward.gate and GateConfig(
        reward=reward.gate.reward, at_least=reward.gate.at_least, otherwise=reward.gate.otherwise
    )
    counting = {"weight": reward.weight, "gate": gate, "clip": reward.clip}
    defaults = {"weight": 1.0, "gate": None, "clip": None}
    stated = {key: value for key, value in counting.items() if value != defaults[key]}
    is_verifier = reward.weight > 0 and reward.name not in NO_VERIFIERS and reward.from_method is None
    settings = {
        "timeout_s": reward.timeout_s,
        "concurrent": reward.concurrent,
        "verifier": is_verifier if reward.verifier is None else reward.verifier,
        "from_method": reward.from_method,
    }
    return RewardConfig(name=name, label=reward.name, **settings, **stated)


def _named(config: RewardConfig, live: Mapping[str, NamedReward]) -> NamedReward:
    functions: dict[str, Callable[..., Any]] = {name: reward.function for name, reward in live.items()}
    (built,) = build_rewards([config], live=functions)
    if config.name in live:
        counting = {"weight": built.weight, "gate": built.gate, "clip": built.clip, "from_method": built.from_method}
        return replace(live[config.name], name=built.name, **counting)
    schedules = [live[value].schedule for value in config.numbers.values() if isinstance(value, str) and value in live]
    if not any(schedules):
        return built
    if built.schedule is not None:
        raise ConfigError(
            f"the weight of {config.known_as} of methods/{config.from_method} has a schedule, and that of the reward "
            "it is computed of another: leave out yours"
        )
    return replace(built, schedule=next(schedule for schedule in schedules if schedule))
