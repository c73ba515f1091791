"""Numbers and durations as people read them."""

from __future__ import annotations

import pytest

from mmgrpo.report.number_format import duration, number, within


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not recorded"),
        (0.0, "0.000"),
        (0.56, "0.560"),
        (-1.08, "\u22121.080"),
        (18.0, "18.00"),
        (1234.5, "1,234"),
        (0.0099999998, "0.0100"),
        (9.99951, "10.00"),
        (0.00123, "0.00123"),
        (2.5e-7, "2.50\u00d710⁻⁷"),
        (float("inf"), "inf"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_deviations_have_the_decimals_of_their_error() -> None:
    assert within(0.95, 0.0046) == "0.950 ± 0.005"
    assert within(0.0176, 0.0158) == "0.0176 ± 0.0158"
    assert within(2.5e-7, 1e-8) == "2.50\u00d710⁻⁷ ± 1.00\u00d710⁻⁸"
    assert within(0.2, 0.0248, "+0.200") == "+0.200 ± 0.025"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "not recorded"),
        (0.012, "0.012 s"),
        (2.1, "2.10 s"),
        (59.7, "1 min 00 s"),
        (149.0, "2 min 29 s"),
        (7265.0, "2 h 01 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
