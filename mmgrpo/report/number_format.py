"""Formats numbers, durations and long texts for pages."""

from __future__ import annotations

import math

MAX_CHARACTERS = 1500
TINY = 1e-300  # below this, powers of ten are not representable as floats
MINUS = "\u2212"


def number(value: float | None) -> str:
    """Three decimals or three digits with trailing zeros; a power of ten for very large and small values."""
    if value is None:
        return "not recorded"
    if abs(value) < TINY or not math.isfinite(value):
        return f"{value:.3f}"
    rounded = float(f"{value:.{3 if abs(value) >= 1 else 2}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if not -4 < exponent < 7:
        return f"{value / 10**exponent:.2f}\u00d7{power_of_ten(exponent)}".replace("-", MINUS)
    return f"{value:,.{max(0, (3 if exponent >= 0 else 2) - exponent)}f}".replace("-", MINUS)


def within(value: float, deviation: float, text: str | None = None) -> str:
    """A number and its deviation, with as many decimals as the number has."""
    text = text or number(value)
    if not text[-1].isdecimal():  # a power of ten ends in a raised digit
        return f"{text} ± {number(deviation)}"
    decimals = len(text.partition(".")[2])
    return f"{text} ± {deviation:,.{decimals}f}"


def signed(value: float) -> str:
    """A number with its sign, two decimals; zero has none."""
    return f"{value:+.2f}".replace("-", MINUS) if round(value, 2) else "0.00"


def duration(seconds: float | None) -> str:
    """Seconds as hours, minutes and seconds, in the two largest units."""
    if seconds is None:
        return "not recorded"
    if seconds < 10:
        return f"{seconds:.{3 if seconds < 1 else 2}f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def clip(text: str, most: int = MAX_CHARACTERS) -> str:
    """The text, truncated to ``most`` characters; the number of characters that are left out is appended."""
    return text if len(text) <= most else f"{text[:most].rstrip()} … ({len(text) - most} more characters)"


def abridged(text: str, most: int = MAX_CHARACTERS) -> str:
    """The text without its middle if it is longer than ``most`` characters."""
    if len(text) <= most:
        return text
    start, end = text[: 2 * most // 3].rstrip(), text[len(text) - most // 3 :].lstrip()
    return f"{start}\n… ({len(text) - len(start) - len(end)} characters left out) …\n{end}"


def power_of_ten(exponent: int) -> str:
    """10 with the exponent raised."""
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
