"""Recorded trajectories: matching actions lead on, others are patched, and rewards are those of UI-S1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmgrpo.environments.recorded_screens import RecordedScreensEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Prompt

ACTIONS = [
    {"action": "click", "bbox": [10, 10, 20, 20]},
    "type(content='milk')",
    {"action": "scroll", "direction": "down"},
    {"action": "finished"},
]
COLORS = ("red", "green", "blue", "white")
RIGHT = ("click(x=15, y=15)", "type(content='milk')", "scroll(direction='down')", "finished()")
WRONG = "press_back()"


@pytest.fixture
def trajectory(tmp_path: Path) -> Prompt:
    paths = [str(tmp_path / f"{color}.png") for color in COLORS]
    for color, path in zip(COLORS, paths, strict=True):
        Image.new("RGB", (64, 64), color).save(path)
    return Prompt("Buy milk.", columns={"screens": paths, "actions": ACTIONS})


def played(environment: RecordedScreensEnvironment, prompt: Prompt, texts: Any) -> list[Any]:
    """The text, the color of the screen, the reward, and whether it is the end, per turn."""
    turns = [environment.reset(prompt), *map(environment.step, texts)]
    shown = [turn.images[0].getpixel((0, 0)) if turn.images else None for turn in turns]
    return [(turn.text, color, turn.reward, turn.done) for turn, color in zip(turns, shown, strict=True)]


def test_the_expert_sees_every_screen(trajectory: Prompt) -> None:
    turns = played(RecordedScreensEnvironment(), trajectory, [f"<think>So.</think>{text}" for text in RIGHT])
    assert turns == [
        ("", (255, 0, 0), None, False),
        ("", (0, 128, 0), 1.0, False),
        ("", (0, 0, 255), 1.0, False),
        ("", (255, 255, 255), 1.0, False),
        ("", None, 1.0, True),
    ]


def test_a_departure_is_patched_and_the_next_one_ends(trajectory: Prompt) -> None:
    turns = played(RecordedScreensEnvironment(format_weight=0.0), trajectory, [WRONG, RIGHT[1], WRONG])
    assert turns[1:] == [
        ('The right action is {"action": "click", "bbox": [10, 10, 20, 20]}.', (0, 128, 0), 0.1, False),
        ("", (0, 0, 255), 1.0, False),
        ("", None, 0.1, True),
    ]
    unlimited = RecordedScreensEnvironment(max_patches=None)
    assert [done for *_, done in played(unlimited, trajectory, [WRONG] * 4)] == [False] * 4 + [True]
    assert [done for *_, done in played(RecordedScreensEnvironment(max_patches=0), trajectory, [WRONG])][-1]


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>So.</think>click(x=15, y=15)", 1.0),  # 0.1 + 0.9
        ("click(x=15, y=15)", 0.9),
        ("<think> </think>click(x=15, y=15)", 0.9),
        ("<think>So.</think>click(x=60, y=15)", 0.55),  # 0.1 + 0.9 * 0.5: the type alone
        ("<think>So.</think>press_back()", 0.19),  # 0.1 + 0.9 * 0.1: an action
        ("<think>click(x=15, y=15)</think>press_back()", 0.19),  # thoughts are no actions
        ("<think>So.</think>I do nothing.", 0.1),
        ("", 0.0),
        ("click(x=15, y=15) click(x=15, y=15)", 0.0),
    ],
)
def test_rewards_of_a_step(text: str, reward: float, trajectory: Prompt) -> None:
    environment = RecordedScreensEnvironment()
    environment.reset(trajectory)
    assert environment.step(text).reward == pytest.approx(reward)


def test_rows_without_a_trajectory_and_wrong_settings_are_errors(trajectory: Prompt) -> None:
    environment = RecordedScreensEnvironment()
    with pytest.raises(DataError, match="'screens' and 'actions', lists of one length"):
        environment.reset(Prompt("?", columns={**trajectory.columns, "actions": ACTIONS[1:]}))
    with pytest.raises(DataError, match="action 3 of the row"):
        environment.reset(Prompt("?", columns={**trajectory.columns, "actions": [*ACTIONS[:3], "nothing"]}))
    with pytest.raises(ConfigError, match="max_patches of at least 0"):
        RecordedScreensEnvironment(max_patches=-1)
    with pytest.raises(ConfigError, match=r"settings of gui_action: .*reach"):
        RecordedScreensEnvironment(match={"reach": 3})
    with pytest.raises(ConfigError, match=r"column, text_weight of recorded_screens\.match would have no effect"):
        RecordedScreensEnvironment(match={"distance": 3, "column": "action", "text_weight": 0.0})
