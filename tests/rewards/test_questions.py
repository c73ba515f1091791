from __future__ import annotations

import pytest
from mmgrpo.rewards.judges.questions import Scale, fill_template, judge_images

from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt, Sample
from tests.rewards.image_samples import drew, filmed, noise

FIVE = Scale(low=1, high=5, key="score")


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("4", 4),
        ("Score: 4", 4),
        ("Final Score: 3.5 because the cat is blue and there are 2 dogs", 3.5),
        ("The score is 2. No, on reflection:\n**Score**: 5", 5),
        ('{"reason": "2 cats", "score": 3}', 3),
        ("4/5", 4),
        ("I give it 4 out of 5.", 4),
        ("5/5", 5),
        ("5 out of 5", 5),
        ("<think>score: 1, or 2?</think>4", 4),
        ("SCORE = 1", 1),
        ("1 and again 1", 1),
        ("2 cats, so 4", None),
        ("Score: 7", None),
        ("Score: 0", None),
        ("Score: none", None),
        ("scoreless, 3", 3),
        ("", None),
        ("perfect", None),
        ("-4", None),
        ("Score: 1e400", None),
        ("Score: 4.5.6", None),
        ("Score: " + "9" * 50_000, None),
    ],
)
def test_a_score_is_read_where_it_is_stated(reply: str, score: float | None) -> None:
    read = FIVE.read(reply)
    assert read == (None if score is None else pytest.approx((score - 1) / 4))


def test_hostile_replies_are_parsed_in_time() -> None:
    for reply in ("score" * 100_000, "5/" * 200_000, "1." * 200_000, "-" * 500_000, "</think>" * 100_000, "٤ score ٤"):
        read = FIVE.read(reply)
        assert read is None or 0 <= read <= 1


def test_the_key_is_a_separate_word() -> None:
    scale = Scale(low=0, high=10, key="text (c)")
    assert scale.read("quality: 3, text (c): 7") is None  # no word ends with a bracket, so there are two numbers
    assert Scale(low=0, high=10, key="alignment").read("quality: 3, alignment: 7") == 0.7


def test_a_scale_needs_two_ends_and_a_key() -> None:
    with pytest.raises(ConfigError, match="low < high, got 5 and 5"):
        Scale(low=5, high=5, key="score")
    with pytest.raises(ConfigError, match="must be a word"):
        Scale(low=1, high=5, key="")


def test_templates_take_the_prompt_and_columns_as_they_are() -> None:
    sample = drew(noise(0), "a {low} cat", style="{prompt}", number=3)
    assert fill_template('{prompt}/{style}/{number}/{high} {"score": 5} {0}', sample, FIVE) == (
        'a {low} cat/{prompt}/3/5 {"score": 5} {0}'
    )
    assert fill_template("{prompt.__class__} {absent}", sample, FIVE) is None
    assert fill_template("{prompt.__class__}", sample, FIVE) == "{prompt.__class__}"


def test_a_judge_gets_the_source_before_the_image_or_frames() -> None:
    source, image = noise(0), noise(1)
    edit = Sample(Prompt("p", images=[source]), group=0, member=0, image=image)
    assert list(judge_images(edit, 4, source=False)) == [image]
    assert [picture.tobytes() for picture in judge_images(edit, 4, source=True)] == [source.tobytes(), image.tobytes()]
    frames = [noise(i) for i in range(7)]
    assert list(judge_images(filmed(frames), 3, source=True)) == [frames[0], frames[3], frames[6]]
    assert list(judge_images(Sample(Prompt("p", images=[source]), group=0, member=0), 3, source=True)) == []


@pytest.mark.parametrize(
    ("reply", "score"),
    [('{"score": [4, 2]}', 2), ("Score: 3, 9", None), ("Score: 5/5, 4/5", 4), ("3", 3), ("3 and 4", None)],
)
def test_the_least_of_several_scores(reply: str, score: float | None) -> None:
    read = Scale(low=1, high=5, key="score", which="least").read(reply)
    assert read == (None if score is None else pytest.approx((score - 1) / 4))
