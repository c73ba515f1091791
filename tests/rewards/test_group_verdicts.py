from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from mmgrpo.rewards.groups.verifiers import Conciseness, NoisyVerifier, PartialCredit

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Scope, Score
from tests.rewards.grouped import column_score, members, scored


def test_correction_by_hand():
    reward = NoisyVerifier(column_score, false_positive=0.1, false_negative=0.3)
    # (1 - 0.1) / 0.6 and -0.1 / 0.6
    values = reward(scored(1, 0, 0.9, None, math.nan))
    assert values == pytest.approx([1.5, -1 / 6, -1 / 6, None, math.nan], nan_ok=True)
    assert NoisyVerifier(column_score, right_from=0.5)(scored(0.9, 0.4)) == [1, 0]


def test_scopes_and_reasons_of_the_inner_reward_stay():
    parts = (Scope(0, 1, 0.5),)

    def within(samples: Sequence[Sample]) -> list[Score]:
        return [Score(1.0, {"parsed": "7"}, parts) for _ in samples]

    (result,) = NoisyVerifier(within, false_positive=0.1, false_negative=0.3)(scored(1))
    assert isinstance(result, Score)
    assert (result.value, result.explanation, result.scopes) == (pytest.approx(1.5), {"parsed": "7"}, parts)


def test_correction_is_unbiased():
    """Over the verifier's errors, by their exact chances and by draws."""
    fp, fn = 0.2, 0.35
    reward = NoisyVerifier(column_score, false_positive=fp, false_negative=fn)
    passed, failed = reward(scored(1, 0))
    assert isinstance(passed, float)
    assert isinstance(failed, float)
    assert (1 - fn) * passed + fn * failed == pytest.approx(1)
    assert fp * passed + (1 - fp) * failed == pytest.approx(0)
    draw = random.Random(0)
    wrong = reward(scored(*(float(draw.random() < fp) for _ in range(20_000))))
    numbers = [value for value in wrong if isinstance(value, float)]
    assert len(numbers) == 20_000
    assert sum(numbers) / len(numbers) == pytest.approx(0, abs=0.02)


def test_a_verifier_worse_than_a_coin_raises():
    with pytest.raises(ConfigError, match="together below 1"):
        NoisyVerifier(column_score, false_positive=0.5, false_negative=0.5)


def test_short_right_answers_keep_their_reward():
    samples = members(*"abcde", scores=[1, 1, 1, 0, None], tokens=[[1] * n for n in (10, 30, 20, 5, 1)])
    assert Conciseness(column_score)(samples) == [1, 0.5, 0.75, 0, None]
    assert Conciseness(column_score, strength=1.0)(samples) == [1, 0, 0.5, 0, None]
    assert Conciseness(column_score, all_right=True)(samples) == [1, 1, 1, 0, None]
    assert Conciseness(column_score, all_right=True)(samples[:3]) == [1, 0.5, 0.75]


def test_equal_lengths_keep_scores():
    samples = members("a", "b", scores=[1, 1], tokens=[[1], [2]])
    assert Conciseness(column_score)(samples) == [1, 1]
    assert Conciseness(column_score)(members("a", "b", scores=[0, 1], tokens=[[1], [2] * 9])) == [0, 1]


def test_characters_count_without_tokens():
    samples = members("aa", "aaaaaa", None, scores=[1, 2, 1])
    assert Conciseness(column_score, unit="characters")(samples) == [1, 1, None]  # 2 (1 - 0.5)
    assert Conciseness(column_score)(samples) == [None, None, None]


def test_invalid_settings_raise():
    with pytest.raises(ConfigError, match=r"\[0, 1\], got 2"):
        Conciseness(column_score, strength=2)
    with pytest.raises(ConfigError, match="unit must be one of tokens, characters"):
        Conciseness(column_score, unit="words")  # type: ignore[arg-type]


def test_only_groups_without_a_right_sample_are_graded():
    sizes: list[int] = []

    def grade(samples: Sequence[Sample]) -> list[float | None]:
        sizes.extend(sample.group for sample in samples)
        return [0.25 * sample.member if sample.member else None for sample in samples]

    samples = [*scored(0, 1, 0), *scored(0, 0, math.nan, 0, None, group=1), *scored(None, group=2)]
    expected = [0, 1, 0, 0, 0.25, math.nan, 0.75, None, None]
    assert PartialCredit(column_score, grade)(samples) == pytest.approx(expected, nan_ok=True)
    assert sizes == [1, 1, 1]
    assert PartialCredit(column_score, grade, right_from=0.0)(scored(0, -1)) == [0, -1]
