"""Bandits: the payoffs of a seed, and the three rewards of a pull."""

from __future__ import annotations

import math
import random

import pytest

from mmgrpo.environments.bandits import BanditEnvironment, upper_bounds
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Prompt

ROW = Prompt("q", columns={"seed": 3})


def means(arms: int) -> list[float]:
    numbers = random.Random("3")
    return [numbers.random() for _ in range(arms)]


def test_regret_is_the_mean_of_the_arm_less_the_best() -> None:
    bandit = BanditEnvironment(arms=3, pulls=3)
    bandit.reset(ROW)
    turns = [bandit.step(f"I pull arm {arm}") for arm in (1, 2, 3)]
    assert [turn.reward for turn in turns] == pytest.approx([mean - max(means(3)) for mean in means(3)])
    assert [turn.done for turn in turns] == [False, False, True]
    assert turns[0].text in ("Arm 1 paid 0. 2 pulls are left.", "Arm 1 paid 1. 2 pulls are left.")


def test_pulls_of_an_arm_pay_every_member_of_a_group_the_same() -> None:
    def payoffs(order: list[int]) -> dict[int, list[float | None]]:
        bandit = BanditEnvironment(arms=2, pulls=9, family="gaussian", reward="payoff")
        bandit.reset(ROW)
        result: dict[int, list[float | None]] = {1: [], 2: []}
        for arm in order:
            result[arm].append(bandit.step(str(arm)).reward)
        return result

    assert payoffs([1, 1, 2, 2]) == payoffs([2, 1, 2, 1])
    assert len(set(payoffs([1, 1, 2, 2])[1])) == 2


def test_bernoulli_payoffs_have_the_mean_of_the_arm() -> None:
    bandit = BanditEnvironment(arms=2, pulls=4000, reward="payoff")
    bandit.reset(ROW)
    mean = sum(bandit.step("2").reward or 0.0 for _ in range(4000)) / 4000
    assert mean == pytest.approx(means(2)[1], abs=0.03)  # 4 standard errors


def test_upper_bounds_are_those_of_ucb1() -> None:
    """Four payoffs: 1/3 + sqrt(2 ln 4 / 3) = 1.294685, 1 + sqrt(2 ln 4) = 2.665109."""
    assert upper_bounds([[1, 0, 0], [1], []]) == pytest.approx([1.294685, 2.665109, math.inf], abs=1e-6)


def test_agreement_with_ucb_needs_unpulled_arms_first() -> None:
    bandit = BanditEnvironment(arms=2, pulls=4, reward="ucb")
    bandit.reset(ROW)
    assert [bandit.step(arm).reward for arm in ("2", "2", "1")] == [1, 0, 1]


def test_a_turn_without_an_arm_pulls_none() -> None:
    bandit = BanditEnvironment(arms=3, pulls=2, reward="ucb", invalid=-0.5)
    bandit.reset(ROW)
    turn = bandit.step("arm 7, or 1.5, or x2")
    assert (turn.text, turn.reward, turn.done) == ("Name an arm from 1 to 3.", -0.5, False)
    last = bandit.step("Not 1 but 3.")
    assert last.text.startswith("Arm 3 paid")
    assert last.done


def test_bad_settings_and_rows_without_a_seed_are_errors() -> None:
    with pytest.raises(ConfigError, match="2 to 100 arms"):
        BanditEnvironment(arms=1)
    with pytest.raises(ConfigError, match="payoff, regret, ucb"):
        BanditEnvironment(reward="profit")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match="deviation of bandit would have no effect: set family: gaussian"):
        BanditEnvironment(deviation=2.0)
    with pytest.raises(DataError, match="seed"):
        BanditEnvironment().reset(Prompt("q"))
