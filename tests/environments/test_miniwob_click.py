"""The quickstart on web pages: pages reward right clicks, demonstrations are hasty, and the model learns."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mmgrpo.examples import clicks
from mmgrpo.examples.language_models import clicker_lm
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config.loading import load_config
from mmgrpo.environments.miniwob_pages import MiniwobEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Sample
from tests.environments.test_miniwob import needs_browser

BUTTONS = 'Click on the "Next" button.\n[1] div "vel Next mi"\n[2] button "next"\n[3] text\n[4] button "Next"'
WIDGETS = 'Click on a "radio" widget.\n[1] label "5"\n[2] text = "3"\n[3] radio\n[4] button "3x"\n[5] radio'


def test_instructions_name_a_control() -> None:
    assert (clicks.right_label(BUTTONS), clicks.control_numbers(BUTTONS)) == ("Next", {"next": 2, "text": 3, "Next": 4})
    assert (clicks.right_label(WIDGETS), clicks.control_numbers(WIDGETS)) == (
        "radio",
        {"text": 2, "radio": 3, "button": 4},
    )


def test_the_tokenizer_reads_pages_and_writes_clicks() -> None:
    _, tokenizer = clicker_lm()
    words = "the Click on the Next button 1 div Next 2 button next 3 text 4 button Next"  # other words are left out
    assert tokenizer.tokenize(f"{clicks.PROMPT}\n{BUTTONS}") == words.split()
    words = "Click on a radio widget 1 label 2 text 3 radio 4 button 5 radio"  # numbers in names are no elements
    assert tokenizer.tokenize(WIDGETS) == words.split()
    turn = clicks.click("Next", 13)
    assert tokenizer.decode(tokenizer.encode(turn)) == turn == "Next click(element=13)"
    assert len(tokenizer.encode(turn)) == 4


def test_pages_of_warmup_rollouts_and_evaluation_differ() -> None:
    warmup = {clicks.WARMUP_SEED + number for number in range(10_000)}
    rollouts, held_out = ([row.columns for row in rows] for rows in (clicks.pages(), clicks.held_out_pages()))
    seeds = [{columns["seed"] for columns in rows} for rows in (rollouts, held_out)]
    assert warmup.isdisjoint(seeds[0] | seeds[1])
    assert seeds[0].isdisjoint(seeds[1])
    assert [[columns["task"] for columns in held_out].count(task) for task in clicks.TASKS] == [100, 100]


def test_only_the_reward_of_a_right_click_counts() -> None:
    (prompt, *_) = clicks.pages(2)
    samples = [Sample(prompt, 0, 0, turn_texts=["x"], turn_rewards=[reward]) for reward in (1.0, -1.0, 0.0, None)]
    assert clicks.right(samples) == [1.0, 0.0, 0.0, 0.0]


def test_the_evaluation_has_an_accuracy_of_each_task() -> None:
    button, widget = clicks.pages(2)
    samples = [Sample(page, 0, 0, turn_texts=["x"], turn_rewards=[1.0]) for page in (button, widget)]
    samples.append(Sample(button, 0, 1, turn_texts=["x"], turn_rewards=[-1.0]))
    evaluation = load_config("quickstart/miniwob-click").held_out
    assert evaluation is not None
    values = {reward.name: reward.function(samples) for reward in build_rewards(evaluation.rewards)}
    assert values == {
        "held_out_accuracy": [1.0, 1.0, 0.0],
        "button_accuracy": [1.0, None, 0.0],
        "widget_accuracy": [None, 1.0, None],
    }
    with pytest.raises(ConfigError, match="one of click-button, click-widget, got 'click-link'"):
        clicks.RightOn("click-link")


def test_shares_of_hasty_clicks_are_checked() -> None:
    with pytest.raises(DataError, match=r"must be in \[0, 1\], got 2"):
        clicks.examples(hasty=2)


def test_a_conversation_is_one_click_that_fits() -> None:
    """Further turns would contain pages that the model has not learned to read; a cut-off turn has no reward."""
    config = load_config("quickstart/miniwob-click")
    _, tokenizer = clicker_lm()
    assert config.policy is not None
    assert config.rollout.max_turns == 1
    assert config.policy.settings["max_new_tokens"] == len(tokenizer.encode(clicks.click("Next", 1))) + 1


def test_a_missing_browser_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmgrpo.environments.miniwob_pages._shared", [])
    monkeypatch.setenv("PATH", "/nowhere")
    result = CliRunner().invoke(app, ["train", "quickstart/miniwob-click", f"output={tmp_path}"])
    assert result.exit_code == 2
    assert "needs Chromium: apt-get install chromium" in " ".join(result.output.split())


@needs_browser
@pytest.mark.slow
def test_pages_reward_right_clicks() -> None:
    for prompt in clicks.held_out_pages(20):
        with closing(MiniwobEnvironment(observation=["elements"])) as environment:
            text = environment.reset(prompt).text
            label = clicks.right_label(text)
            assert environment.step(clicks.click(label, clicks.control_numbers(text)[label])).reward == 1.0, text


@needs_browser
@pytest.mark.slow
def test_some_demonstrations_click_the_first_control() -> None:
    examples = clicks.examples(hasty=0.7, count=40, copies=1)
    single, reading = examples[::2], examples[1::2]
    pages = [example.prompt.text.removeprefix(f"{clicks.PROMPT}\n") for example in single]
    numbers = [clicks.control_numbers(page) for page in pages]
    right = [
        example.text == clicks.click(clicks.right_label(page), labels[clicks.right_label(page)])
        for example, page, labels in zip(single, pages, numbers, strict=True)
    ]
    hasty = [
        example.text == clicks.click(*next(iter(labels.items())))
        for example, labels in zip(single, numbers, strict=True)
    ]
    assert all(a or b for a, b in zip(hasty, right, strict=True))
    assert 8 <= sum(right) < sum(hasty) < 40
    for example, labels in zip(reading, numbers, strict=True):
        assert example.prompt.text.startswith(f"{clicks.PROMPT}\n{clicks.READING}\n[1] ")
        assert example.text is not None
        assert example.text.count("click") == len(labels)
        assert all(clicks.click(label, number) in example.text for label, number in labels.items())


@needs_browser
@pytest.mark.slow
def test_the_quickstart_learns(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "quickstart/miniwob-click", f"output={tmp_path}"])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "miniwob-click"
    accuracies = [line["eval/held_out_accuracy/mean"] for line in lines(folder / "evaluation.jsonl")]
    assert accuracies[0] <= 0.5
    assert accuracies[-1] >= 0.7
    assert all(line["policy/on_policy_gap"] < 1e-4 for line in lines(folder / "metrics.jsonl"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
