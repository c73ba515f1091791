"""Sets of real numbers: intervals, unions, and the solutions of inequalities.

It runs in the process of ``math_worker``.
"""

from __future__ import annotations

from typing import Any

import sympy

from .math_numbers import equal
from .math_types import MathValue


def is_inequality(value: MathValue) -> bool:
    """Whether a value is an inequality, or several joined by "and" or "or"."""
    if value.kind == "list" and value.operators in (("or",), ("and",)):
        return True
    return value.kind == "relation" and set(value.operators) != {"="}


def variables(value: MathValue) -> set[Any]:
    """The symbols in the sides of a relation or a list of relations."""
    items = [side for item in value.items for side in (item.items or (item,))]
    is_relation = value.kind == "relation" or any(item.kind == "relation" for item in value.items)
    return {
        name for side in items if side.expression is not None for name in side.expression.free_symbols if is_relation
    }


def region_of(value: MathValue) -> Any:
    """The set of real numbers of a value; None if it is not a set."""
    try:
        if value.kind == "region":
            return value.expression.doit()
        if value.kind == "tuple" and len(value.items) == 2:
            return _interval(value)
        if value.kind == "set":
            return sympy.FiniteSet(*(item.expression for item in value.items))
        if value.kind == "list" and value.operators in (("or",), ("and",)):
            parts = [region_of(item) for item in value.items]
            if None in parts:
                return None
            both = sympy.Intersection(*parts)
            return sympy.Union(*parts) if value.operators == ("or",) or both is sympy.S.EmptySet else both
        if is_inequality(value):
            return _solutions(value)
    except (NotImplementedError, TypeError, ValueError, AttributeError, ArithmeticError):
        return None
    return None


def _interval(value: MathValue) -> Any:
    opening, closing = value.operators
    left, right = (item.expression for item in value.items)
    if opening not in "([]" or closing not in ")][":
        return None
    if (right - left).is_nonpositive:
        return None
    return sympy.Interval(left, right, left_open=opening in ("(", "]"), right_open=closing in (")", "["))


def _solutions(value: MathValue) -> Any:
    """The solutions of an inequality, or of a chain of them, in its one variable."""
    sides = [item.expression for item in value.items]
    symbols = {symbol for side in sides for symbol in side.free_symbols}
    if len(symbols) != 1:
        return None
    relations = {"<": sympy.Lt, ">": sympy.Gt, "<=": sympy.Le, ">=": sympy.Ge, "!=": sympy.Ne, "=": sympy.Eq}
    parts = []
    for at, operator in enumerate(value.operators):
        relation = relations[operator](sides[at], sides[at + 1])
        parts.append(sympy.S.Reals if relation is sympy.true else relation.as_set())
    return sympy.Intersection(*parts)


def _start(interval: Any) -> float:
    return float(interval.start)


def same_regions(first: Any, second: Any) -> bool:
    """Whether two sets of real numbers are equal; intervals are compared by their ends."""
    if first == second:
        return True
    first, second = (
        interval.args if isinstance(interval, sympy.Union) else (interval,) for interval in (first, second)
    )
    if len(first) != len(second) or not all(isinstance(interval, sympy.Interval) for interval in (*first, *second)):
        return False
    ordered = [sorted(part, key=_start) for part in (first, second)]
    return all(
        (a.left_open, a.right_open) == (b.left_open, b.right_open) and equal(a.start, b.start) and equal(a.end, b.end)
        for a, b in zip(*ordered, strict=True)
    )
