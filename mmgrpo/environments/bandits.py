"""Bandits with several arms, whose pulls are rewarded by their payoff, their regret or an oracle."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, final, get_args

from mmgrpo.environment import Environment, Turn
from mmgrpo.environments.seeds import seed_of
from mmgrpo.environments.unused_settings import require_unset
from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt

Family = Literal["bernoulli", "gaussian"]
BanditReward = Literal["payoff", "regret", "ucb"]

MAX_ARMS = 100


@final
class BanditEnvironment(Environment):
    """A bandit with numbered arms, of which each turn of the policy pulls one.

    The integer in the column ``seed`` of a row determines the mean payoffs, uniform in [0, 1], and the payoff of every
    pull: the members of a group have the same bandit, and the k-th pull of an arm pays all of them the same. The last
    number from 1 to ``arms`` in a turn is its arm; a turn without one pulls none. The reward of a pull is

    - ``payoff``: the payoff,
    - ``regret``: minus the regret, (mean payoff of the arm) - (the best mean), from -1 to 0,
    - ``ucb``: 1 if the arm has the highest upper confidence bound, mean + sqrt(2 ln t / n) of its n observed payoffs
      after t pulls, or is an arm without a pull while there are some; else 0.

    Source: the rewards of Chen et al. 2025, arXiv:2509.24923, abstract: a regret-shaped one, which has less variance
    than payoffs, and agreement with a UCB oracle; the bound is UCB1's (Auer et al. 2002). Deviation: the paper's scales
    and its oracle's constants were not read.
    """

    def __init__(
        self,
        arms: int = 5,
        pulls: int = 10,
        family: Family = "bernoulli",
        reward: BanditReward = "regret",
        deviation: float | None = None,
        invalid: float = -1.0,
    ) -> None:
        """Checks the settings.

        Args:
            arms: number of arms, 2 to 100.
            pulls: number of turns, after which the conversation ends.
            family: distribution of the payoffs: 0 or 1, or normal.
            reward: reward of a pull: payoff, regret or ucb.
            deviation: standard deviation of normal payoffs; None: 1.
            invalid: reward of a turn without an arm.

        Raises:
            ConfigError: a setting is not allowed.
        """
        if family == "bernoulli":
            require_unset("bandit", "set family: gaussian, or remove it", deviation=deviation)
        self._deviation = 1.0 if deviation is None else deviation
        if not 2 <= arms <= MAX_ARMS or pulls < 1 or not 0 < self._deviation < math.inf:
            raise ConfigError(
                f"bandit needs 2 to {MAX_ARMS} arms, pulls >= 1 and deviation > 0, got {arms}, {pulls}, {deviation}"
            )
        if family not in get_args(Family) or reward not in REWARDS:
            raise ConfigError(
                f"bandit needs a family of {', '.join(get_args(Family))} and a reward of {', '.join(REWARDS)}, got "
                f"{family!r} and {reward!r}"
            )
        self._arms, self._pulls, self._invalid = arms, pulls, invalid
        self._family, self._reward = family, REWARDS[reward]
        self._seed = 0
        self._means: Sequence[float] = ()
        self._payoffs: list[list[float]] = []
        self._turn = 0

    def reset(self, prompt: Prompt) -> Turn:
        """The number of arms and of pulls.

        Raises: DataError if the row has no integer in the column ``seed``.
        """
        self._seed = seed_of(prompt, "the bandit")
        numbers = random.Random(f"{self._seed}")
        self._means = [numbers.random() for _ in range(self._arms)]
        self._payoffs = [[] for _ in range(self._arms)]
        self._turn = 0
        return Turn(
            text=f"There are {self._arms} arms, numbered from 1. You have {self._pulls} pulls, one in each turn."
        )

    def step(self, text: str) -> Turn:
        """The payoff of the pulled arm, with the reward of the pull."""
        self._turn += 1
        done = self._turn >= self._pulls
        index = self._index(text)
        if index is None:
            return Turn(text=f"Name an arm from 1 to {self._arms}.", reward=self._invalid, done=done)
        payoff = self._payoff(index)
        reward = self._reward(index, payoff, self._means, self._payoffs)
        self._payoffs[index].append(payoff)
        left = self._pulls - self._turn
        return Turn(text=f"Arm {index + 1} paid {payoff:.3g}. {left} pulls are left.", reward=reward, done=done)

    def _index(self, text: str) -> int | None:
        """The index of the last arm that a turn names."""
        numbers = [int(number) for number in re.findall(r"(?<![\w.])\d{1,3}(?![\w]|\.\d)", text)]
        arms = [number for number in numbers if 1 <= number <= self._arms]
        return arms[-1] - 1 if arms else None

    def _payoff(self, index: int) -> float:
        numbers = random.Random(f"{self._seed}/{index}/{len(self._payoffs[index])}")
        mean = self._means[index]
        return float(numbers.random() < mean) if self._family == "bernoulli" else numbers.gauss(mean, self._deviation)


def _payoff_reward(index: int, payoff: float, means: Sequence[float], payoffs: Sequence[Sequence[float]]) -> float:
    return payoff


def _regret_reward(index: int, payoff: float, means: Sequence[float], payoffs: Sequence[Sequence[float]]) -> float:
    return means[index] - max(means)


def _ucb_reward(index: int, payoff: float, means: Sequence[float], payoffs: Sequence[Sequence[float]]) -> float:
    bounds = upper_bounds(payoffs)
    return float(bounds[index] >= max(bounds))


def upper_bounds(payoffs: Sequence[Sequence[float]]) -> list[float]:
    """The upper confidence bounds of UCB1.

    Args:
        payoffs: the observed payoffs of each arm.

    Returns:
        mean + sqrt(2 ln t / n) of each arm with n of t payoffs; infinity for an arm without one.
    """
    total = sum(len(each) for each in payoffs)
    return [
        sum(each) / len(each) + math.sqrt(2 * math.log(total) / len(each)) if each else math.inf for each in payoffs
    ]


REWARDS: Mapping[str, Callable[[int, float, Sequence[float], Sequence[Sequence[float]]], float]] = {
    "payoff": _payoff_reward,
    "regret": _regret_reward,
    "ucb": _ucb_reward,
}
