"""The rewards at a step: schedules and phases change their weights, clips and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.schedules import Moved
from mmgrpo.errors import ConfigError
from mmgrpo.scoring import NamedReward, Scorer
from mmgrpo.training.build import build_rewards


@final
class StepRewards:
    """The rewards of a run as they count at a step; without a schedule they are created once.

    Attributes:
        rewards: how each counts.
        scorer: calls them.
    """

    def __init__(self, rewards: Sequence[NamedReward], algorithm: Algorithm) -> None:
        """Takes the rewards as they are at the first step.

        Args:
            rewards: how each counts without any schedule.
            algorithm: of the run.

        Raises:
            ConfigError: a schedule or phase changes the numbers of a reward that does not exist.
        """
        config = algorithm.config
        self._base = list(rewards)
        self._moved = algorithm.moved
        _require_rewards(self._base, algorithm)
        self.rewards = self._base
        self.scorer = Scorer(
            self._base, max_failure_frac=config.runtime.max_reward_failure_frac, cache_mb=config.runtime.reward_cache_mb
        )

    def move(self, algorithm: Algorithm) -> None:
        """Takes the numbers of a step. Raises ConfigError for a value that a reward does not take."""
        before, self._moved = self._moved, algorithm.moved
        if self._moved.rewards != before.rewards:
            self.rewards = [self._reward(number, self._moved, before) for number in range(len(self._base))]
            self.scorer = self.scorer.renewed(self.rewards)

    def _reward(self, number: int, moved: Moved, before: Moved) -> NamedReward:
        """A reward with its numbers at the step; the same object while they stay."""
        base = self._base[number]
        numbers, earlier = moved.rewards.get(base.name, {}), before.rewards.get(base.name, {})
        if numbers == earlier:
            return self.rewards[number]
        counts = {name: value for name, value in numbers.items() if name in ("weight", "clip")}
        settings, settings_before = (
            {name: value for name, value in values.items() if name not in counts} for values in (numbers, earlier)
        )
        if settings and settings != settings_before:
            (configured,) = (reward for reward in moved.config.rewards if reward.known_as == base.name)
            base = replace(base, function=build_rewards([configured])[0].function)
        elif settings:
            base = replace(base, function=self.rewards[number].function)
        return replace(base, **counts)


def _require_rewards(rewards: Sequence[NamedReward], algorithm: Algorithm) -> None:
    names, configured = [reward.name for reward in rewards], [reward.known_as for reward in algorithm.config.rewards]
    for key in (key for key in algorithm.course.keys if key.startswith("rewards.")):
        label, _, number = key.removeprefix("rewards.").rpartition(".")
        if label not in names:
            raise ConfigError(f"{key}: there is no reward '{label}', known are {', '.join(names)}")
        if number not in ("weight", "clip") and label not in configured:
            raise ConfigError(f"{key}: the reward is a live object; of one that rewards: names its numbers can move")
