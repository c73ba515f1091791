"""Units of measurement as dimensions and factors."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

_LENGTHS = {
    "nm": Fraction(1, 10**9), "mm": Fraction(1, 1000), "cm": Fraction(1, 100), "dm": Fraction(1, 10), "m": 1,
    "km": 1000,
    "in": Fraction(254, 10000), "ft": Fraction(3048, 10000), "yd": Fraction(9144, 10000), "mi": Fraction(1609344, 1000),
}  # fmt: skip
_OTHERS: Mapping[str, tuple[str, Fraction | int | float]] = {
    "mg": ("mass", Fraction(1, 1000)), "g": ("mass", 1), "kg": ("mass", 1000), "ton": ("mass", 10**6),
    "lb": ("mass", Fraction(45359237, 10**5)), "oz": ("mass", Fraction(45359237, 16 * 10**5)),
    "ms": ("time", Fraction(1, 1000)), "s": ("time", 1), "min": ("time", 60), "h": ("time", 3600),
    "day": ("time", 86400), "week": ("time", 604800), "month": ("month", 1), "year": ("month", 12),
    "ml": ("volume", Fraction(1, 1000)), "l": ("volume", 1), "gal": ("gallon", 1), "quart": ("gallon", Fraction(1, 4)),
    "cent": ("dollar", Fraction(1, 100)), "dollar": ("dollar", 1), "euro": ("euro", 1), "pound sterling": ("gbp", 1),
    "yen": ("yen", 1), "rupee": ("rupee", 1), "yuan": ("yuan", 1),
    "degree": ("angle", math.pi / 180), "rad": ("angle", 1), "celsius": ("celsius", 1), "fahrenheit": ("fahrenheit", 1),
    "k": ("kelvin", 1), "n": ("newton", 1), "j": ("joule", 1), "kj": ("joule", 1000), "w": ("watt", 1),
    "kw": ("watt", 1000), "v": ("volt", 1), "a": ("ampere", 1), "pa": ("pascal", 1), "kpa": ("pascal", 1000),
    "hz": ("hertz", 1), "khz": ("hertz", 1000), "mhz": ("hertz", 10**6), "ohm": ("ohm", 1), "mol": ("mol", 1),
    "acre": ("acre", 1), "hectare": ("hectare", 1),
}  # fmt: skip
_NAMES = {
    "millimeter": "mm", "centimeter": "cm", "decimeter": "dm", "meter": "m", "kilometer": "km", "inch": "in",
    "inches": "in", "foot": "ft", "feet": "ft", "yard": "yd", "mile": "mi", "milligram": "mg", "gram": "g", "gm": "g",
    "kilogram": "kg", "tonne": "ton", "pound": "lb", "lbs": "lb", "ounce": "oz", "second": "s", "sec": "s",
    "minute": "min", "mins": "min", "hour": "h", "hr": "h", "hrs": "h", "yr": "year", "milliliter": "ml", "liter": "l",
    "gallon": "gal", "usd": "dollar", "buck": "dollar", "deg": "degree", "radian": "rad", "newton": "n", "joule": "j",
    "watt": "w", "volt": "v", "ampere": "a", "amp": "a", "hertz": "hz", "kelvin": "k", "\u03a9": "ohm",
    "kilojoule": "kj", "nanometer": "nm", "millisecond": "ms", "mole": "mol", "rs": "rupee",
}  # fmt: skip
_COMPOUND = {"mph": "mi/h", "kmh": "km/h", "kph": "km/h", "kmph": "km/h", "fps": "ft/s", "mps": "m/s"}
_SQUARE = re.compile(r"\b(square|sq|cubic|cu)\.?\s+([^\W\d_]+)|\b([^\W\d_]+)\s+(squared|cubed)\b")
_GENERIC = frozenset(("unit", "units"))
SCALES = {
    "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
}  # fmt: skip
"""Scale words that multiply the number before them."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of measurement.

    Attributes:
        text: spelling in lower case.
        dimension: powers of base dimensions; empty for nouns that are not units ("eggs"), and "units".
        factor: conversion factor to the base unit of its dimension.
    """

    text: str
    dimension: Mapping[str, int] = field(default_factory=dict)
    factor: float = 1.0

    @property
    def measures(self) -> bool:
        """Whether it is a unit of measurement and not a noun."""
        return bool(self.dimension)


def unit_of(text: str) -> Unit:
    """Parse a unit: "cm^2", "square inches", "miles per hour", or a noun."""
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text.replace(r"\cdot", " ")).replace("{", "").replace("}", "")
    plain = re.sub(r"\s+(?=\^(?!\\))", "", plain)
    plain = " ".join(plain.replace(r"^\circ", " degree ").lower().split()).strip(" .")
    plain = _SQUARE.sub(lambda m: f"{m[2] or m[3]}^{2 if (m[1] or m[4]).startswith('sq') else 3}", plain)
    powers: Counter[str] = Counter()
    factor: float = 1.0
    for number, part in enumerate(re.split(r"\s*/\s*|\s+per\s+", plain)):
        for token in part.split():
            name, _, power = _COMPOUND.get(token, token).partition("^")
            sign = (-1 if number else 1) * (int(power) if re.fullmatch(r"-?\d", power) else 1)
            for at, simple in enumerate(name.split("/")):
                base = _simple(simple)
                if base is None:
                    return Unit(plain)
                powers[base[0]] += -sign if at else sign
                factor *= float(base[1]) ** (-sign if at else sign)
    return Unit(plain, {name: power for name, power in powers.items() if power}, factor)


def _simple(name: str) -> tuple[str, Fraction | int | float] | None:
    name = name.replace("metre", "meter").replace("litre", "liter")
    name = name if name in _NAMES or name in _LENGTHS or name in _OTHERS else name.removesuffix("s")
    name = _NAMES.get(name, name)
    return ("length", _LENGTHS[name]) if name in _LENGTHS else _OTHERS.get(name)


def is_generic(unit: Unit) -> bool:
    """Whether it is "units", "square units" or the like."""
    return bool(_GENERIC & set(re.findall(r"[a-z]+", unit.text)))
