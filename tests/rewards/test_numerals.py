from __future__ import annotations

import pytest
from mmgrpo.rewards.parsing.numerals import has_terms, numbers, seconds, stated_numbers


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("There are 3 cats.", [3]),
        ("-3.5 and \u22124, not 5-3 or 2 - 1", [-3.5, -4, 5, 3, 2, 1]),
        ("$1,234.50, 12,345,678 km", [1234.5, 12345678]),
        ("1,23 and 1,2345", [1, 23, 1, 2345]),
        (".5 or 1e3 or 2.5E-1.", [0.5, 1000, 0.25]),
        ("3/4 of 50%", [0.75, 50]),
        ("3/0 and 3/4/2024", [3]),
        ("x2, 5cm, 1st, 22nd, 3D", [5, 3]),
        ("\uff15", [5]),
        ("1.2.3", [1.2]),
        ("1e999 and " + "9" * 200, []),
        ("twenty-one, two hundred and five", [21, 205]),
        ("one thousand two hundred thirty four", [1234]),
        ("five hundred thousand; 3 million", [500000, 3000000]),
        ("two three, twenty, one", [2, 3, 20, 1]),
        ("two and three", [2, 3]),
        ("Minus Five, negative 4", [-5, -4]),
        ("no one, the one, this one, just one", [1]),
        ("zero", [0]),
        ("1'234, 1\u202f234\u202f567 or 1 234", [1234, 1234567, 1, 234]),
        (r"1{,}234, 10\,000 and 1,\!234", [1234, 10000, 1234]),
        (r"1.2 x 10^6, 3\times10^{-2}, 2*10**3, 3 x 10, 10^3", [1.2e6, 0.03, 2000, 3, 10, 10, 3]),
        ("1 x 10^999", []),
        ("2\u00bd, \u00bc, -1\u00be, x\u00bd", [2.5, 0.25, -1.75]),
        ("\u20135, \uff0d5, 3\u20135", [-5, -5, 3, 5]),
        ("\u0663\u0664", [34]),
        ("someone won often", []),
        ("", []),
    ],
)
def test_numbers(text: str, stated: list[float]):
    assert numbers(text) == stated


def test_words_can_be_left_out():
    assert numbers("two of the 5", spoken=False) == [5]


@pytest.mark.parametrize("n", [*range(0, 130), 200, 205, 999, 1000, 1001, 1234, 20_000, 999_999, 1_000_000, 2_030_045])
def test_every_cardinal_reads_as_itself(n: int):
    assert numbers(f"There are {spelt(n)} of them.") == [n]
    assert numbers(f"There are {n:,} of them.") == [n]


def spelt(n: int) -> str:
    """English for an integer below a billion."""
    if n < 20:
        small = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
        return [*small.split(), "seventeen", "eighteen", "nineteen"][n]
    if n < 100:
        tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"][n // 10 - 2]
        return tens + (f"-{spelt(n % 10)}" if n % 10 else "")
    for scale, name, joint in ((10**6, "million", " "), (1000, "thousand", " "), (100, "hundred", " and ")):
        if n >= scale:
            return f"{spelt(n // scale)} {name}" + (f"{joint}{spelt(n % scale)}" if n % scale else "")
    raise AssertionError


def test_times():
    assert seconds("from 0:12.5 to 1:02:03") == [12.5, 3723]
    assert seconds("from 3.5s to twelve seconds") == [3.5, 12]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (r"\frac{3}{4}", [0.75]),
        (r"\frac34 or -\frac{1}{2}", [0.75, -0.5]),
        (r"7\frac{3}{4}", [7.75]),
        (r"\sqrt{18}", []),
        (r"18\sqrt{2}", []),
        (r"5\pi", []),
        ("10^3", []),
        (r"1.5\times 10^{3}", [1500]),
        ("101_2", []),
        ("2x + 1", []),
        ("4+5i", []),
        (r"x = \sqrt{16} = 4", [4]),
        (r"24\text{ in}^2", [24]),
        ("75^\\circ", [75]),
        ("It is 2x faster, 3x at best.", [2, 3]),
        ("12 - 5 = 7", [12, 5, 7]),
        (r"\frac{1}{", []),
    ],
)
def test_numbers_of_terms_are_not_stated(text: str, values: list[float]) -> None:
    assert stated_numbers(text) == values


def test_terms_that_are_no_numbers() -> None:
    assert all(
        map(has_terms, (r"\sqrt{18}", r"5\pi", "10^3", "101_2", "2x + 1", "4+5i", r"\frac{1}{", r"\frac{\pi}{2}"))
    )
    assert not any(
        map(has_terms, (r"7\frac{3}{4}", r"1.5\times 10^{3}", "5 cm^2", "75^\\circ", "2x faster", "3 apples"))
    )
