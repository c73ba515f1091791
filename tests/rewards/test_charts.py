from __future__ import annotations

import time

import pytest
from mmgrpo.rewards.text.chart_answers import ChartAnswer

from mmgrpo.errors import ConfigError
from tests.rewards.written import explained, score_of, wrote


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        ("105", "100", 1),
        ("95", 100, 1),
        ("105.1", "100", 0),
        ("94.9", "100", 0),
        ("-95", "-100", 1),
        ("95", "-100", 0),
        ("0.0", "0", 1),
        ("0.001", "0", 0),
        ("1,234", "1234", 1),
        ("1 234.5", "1234.5", 1),
        ("1'234'567", "1234567", 1),
        ("12,34", "1234", 0),
        ("$1,234.", "1234", 1),
        ("\u20ac 50", "50", 1),
        ("\u221250", "-50", 1),
        ("1.2e3", "1200", 1),
        (".5", "0.5", 1),
        ("45%", "0.45", 1),
        ("45 percent", "45%", 1),
        ("45%", "45", 0),
        ("45", "45%", 0),
        ("Dark Blue", "dark  blue.", 1),
        ('"blue"', "blue", 1),
        ("blue sky", "blue", 0),
        ("Yes", "yes", 1),
        ("about 100", "100", 0),
        ("", "0", 0),
        ("red", ["blue", "red"], 1),
        ("1950", "2010", 1),
    ],
)
def test_relaxed_accuracy_by_hand(text: str, answer: object, value: int):
    assert score_of(ChartAnswer(), text, answer) == value


def test_settings_by_hand():
    either = ChartAnswer(percent="either")
    assert [score_of(either, "45%", reference) for reference in ("45", "0.45", "45%", "4.5")] == [1, 1, 1, 0]
    assert score_of(either, "45", "45%") == 1
    years = ChartAnswer(exact_years=True)
    assert [score_of(years, text, "2010") for text in ("2010", "2009", "2,009")] == [1, 0, 1]
    assert score_of(years, "2150", "2200") == 1
    assert score_of(ChartAnswer(relative=0), "100.0", "100") == 1
    assert score_of(ChartAnswer(relative=0.1), "110", "100") == 1
    assert score_of(ChartAnswer(extract="tag"), "it is 7 <answer>104</answer>", "100") == 1


def test_like_pix2struct_on_its_own_inputs():
    """relaxed_correctness of pix2struct, written out: floats within 5 %, of 0 and else equal texts."""

    def as_float(text: str) -> float | None:
        try:
            return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
        except ValueError:
            return None

    written = [
        "1",
        "1.04",
        "1.06",
        "0.96",
        "-1",
        "96%",
        "100%",
        "1e0",
        "3.5",
        "Blue",
        "blue",
        "b",
        "2019",
        "2020",
        "12%",
    ]
    for answer in written:
        for reference in written:
            made, wanted = as_float(answer), as_float(reference)
            close = made is not None and wanted and abs(made - wanted) / abs(wanted) <= 0.05
            expected = bool(close) if made is not None and wanted else answer.lower() == reference.lower()
            assert score_of(ChartAnswer(), answer, reference) == expected, (answer, reference)


def test_the_parsed_answer_is_in_the_explanation():
    assert explained(ChartAnswer(), wrote(" 45 %.", "1")) == {"parsed": "45 %", "reference": "1"}
    assert explained(ChartAnswer(extract="tag"), wrote("45", "1")) == {"parsed": None, "reference": "1"}


@pytest.mark.parametrize("piece", ["1,111", "1 ", "9", "e9", "%", "'", "$", "\u0301", "-"])
def test_long_strings_end(piece: str):
    started = time.monotonic()
    for count in (50, 3_000, 200_000):
        assert score_of(ChartAnswer(), piece * count, "7") == 0
        assert score_of(ChartAnswer(), "1" + piece * count + "%", "7") == 0
    assert time.monotonic() - started < 20


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"relative must be in \[0, 1\), got 5"):
        ChartAnswer(relative=5)
    with pytest.raises(ConfigError, match="percent must be one of divide, either, got 'ignore'"):
        ChartAnswer(percent="ignore")  # pyrefly: ignore[bad-argument-type]
