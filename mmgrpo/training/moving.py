"""What a step is taken with: the objective, the planner and the rewards of the configuration as it is by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

from mmgrpo.config import RunConfig
from mmgrpo.config.binding import advantage_of, build_objective, build_planner
from mmgrpo.config.schedules import Course, Moved
from mmgrpo.errors import ConfigError
from mmgrpo.memory import Memory
from mmgrpo.policy import Policy
from mmgrpo.scoring import NamedReward, Scorer
from mmgrpo.training.build import build_contexts, build_rewards
from mmgrpo.values import REFERENCE


@final
class Moving:
    """The parts of a run that follow its schedules, stages and controllers; without any they are made once.

    Attributes:
        course: what moves the configuration.
        config: the configuration of the step.
        objective: the loss.
        planner: what is drawn.
        contexts: what it may show in place of the prompt, by name.
        rewards: how each counts.
        scorer: asks them.
        settings: of drawing, where they have moved: ``Plan.settings``.
        metrics: the numbers that have moved, as they are logged.
    """

    def __init__(self, config: RunConfig, rewards: Sequence[NamedReward]) -> None:
        """Takes the parts as they are at the first step.

        Args:
            config: the run's.
            rewards: how each counts where nothing moves.

        Raises:
            ConfigError: a part cannot be made, or a reward's numbers are to move and it is not there.
        """
        self._base = list(rewards)
        self.course = Course(config)
        self._require_rewards(config)
        self.rewards = self._base
        self.scorer = Scorer(
            self._base, max_failure_frac=config.max_reward_failure_frac, cache_mb=config.reward_cache_mb
        )
        self._moved = Moved(config, {})
        self._take(self._moved)
        self.move(0, Memory())  # what cannot be is said now

    def move(self, step: int, memory: Memory) -> None:
        """Becomes what it is at a step, counted from 0. Raises ConfigError for a value that cannot be."""
        moved = self.course.at(step, memory)
        if moved.values != self._moved.values:
            self._take(moved)

    def settle_reference(self, policy: Policy) -> None:
        """Has a full fine-tune copy its weights of now if they are first asked for when others are trained."""
        of_views = any(view.weights == REFERENCE for view in self.config.views.values())
        moves = any(key.endswith(".kl_beta") for key in self.course.keys)
        if self.config.reference is not None or moves or of_views:
            with policy.reference():
                pass

    def _take(self, moved: Moved) -> None:
        before, self._moved = self._moved, moved
        self.config = moved.config.model_copy(update={"advantage": advantage_of(moved.config)})
        self.objective = build_objective(self.config.objective)
        self.planner = build_planner(self.config.rollout)
        self.contexts = build_contexts(self.config)
        self.settings: dict[str, Any] = moved.drawing
        self.metrics = moved.metrics
        if moved.rewards != before.rewards:
            self.rewards = [self._reward(number, moved, before) for number in range(len(self._base))]
            self.scorer = self.scorer.renewed(self.rewards)

    def _reward(self, number: int, moved: Moved, before: Moved) -> NamedReward:
        """A reward with its numbers of now; the very same while they stay."""
        base = self._base[number]
        numbers, earlier = moved.rewards.get(base.name, {}), before.rewards.get(base.name, {})
        if numbers == earlier:
            return self.rewards[number]
        counts = {name: value for name, value in numbers.items() if name in ("weight", "clip")}
        own, own_before = ({n: v for n, v in one.items() if n not in counts} for one in (numbers, earlier))
        if own and own != own_before:
            (configured,) = (one for one in moved.config.rewards if one.known_as == base.name)
            base = replace(base, function=build_rewards([configured])[0].function)
        elif own:
            base = replace(base, function=self.rewards[number].function)
        return replace(base, **counts)

    def _require_rewards(self, config: RunConfig) -> None:
        names, configured = [one.name for one in self._base], [one.known_as for one in config.rewards]
        for key in (key for key in self.course.keys if key.startswith("rewards.")):
            label, _, number = key.removeprefix("rewards.").rpartition(".")
            if label not in names:
                raise ConfigError(f"{key}: there is no reward '{label}', known are {', '.join(names)}")
            if number not in ("weight", "clip") and label not in configured:
                raise ConfigError(
                    f"{key}: the reward is a live object; of one that rewards: names its numbers can move"
                )
