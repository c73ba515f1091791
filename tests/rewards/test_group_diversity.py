from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from mmgrpo.rewards.groups.diversity import DiversityAdjusted, cosine, ngrams, overlap
from PIL import Image

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.types import Prompt, Sample
from tests.rewards.grouped import column_score, members


def drew(*levels: int | None, video: bool = False) -> list[Sample]:
    images = [None if level is None else Image.new("L", (8, 4), level) for level in levels]
    if video:
        return [
            Sample(Prompt("q", columns={"score": 1}), 0, i, video=[x, x] if x else None) for i, x in enumerate(images)
        ]
    return [Sample(Prompt("q", columns={"score": 1}), 0, i, image=image) for i, image in enumerate(images)]


def test_ngrams_by_hand():
    assert ngrams("The cat, the cat!", 2) == {("the", "cat"), ("cat", "the")}
    assert ngrams("one", 2) == {("one",)}
    assert ngrams("", 3) == {()}
    assert overlap(ngrams("a b c", 2), ngrams("b c d", 2)) == pytest.approx(1 / 3)  # {ab, bc} and {bc, cd}


def test_divided_by_hand():
    samples = members("a b c", "a b c", "b c d", scores=[2, 1, 3])
    # similarities: 1 between the first two, 1/3 from each of them to the third
    values = DiversityAdjusted(column_score)(samples)
    assert values == pytest.approx([2 / (1 + 1 + 1 / 3), 1 / (1 + 1 + 1 / 3), 3 / (1 + 2 / 3)])
    assert DiversityAdjusted(column_score)(members("a", scores=[2])) == [2]


def test_bonus_by_hand():
    samples = members("a b c", "a b c", "b c d", "x y", scores=[1, 0, 1, -1])
    values = DiversityAdjusted(column_score, rule="bonus", strength=0.6)(samples)
    # mean similarity to the three others: (1 + 1/3 + 0) / 3 and (1/3 + 1/3 + 0) / 3; nothing for what is not right
    assert values == pytest.approx([1 + 0.6 * (1 - 4 / 9), 0, 1 + 0.6 * (1 - 2 / 9), -1])
    assert DiversityAdjusted(column_score, rule="bonus")(members("a", scores=[2])) == [2]


def test_unscored_samples_are_left_out():
    samples = members("a", "a", "a", None, scores=[1, None, math.nan, 1])
    assert DiversityAdjusted(column_score)(samples) == pytest.approx([1, None, math.nan, None], nan_ok=True)


@pytest.mark.parametrize("video", [False, True])
def test_pixels_by_hand(video: bool):
    # black, white and 51 of 255: similarities 0, 0.8 and 0.2
    values = DiversityAdjusted(column_score, similarity="pixels")(drew(0, 255, 51, None, video=video))
    assert values == pytest.approx([1 / 1.8, 1 / 1.2, 1 / 2, None])


def test_videos_are_compared_as_far_as_both_go():
    black, white = (Image.new("L", (4, 4), level) for level in (0, 255))
    videos = [[black], [black, white]]
    samples = [Sample(Prompt("q", columns={"score": 1}), 0, i, video=video) for i, video in enumerate(videos)]
    assert DiversityAdjusted(column_score, similarity="pixels")(samples) == pytest.approx([0.5, 0.5])


def test_embeddings_by_hand():
    vectors = {"east": [1, 0], "north": [0, 2], "west": [-1, 0], "lost": [0, 0], "north east": [3, 3]}
    samples = members(*vectors, scores=[1] * 5)
    reward = DiversityAdjusted(column_score, embed=lambda samples: [vectors[s.text or ""] for s in samples])
    half = math.sqrt(0.5)  # cosine of 45 degrees; opposites count as 0
    assert reward(samples) == pytest.approx([1 / (1 + half), 1 / (1 + half), 1, 1, 1 / (1 + 2 * half)])
    assert cosine(np.array([1e-9, 0]), np.array([1e9, 0])) == pytest.approx(1)


@pytest.mark.parametrize("vectors", [[[1.0], [2.0], [3.0]], [1.0, 2.0], [[math.nan], [1.0]]])
def test_embeddings_of_another_form_are_an_error(vectors: Any):
    with pytest.raises(RewardError, match="a finite vector for each of 2 samples"):
        DiversityAdjusted(column_score, embed=lambda samples: vectors)(members("a", "b", scores=[1, 1]))


def test_invalid_settings_raise():
    with pytest.raises(ConfigError, match="rule must be one of divide, bonus"):
        DiversityAdjusted(column_score, rule="add")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="size >= 1 and strength >= 0, got 0 and"):
        DiversityAdjusted(column_score, size=0)
