"""Equality of mathematical values, by structure; expressions numerically, else by math-verify.

It runs in the process of ``math_worker``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

import sympy
from sympy.core.function import UndefinedFunction

from .math_numbers import DIGITS, POINTS, equal, same_numbers
from .math_regions import is_inequality, region_of, same_regions, variables
from .math_types import MathValue

_EXPLICIT_NO = {"yes": "no", "no": "yes", "true": "false", "false": "true"}


def same(gold: Sequence[MathValue], answer: Sequence[MathValue]) -> bool:
    """Whether any interpretation of the answer equals one of the gold text."""
    return any(_is_same(gold_value, answer_value) for gold_value in gold for answer_value in answer)


def _is_same(gold: MathValue, answer: MathValue) -> bool:
    try:
        return _same(gold, answer)
    except MemoryError:
        raise
    except Exception:  # sympy raises many types if it cannot compare
        return False


def _same(gold: MathValue, answer: MathValue) -> bool:
    for change in (_unwrapped, _options_of_approximation):
        for first, second in change(gold, answer):
            if first is not gold or second is not answer:
                return _same(first, second)
    if {gold.kind, answer.kind} == {"list"} and len(gold.items) == len(answer.items):
        return _same_items(gold, answer)
    regions = [region_of(gold), region_of(answer)]
    if "region" in (gold.kind, answer.kind) or is_inequality(gold) or is_inequality(answer):
        if None not in regions and same_regions(regions[0], regions[1]) and _share_names(gold, answer):
            return True
        return gold.kind == answer.kind == "relation" and _same_relations(gold, answer)
    compare = _BY_KIND.get((gold.kind, answer.kind))
    return compare is not None and compare(gold, answer)


def _share_names(gold: MathValue, answer: MathValue) -> bool:
    """Whether the variables of two inequalities are equal; a set has none."""
    names = [variables(value) for value in (gold, answer)]
    return not all(names) or names[0] == names[1]


def _unwrapped(gold: MathValue, answer: MathValue) -> Iterable[tuple[MathValue, MathValue]]:
    """The values of "x = 5" and "5", if one side is an assignment and the other a value."""
    if gold.kind != "relation" and (named := _assigned(answer)) is not None:
        yield gold, named
    elif answer.kind != "relation" and (named := _assigned(gold)) is not None:
        yield named, answer
    elif (gold.kind == "list" and answer.kind in ("list", "tuple", "set")) or answer.kind == "list":
        first, second = _assigned_items(gold), _assigned_items(answer)
        if (first is None) != (second is None):
            yield first or gold, second or answer


def _assigned(value: MathValue) -> MathValue | None:
    """The value of "x = 5", "f(x) = 2x", "x \\in A" or "2 + 3 = 5"."""
    if value.kind != "relation" or set(value.operators) != {"="}:
        return None
    head, last, middle = value.items[0], value.items[-1], value.items[1:]
    if not _is_name(head):
        if not all(item.kind == "number" and not item.expression.free_symbols for item in value.items):
            return None
        middle = value.items
    return last if all(_same(item, last) for item in middle[:-1]) else None


def _is_name(value: MathValue) -> bool:
    if value.kind == "words":
        return True
    if value.kind == "tuple":
        return all(_is_name(item) for item in value.items)
    expression = value.expression
    if value.kind != "number" or value.unit is not None:
        return False
    if isinstance(expression, sympy.Symbol) or (getattr(expression, "is_Function", False) and not expression.is_number):
        return not isinstance(expression, sympy.Function) or isinstance(type(expression), UndefinedFunction)
    parts = [part.base if isinstance(part, sympy.Pow) and part.exp == -1 else part for part in expression.args]
    return isinstance(expression, sympy.Mul) and all(isinstance(part, sympy.Symbol) for part in parts)


def _assigned_items(value: MathValue) -> MathValue | None:
    """ "x = 1, y = 2" as (1, 2), by name; "x = 1, x = 2" and "x_1 = 1, x_2 = 2" as the list 1, 2."""
    if value.kind != "list" or not value.items:
        return None
    values = [_assigned(item) for item in value.items]
    if any(item is None for item in values) or not all(item.kind == "relation" for item in value.items):
        return None
    names = [str(item.items[0].expression) for item in value.items]
    if len({name.partition("_")[0] for name in names}) == 1:
        return MathValue("list", items=tuple(item for item in values if item is not None))
    ordered = sorted(zip(names, values, strict=True), key=lambda pair: pair[0])
    return MathValue("tuple", items=tuple(item for _, item in ordered if item is not None), operators=("(", ")"))


def _options_of_approximation(gold: MathValue, answer: MathValue) -> Iterable[tuple[MathValue, MathValue]]:
    for first, second in ((gold, answer), (answer, gold)):
        if first.operators == ("approx",):
            exact_side, decimal = first.items
            chosen = exact_side if _same(exact_side, second) else decimal
            yield (chosen, second) if first is gold else (second, chosen)
            return


def _same_items(gold: MathValue, answer: MathValue) -> bool:
    """Lists and sets of the same items in any order."""
    if {gold.kind, answer.kind} == {"list", "tuple"}:
        return _same_tuples(gold, answer)
    firsts = _flat(gold)
    seconds = _flat(answer)
    if len(firsts) != len(seconds):
        return False
    for item in firsts:
        at = next((at for at, other in enumerate(seconds) if _same(item, other)), None)
        if at is None:
            return False
        seconds.pop(at)
    return True


def _set_and_number(gold: MathValue, answer: MathValue) -> bool:
    """Whether a singleton set equals a number."""
    members, number = (gold, answer) if gold.kind == "set" else (answer, gold)
    return len(members.items) == 1 and _same(members.items[0], number)


def _flat(value: MathValue) -> list[MathValue]:
    """The items, with \\pm expanded, and without duplicates for sets."""
    items = [part for item in value.items for part in (item.items if item.kind == "list" else (item,))]
    if value.kind == "set":
        return [item for at, item in enumerate(items) if not any(_same(item, other) for other in items[:at])]
    return items


def _same_tuples(gold: MathValue, answer: MathValue) -> bool:
    intervals = [value for value in (gold, answer) if value.kind == "tuple" and _brackets(value) != ("(", ")")]
    if intervals and (gold.kind, answer.kind) == ("tuple", "tuple") and _brackets(gold) != _brackets(answer):
        return False
    if intervals and "list" in (gold.kind, answer.kind):
        return False
    return len(gold.items) == len(answer.items) and all(map(_same, gold.items, answer.items))


def _brackets(value: MathValue) -> tuple[str, ...]:
    return ("(", ")") if value.operators == (r"\langle", r"\rangle") else value.operators


def _same_matrices(gold: MathValue, answer: MathValue) -> bool:
    return gold.shape == answer.shape and all(map(_same, gold.items, answer.items))


def _column_and_tuple(gold: MathValue, answer: MathValue) -> bool:
    """Whether a column vector equals a tuple of coordinates."""
    matrix, other = (gold, answer) if gold.kind == "matrix" else (answer, gold)
    return (
        matrix.shape[1] == 1
        and _brackets(other) == ("(", ")")
        and len(matrix.items) == len(other.items)
        and all(map(_same, matrix.items, other.items))
    )


def _same_ratios(gold: MathValue, answer: MathValue) -> bool:
    clock = re.compile(r"\d{1,2}:[0-5]\d(?::[0-5]\d)?")
    if clock.fullmatch(gold.words) and clock.fullmatch(answer.words):
        if gold.operators and answer.operators and gold.operators != answer.operators:
            return False
        return gold.words.lstrip("0") == answer.words.lstrip("0")
    first, second = ([item.expression for item in value.items] for value in (gold, answer))
    if len(first) != len(second):
        return False
    return all(equal(first[i] * second[j], first[j] * second[i]) for i, j in combinations(range(len(first)), 2))


def _ratio_and_number(gold: MathValue, answer: MathValue) -> bool:
    ratio, number = (gold, answer) if gold.kind == "ratio" else (answer, gold)
    if len(ratio.items) != 2 or number.unit is not None or number.expression.is_Integer:
        return False
    return equal(ratio.items[0].expression, ratio.items[1].expression * number.expression)


def _same_bases(gold: MathValue, answer: MathValue) -> bool:
    return gold.words == answer.words if gold.base == answer.base else equal(gold.expression, answer.expression)


def _base_and_number(gold: MathValue, answer: MathValue) -> bool:
    """Whether the digits are equal if one side omits the base."""
    base, number = (gold, answer) if gold.kind == "base" else (answer, gold)
    return number.places is None and str(number.expression) == base.words


def _same_words(gold: MathValue, answer: MathValue) -> bool:
    opposite = _EXPLICIT_NO.get(gold.words)
    if opposite is not None:
        stated = answer.words.split()
        return stated[:1] == [gold.words] and opposite not in stated
    return gold.words == answer.words


def _words_and_symbol(gold: MathValue, answer: MathValue) -> bool:
    """\\text{B} and B, \\text{AB} and AB."""
    words, symbol = (gold, answer) if gold.kind == "words" else (answer, gold)
    expression = symbol.expression
    factors = expression.args if isinstance(expression, sympy.Mul) else (expression,)
    names = [factor.name.lower() for factor in factors if isinstance(factor, sympy.Symbol)]
    return len(names) == len(factors) and sorted("".join(names)) == sorted(words.words.replace(" ", ""))


def _same_relations(gold: MathValue, answer: MathValue) -> bool:
    """Whether relations have the same pairs: equations up to a factor, inequalities up to a positive factor."""
    if gold.operators == answer.operators and all(map(_same, gold.items, answer.items)):
        return True
    firsts, seconds = _pairs(gold), _pairs(answer)
    if len(firsts) != len(seconds):
        return False
    for operator, difference in firsts:
        matches = (other == operator and _are_proportional(difference, term, operator) for other, term in seconds)
        at = next((at for at, is_match in enumerate(matches) if is_match), None)
        if at is None:
            return False
        seconds.pop(at)
    return True


def _pairs(value: MathValue) -> list[tuple[str, Any]]:
    """Each relation of a chain as an operator, < or <= or = or !=, and left side minus right side."""
    pairs = []
    for at, operator in enumerate(value.operators):
        left, right = value.items[at].expression, value.items[at + 1].expression
        if left is None or right is None:
            return [("?", None)]
        flipped = operator in (">", ">=")
        pairs.append((operator.replace(">", "<"), right - left if flipped else left - right))
    return pairs


def _are_proportional(first: Any, second: Any, operator: str) -> bool:
    if first is None or second is None:
        return False
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    if first.free_symbols != second.free_symbols or len(symbols) > len(POINTS[0]):
        return False
    ratios = []
    for point in POINTS:
        a, b = (sympy.N(side.subs(dict(zip(symbols, point, strict=False))), DIGITS) for side in (first, second))
        if not (a.is_number and b.is_number) or b == 0:
            return False
        ratios.append(a / b)
    margin = abs(ratios[0]) * sympy.Float(f"1e-{DIGITS - 10}", DIGITS)
    constant = all(abs(ratio - ratios[0]) <= margin for ratio in ratios)
    return bool(constant and (operator in ("=", "!=") or ratios[0] > 0))


_BY_KIND: dict[tuple[str, str], Callable[[MathValue, MathValue], bool]] = {
    ("number", "number"): same_numbers,
    ("set", "set"): _same_items,
    ("set", "number"): _set_and_number,
    ("number", "set"): _set_and_number,
    ("list", "set"): _same_items,
    ("set", "list"): _same_items,
    ("list", "list"): _same_items,
    ("list", "tuple"): _same_items,
    ("tuple", "list"): _same_items,
    ("tuple", "tuple"): _same_tuples,
    ("matrix", "matrix"): _same_matrices,
    ("matrix", "tuple"): _column_and_tuple,
    ("tuple", "matrix"): _column_and_tuple,
    ("ratio", "ratio"): _same_ratios,
    ("ratio", "number"): _ratio_and_number,
    ("number", "ratio"): _ratio_and_number,
    ("base", "base"): _same_bases,
    ("base", "number"): _base_and_number,
    ("number", "base"): _base_and_number,
    ("words", "words"): _same_words,
    ("words", "number"): _words_and_symbol,
    ("number", "words"): _words_and_symbol,
    ("relation", "relation"): _same_relations,
}
