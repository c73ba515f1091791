"""Games: the same seed is the same game, whatever other games do, and the game's reward is that of the last turn."""

from __future__ import annotations

import random
from itertools import count

import pytest

from mmgrpo.environments.text_games import TextGameEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Prompt

pytest.importorskip("textarena")


def started(seed: int, game: str = "GuessTheNumber-v0") -> TextGameEnvironment:
    environment = TextGameEnvironment(game)
    opening = environment.reset(Prompt("Play.", columns={"seed": seed}))
    assert len(opening.text) > 100
    return environment


def solution(seed: int) -> int:
    """The number of a game, by halving: its hints are the only source."""
    game, low, high = started(seed), 1, 20
    for _ in count():
        guess = (low + high) // 2
        turn = game.step(f"I guess [{guess}]")
        if turn.done:
            assert turn.reward == 1.0
            return guess
        assert turn.reward == 0.0
        low, high = (guess + 1, high) if "higher" in turn.text else (low, guess - 1)
    raise AssertionError("the game ends")


def test_seeds_determine_games_and_wins_are_rewarded() -> None:
    numbers = [solution(seed) for seed in range(4)]
    assert numbers == [solution(seed) for seed in range(4)]
    assert len(set(numbers)) > 1


def test_interleaved_bandits_draw_the_same_rewards_and_leave_the_random_numbers_of_the_process() -> None:
    moves = ["[red]", "[blue]", "[red]", "[green]", "[yellow]", "[purple]", "[red]"]
    alone = started(5, "Bandit-v0")
    expected = [alone.step(move).text for move in moves]
    random.seed(0)
    state = random.getstate()
    first, second = started(5, "Bandit-v0"), started(6, "Bandit-v0")
    replies = []
    for move in moves:
        replies.append(first.step(move).text)
        second.step(move)
    assert replies == expected
    assert random.getstate() == state


def test_invalid_moves_are_answered_with_the_rule() -> None:
    turn = started(1).step("five")
    assert not turn.done
    assert "did not respond with valid '[number]'" in turn.text


def test_unknown_games_and_rows_without_a_seed_are_errors() -> None:
    with pytest.raises(ConfigError, match="'Nowhere-v0' of textarena cannot be made"):
        TextGameEnvironment("Nowhere-v0")
    with pytest.raises(DataError, match="integer in the column 'seed'"):
        TextGameEnvironment("GuessTheNumber-v0").reset(Prompt("Play."))
