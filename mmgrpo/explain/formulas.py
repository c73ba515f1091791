"""Formulas from the docstrings of the functions that compute them."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

FORMULA = re.compile(r"(?:log )?\w+ = ")


def formula_of(function: Callable[..., Any] | str) -> str:
    """The formula in a docstring: the first sentence of a line ``name = ...``, else the first one after the summary.

    Args:
        function: a documented function, or the docstring itself.

    Returns:
        One line, without the full stop.
    """
    text = function if isinstance(function, str) else inspect.getdoc(function) or function.__name__
    lines = [line.strip() for line in text.splitlines()]
    first = next((number for number, line in enumerate(lines) if FORMULA.match(line)), None)
    if first is not None:
        formula = " ".join(itertools.takewhile(bool, lines[first:]))
    else:
        body = [paragraph for paragraph in text.split("\n\n")[1:] if not paragraph.startswith("Shapes:")]
        formula = " ".join(body[0].split()) if body else lines[0]
    return re.sub(r"\s+", " ", formula.split(". ")[0]).rstrip(".")


def with_defaults(function: Callable[..., Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that a function uses: ``numbers``, and the defaults of its other keyword-only parameters."""
    keyword_only = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return {p.name: numbers.get(p.name, p.default) for p in keyword_only}


def numbers_text(numbers: Mapping[str, Any]) -> str:
    """Numbers as text to append to a formula."""
    return "".join(
        f", {name} = {value:g}" if isinstance(value, float) else f", {name} = {value}"
        for name, value in numbers.items()
    )


def summary(function: Any) -> str:
    """The first line of a docstring, up to the first semicolon."""
    line = (inspect.getdoc(function) or function.__name__).splitlines()[0]
    return line.split("; ")[0].rstrip(".").replace("``", "")
