"""TimeSearch-R: the rewards and the prompt of a second answer, by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import load_config
from mmgrpo.data.history import History
from mmgrpo.samples import Turn
from mmgrpo.scoring import score
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Prompt, Sample
from tests.configs.method_steps import config_of
from tests.policies.tiny_language import picture

COLUMNS = {"answer": "7"}
RIGHT, WRONG = "<answer>7</answer>", "<answer>8</answer>"


def wrote(text: str, group: int, member: int, prompt_template: str | None = None, *after: tuple[int, int]) -> Sample:
    """A sample of a row whose answer is 7."""
    return Sample(Prompt("q", columns=COLUMNS), group, member, text=text, prompt_template=prompt_template, after=after)


def test_right_answers_earn_that_their_frames_are_enough() -> None:
    """Right and confirmed 0.5 + 0.5; right and not confirmed, or without frames, 0.5; wrong and confirmed 0."""
    samples = [
        *[wrote(text, 0, member) for member, text in enumerate((RIGHT, RIGHT, WRONG, RIGHT))],
        wrote(RIGHT, 1, 0, "frames", (0, 0)),
        wrote(WRONG, 2, 0, "frames", (0, 1)),
        wrote(RIGHT, 3, 0, "frames", (0, 2)),
    ]
    verifier = {"name": "exact_match", "column": "answer", "extract": "tag"}
    config = load_config("methods/timesearch-r", {"policy": None, "rewards": [verifier]})
    rewards = build_rewards(config.rewards)
    scores = shape_scores(score(samples, rewards), rewards, 0)[0]
    total_B = (scores.value_BR * scores.weight_R).where(scores.valid_BR, torch.zeros(())).sum(1)
    assert total_B[:4].tolist() == pytest.approx([1.0, 0.5, 0.0, 0.5])
    assert not scores.valid_BR[4:].any()


def test_second_answer_sees_the_frames_of_the_sample_alone() -> None:
    template = Algorithm.of(config_of("timesearch-r")).prompt_templates["frames"]
    frames = [picture(16, 16), picture(24, 16)]
    replies = [Turn(text="two frames", images=frames), Turn(text="none"), Turn(images=[picture(8, 8)], done=True), None]
    sample = Sample(Prompt("q"), 0, 0, text="so", turn_replies=replies)
    prompt = template(Prompt("Who?", videos=["long.mp4"]), 0, History(samples=[sample]))
    assert prompt is not None
    assert (list(prompt.images), list(prompt.videos)) == (frames, [])
    assert prompt.text.endswith("\n\nWho?")
    without = Sample(Prompt("q"), 0, 0, text="so", turn_replies=[Turn(text="none")])
    assert template(Prompt("Who?"), 0, History(samples=[without])) is None
