from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from mmgrpo.rewards.text.answers import ExactMatch
from mmgrpo.rewards.text.lengths import CosineLength, LengthPeak, Overlong, Repetition, StatedLength

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample
from tests.rewards.written import scores_of, wrote


def of_length(*lengths: int) -> list[Sample]:
    return [wrote("x", tokens=[7] * length) for length in lengths]


def test_overlong_by_hand():
    # free up to 80; then (80 - n) / 20 up to 100; -1 beyond
    assert scores_of(Overlong(100, 20), of_length(0, 80, 81, 90, 100, 101, 999)) == [0, 0, -0.05, -0.5, -1, -1, -1]
    assert scores_of(Overlong(100, 0), of_length(100, 101)) == [0, -1]
    assert Overlong(100, 20)([wrote("x" * 999)]) == [None]


def test_length_peak_of_two_lines():
    lines = LengthPeak(200, shape="line")
    assert scores_of(lines, of_length(0, 25, 100, 150, 200, 999)) == [0, 0.25, 1, 0.5, 0, 0]
    with pytest.raises(ConfigError, match="square or line"):
        LengthPeak(200, shape="round")  # type: ignore[arg-type]


def test_repetition_by_hand():
    samples = [wrote("a b a b a", tokens=tokens) for tokens in ([1, 2, 3, 4], [5] * 5, [1, 2, 1, 2, 1], [1], [])]
    # bigrams: 3 of 3 distinct; 1 of 4; 2 of 4; none
    assert scores_of(Repetition(2), samples) == [0, -0.75, -0.5, 0, 0]
    assert scores_of(Repetition(2, max_penalty=-2.0), samples)[1] == -1.5
    assert scores_of(Repetition(2, unit="words"), samples[:1]) == [-0.5]
    assert Repetition()([wrote("a b")]) == Repetition(unit="words")([wrote(None, tokens=[1])]) == [None]


def test_cosine_by_hand():
    """The wrong branch is alive: in VLM-R1 the accuracy is overwritten by 1.0 and never reaches it."""
    reward = CosineLength(100, judge="exact_match")
    lengths = (0, 50, 100, 250)
    right = [wrote("a", "a", tokens=[1] * n) for n in lengths]
    wrong = [wrote("b", "a", tokens=[1] * n) for n in lengths]
    assert scores_of(reward, right) == pytest.approx([1, 0.75, 0.5, 0.5])
    assert scores_of(reward, wrong) == pytest.approx([-1, -0.75, -0.5, -0.5])


def test_stated_by_hand():
    """4 cos(pi n / 8192) of 1024, 2048 and 512: 3.695518, 2.828427 and 3.923141."""
    reward = StatedLength(4096, judge={"name": "exact_match", "extract": "tag"})
    texts = ["I take 1024 tokens", "I take 1024 tokens", "I take 512 tokens", "I take 2048 tokens", "I think"]
    lengths = (1024, 2048, 1024, 512, 2048)
    # as stated; 1024 too long; 512 too long; shorter than stated, which 2048 is worth at most; nothing stated
    expected = [3.695518, 2.828427 - 0.25, 3.695518 - 0.125, 2.828427, 2.828427]
    for answer, factor in (("a", 1), ("b", 0)):
        pairs = zip(texts, lengths, strict=True)
        samples = [wrote(f"{text}. <answer>{answer}</answer>", "a", tokens=[1] * n) for text, n in pairs]
        assert scores_of(reward, samples) == pytest.approx([factor * value for value in expected], abs=1e-6)
    assert scores_of(reward, [wrote("<answer>a</answer>", "a", tokens=[1] * n) for n in (4096, 4097)]) == [
        pytest.approx(0, abs=1e-12),
        0,
    ]
    assert reward([wrote("<answer>a</answer>", "a"), wrote("a", tokens=[1])]) == [None, None]
    for max_length, top in ((0, 4.0), (1, 0.0)):
        with pytest.raises(ConfigError, match="StatedLength needs"):
            StatedLength(max_length, top=top)


def test_cosine_calls_its_verifier():
    samples = [wrote("<answer>a</answer>", "a", tokens=[1]), wrote("a", tokens=[1]), wrote("a", "a")]
    longest = {"max_length": 1, "long_right": 0.25, "long_wrong": -0.25}
    assert scores_of(CosineLength(**longest, judge={"name": "exact_match", "extract": "tag"}), samples) == [
        0.25,
        None,
        None,
    ]
    assert scores_of(CosineLength(**longest, judge=ExactMatch()), samples) == [-0.25, None, None]
    values = scores_of(CosineLength(**longest, judge=lambda s: [0.5, math.nan, 0.4], right_from=0.5), [samples[0]] * 3)
    assert values == pytest.approx([0.25, math.nan, -0.25], nan_ok=True)


def test_shorter_right_answers_and_longer_wrong_ones_score_more():
    reward = CosineLength(64, judge="exact_match")
    right = scores_of(reward, [wrote("a", "a", tokens=[1] * n) for n in range(65)])
    wrong = scores_of(reward, [wrote("b", "a", tokens=[1] * n) for n in range(65)])
    assert right == sorted(right, key=lambda value: -(value or 0))
    assert wrong == sorted(wrong, key=lambda value: value or 0)
    assert min(value or 0 for value in right) > max(value or 0 for value in wrong)


def test_settings_are_checked():
    for make, message in (
        (lambda: Overlong(10, 11), "0 <= margin <= max_length, got 10 and 11"),
        (lambda: Repetition(0), "size must be at least 1, got 0"),
        (lambda: Repetition(3, 1.0), "at most 0, got 1"),
        (lambda: CosineLength(10, judge="digit_verifier"), "judge must be one of math_verify, .*got 'digit_verifier'"),
        (lambda: CosineLength(10, judge={"name": "count", "exact": 1}), r"judge \(count\): .*'exact'"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()


def test_as_trl_has_them():
    """Live oracle: seeded token lists through TRL's own functions."""
    rewards = pytest.importorskip("trl.rewards")
    draw = random.Random(0)
    tokens = [[draw.randrange(4) for _ in range(draw.randrange(40))] for _ in range(200)]
    samples = [wrote("x", tokens=ids) for ids in tokens]
    for length, margin in ((30, 10), (30, 30), (5, 0)):
        assert scores_of(Overlong(length, margin), samples) == rewards.get_soft_overlong_punishment(length, margin)(
            tokens
        )
    for size, penalty in ((1, -1.0), (2, -0.5), (3, -1.0)):
        close(
            scores_of(Repetition(size, penalty), samples), rewards.get_repetition_penalty_reward(size, penalty)(tokens)
        )


def test_cosine_as_trl_has_it():
    rewards = pytest.importorskip("trl.rewards")
    pytest.importorskip("math_verify")
    draw = random.Random(0)
    texts = [rf"\boxed{{{draw.randrange(2)}}}" for _ in range(40)]
    tokens = [[1] * draw.randrange(120) for _ in texts]
    samples = [wrote(text, solution="1", tokens=ids) for text, ids in zip(texts, tokens, strict=True)]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    theirs = rewards.get_cosine_scaled_reward(max_len=100)(chats, ["1"] * 40, tokens)
    close(scores_of(CosineLength(100), samples), theirs)


def close(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    assert ours == pytest.approx(theirs, abs=1e-12)
