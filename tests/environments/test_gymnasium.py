"""Environments of gymnasium: real ones of its toy texts, and one with texts and images that the test registers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmgrpo import Trainer
from mmgrpo.environments.gymnasium_games import GymnasiumEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Prompt
from tests.policies.test_language_exchanges import terse

gymnasium = pytest.importorskip("gymnasium")

LAKE: dict[str, Any] = {"game": "FrozenLake-v1", "actions": ["left", "down", "right", "up"]}
DRY = {"render_mode": "ansi", "is_slippery": False}


def started(seed: int = 0, **settings: Any) -> tuple[GymnasiumEnvironment, str]:
    environment = GymnasiumEnvironment(**settings)
    return environment, environment.reset(Prompt("Play.", columns={"seed": seed})).text


class Echo(gymnasium.Env):
    """Texts in and out; each observation has an image of its length."""

    action_space = gymnasium.spaces.Text(20)
    observation_space = gymnasium.spaces.Text(20)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.last = render_mode, "start"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.last = f"say {self.np_random.integers(100)}"
        return self.last, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.last = action[::-1]
        return self.last, 0.5, False, len(action) > 10, {}

    def render(self) -> Any:
        return np.full((4, 2 * len(self.last), 3), 7, np.uint8)


gymnasium.register("TextEcho-v0", Echo)


def test_named_actions_reach_the_goal() -> None:
    environment, opening = started(**LAKE, settings=DRY)
    assert "SFFF\nFHFH\nFFFH\nHFFG".replace("S", "") in opening.replace("\x1b[41mS\x1b[0m", "")
    assert opening.endswith("Actions: left, down, right, up.")
    moves = ["I go Down", "down", "not left, but right.", "down", "<action>right</action>"]
    assert [(turn.reward, turn.done) for turn in map(environment.step, moves)] == [(0.0, False)] * 5
    last = environment.step("right")
    assert (last.reward, last.done, last.text) == (1.0, True, "")
    environment.close()


def test_a_turn_without_an_action_takes_no_step() -> None:
    environment, _ = started(**LAKE, settings=DRY)
    turn = environment.step("upwards")
    assert (turn.text, turn.reward) == ("No action was read. Actions: left, down, right, up.", 0.0)
    assert "(Down)" in environment.step("down").text


def test_seeds_determine_episodes() -> None:
    moves = ["right", "down", "right", "down", "right", "up", "right", "left"]

    def course(seed: int) -> list[str]:
        environment, _ = started(seed, **LAKE, settings={"render_mode": "ansi"})
        return [environment.step(move).text for move in moves[:4]]

    courses = [course(seed) for seed in range(8)]
    assert courses == [course(seed) for seed in range(8)]
    assert len({tuple(texts) for texts in courses}) > 2  # the ice is slippery


def test_observations_are_json_and_actions_numbers_without_names() -> None:
    environment, opening = started(3, game="Blackjack-v1")
    hand, actions = opening.split("\n")
    assert actions == "Actions: 0, 1."
    total, dealer, ace = eval(hand)
    assert (4 <= total <= 21, 1 <= dealer <= 10, ace) == (True, True, 0)
    last = environment.step("I stick: 0")
    assert (last.done, last.reward in (-1.0, 0.0, 1.0, 1.5)) == (True, True)


def describe(observation: Any) -> str:
    return f"You hold {observation[0]}."


def read_action(text: str) -> int:
    if text not in ("stick", "hit"):
        raise ValueError("Say stick or hit.")
    return int(text == "hit")


def test_functions_describe_observations_and_read_actions() -> None:
    place = "python:tests.environments.test_gymnasium:"
    settings = {"observation": f"{place}describe", "read_action": f"{place}read_action"}
    environment, opening = started(3, game="Blackjack-v1", actions=["stick", "hit"], **settings)
    assert opening.startswith("You hold ")
    assert environment.step("Hit me").text == "Say stick or hit."
    assert environment.step("stick").done


def test_texts_are_actions_and_renderings_images() -> None:
    environment = GymnasiumEnvironment("TextEcho-v0", settings={"render_mode": "rgb_array"})
    opening = environment.reset(Prompt("Play.", columns={"seed": 1}))
    assert (opening.text, opening.images[0].size) == (f"say {np.random.default_rng(1).integers(100)}", (12, 4))
    turn = environment.step("abc")
    assert (turn.text, turn.reward, turn.images[0].size) == ("cba", 0.5, (6, 4))
    assert environment.step("a long farewell").done


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"game": "NoSuchGame-v0"}, "'NoSuchGame-v0' of gymnasium cannot be made"),
        ({"game": "FrozenLake-v1", "actions": ["left", "right"]}, "actions must be 4 different names"),
        ({"game": "TextEcho-v0", "actions": ["a"]}, "actions names numbered actions, but the space is Text"),
        ({"game": "Pendulum-v1"}, "set read_action to python:module:function"),
        ({"game": "FrozenLake-v1", "max_chars": 0}, "max_chars must be at least 1"),
        ({**LAKE, "settings": {"render_mode": "human"}}, "must be ansi or rgb_array, got 'human'"),
        ({**LAKE, "settings": DRY, "observation": describe}, "observation of gymnasium would have no effect"),
    ],
)
def test_wrong_settings_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GymnasiumEnvironment(**settings)


def test_a_policy_is_trained_on_the_rewards_of_the_steps(tmp_path: Path) -> None:
    rows = [{"prompt": "what number is this", "seed": seed} for seed in (1, 2)]
    rollout = {"environment": {"name": "gymnasium", "game": "TextEcho-v0"}, "max_turns": 3}
    values = {"steps": 1, "rollout": {**rollout, "prompts_per_step": 2, "group_size": 2}, "output": str(tmp_path)}
    folder = Trainer(terse("llama"), "environment_return", rows, values).train()
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    (saved,) = (folder / "samples").glob("train-*/samples.jsonl")
    turns = [json.loads(row)["turns"] for row in saved.read_text().splitlines()]
    returns = [sum(turn["reward"] for turn in sample) for sample in turns]
    assert set(returns) <= {0.5, 1.0, 1.5}
    assert line["reward/environment_return/mean"] == sum(returns) / 4


def test_rows_without_a_seed_are_errors() -> None:
    with pytest.raises(DataError, match="FrozenLake-v1 needs an integer in the column 'seed'"):
        GymnasiumEnvironment(**LAKE).reset(Prompt("Play."))
