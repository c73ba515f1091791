from __future__ import annotations

import pytest
from mmgrpo.rewards.text.quantities import CountMatch, MeanRelativeAccuracy, Number

from mmgrpo.errors import ConfigError
from tests.rewards.written import explained, score_of, wrote


def test_numbers_are_equal_by_value():
    for text in ("7", "7.0 cm", "about seven", "6 + 1 = 7", "<answer>7</answer>"):
        assert score_of(Number(), text, 7) == score_of(Number(), text, "7.0") == 1
    assert [score_of(Number(), text, 7) for text in ("7 of 9", "none", "", "7.01", "-7")] == [0, 0, 0, 0, 0]


def test_which_number_counts():
    text = "3 red and 4 blue"
    assert [score_of(Number(which="first"), text, n) for n in (3, 4)] == [1, 0]
    assert [score_of(Number(which="last"), text, n) for n in (3, 4)] == [0, 1]
    assert [score_of(Number(which="only"), text, n) for n in (3, 4)] == [0, 0]
    assert score_of(Number(which="only"), "3, I say three", 3) == 1
    assert score_of(Number(spoken=False), "4 of them, not two", 4) == 1
    assert score_of(Number(extract="boxed"), r"9 \boxed{4} 9", 4) == 1


def test_tolerance_by_hand():
    chart = Number(relative=0.05)  # 0.05 * 40 = 2
    assert [score_of(chart, str(n), 40) for n in (38, 42, 37.9, 42.1)] == [1, 1, 0, 0]
    assert [score_of(chart, str(n), -40) for n in (-38, -42, 40)] == [1, 1, 0]
    assert [score_of(Number(absolute=0.5), str(n), 3) for n in (2.5, 3.5, 3.6)] == [1, 1, 0]


def test_a_reference_of_zero_has_no_relative_tolerance():
    assert [score_of(Number(relative=0.5), text, 0) for text in ("0", "0.001")] == [1, 0]
    assert score_of(Number(relative=0.5, absolute=0.01), "0.001", 0) == 1
    assert [score_of(MeanRelativeAccuracy(), text, 0) for text in ("0", "0.001", "")] == [1, 0, 0]


def test_a_reference_without_one_number_is_not_scored():
    rewards = (Number(), MeanRelativeAccuracy(), CountMatch())
    for reference in ("a", "3 or 4", True, float("nan"), float("inf"), [3]):
        assert [score_of(reward, "3", reference) for reward in rewards] == [None, None, None]
    assert Number()([wrote("3"), wrote(None, 3)]) == [None, None]


@pytest.mark.parametrize(
    ("answer", "value"),
    # errors of 0 and 4 % are below 5, 10, .., 50 %; 5 % is not below 5 %; 29 % is below 30 to 50; 50 % below none
    [
        (100, 1.0),
        (104, 1.0),
        (105, 0.9),
        (95, 0.9),
        (129, 0.5),
        (71, 0.5),
        (149, 0.1),
        (150, 0.0),
        (0, 0.0),
        (-100, 0.0),
    ],
)
def test_mean_relative_accuracy_by_hand(answer: int, value: float):
    assert score_of(MeanRelativeAccuracy(), str(answer), 100) == value
    assert score_of(MeanRelativeAccuracy(), str(-answer), -100) == value


def test_counts():
    assert [score_of(CountMatch(), text, 3) for text in ("3", "three cubes", "4", "2.5", "many")] == [1, 1, 0, 0, 0]
    near = CountMatch(mode="relative")
    # 1 - 1/4, 1 - 3/4, 1 - 5/4 below 0, no number
    assert [score_of(near, text, 4) for text in ("4", "3", "7", "9", "many")] == [1, 0.75, 0.25, 0, 0]
    assert [score_of(near, text, 0) for text in ("0", "1")] == [1, 0]
    assert [score_of(CountMatch(), "3", reference) for reference in (-1, 2.5, "-3")] == [None, None, None]


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="at least 0, got -1 and 0"):
        Number(absolute=-1)
    with pytest.raises(ConfigError, match=r"Count\.mode must be one of exact, relative, got 'near'"):
        CountMatch(mode="near")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match=r"MeanRelativeAccuracy\.which must be one of first, last, only"):
        MeanRelativeAccuracy(which="any")  # pyrefly: ignore[bad-argument-type]


def test_the_parsed_answer_is_in_the_explanation():
    for reward in (Number(which="first"), CountMatch(which="first"), CountMatch(which="first", mode="relative")):
        assert explained(reward, wrote("3 of 4", 4)) == {"parsed": 3.0, "reference": 4.0}
        assert explained(reward, wrote("none that I see", 4)) == {"parsed": None, "reference": 4.0}
