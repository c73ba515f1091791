r"""Parses mathematical texts to values: numbers, quantities, tuples, intervals, sets, matrices, relations, or words.

Texts must be parsed completely: ``values_of`` returns every interpretation of an ambiguous notation and none for a text
that can only be parsed partially. Expressions are parsed by latex2sympy2-extended, whose grammar consumes its complete
input. It runs in the process of ``math_worker``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig

from ..parsing.latex import normalize_latex, split_top_level
from ..parsing.numerals import numbers
from ..parsing.units import SCALES, unit_of
from .math_types import MathValue, UnreadError

_RELATION = r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\neq(?![A-Za-z])|<|>|="
_OPERATORS = {r"\le": "<=", r"\ge": ">=", r"\neq": "!=", "<": "<", ">": ">", "=": "="}
_AND_OR = r"\\text\{(?:,\s*)?(?:and|or)\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
_POWER = r"(?:\s*\^\s*(?:\{-?\d\}|-?\d))?"
_NOUNS = (
    rf"(?:\\text\{{[^{{}}]*\}}{_POWER}|[A-Za-z]{{2,}}[A-Za-z.]*{_POWER}|/\s*[A-Za-z]*{_POWER}"
    r"|\^\{\\circ\}|\\cdot|per|-|,)"
)
_UNIT_LETTERS = "mgshLlNJWVAKCF"
_QUANTITY = re.compile(
    rf"(?P<value>.*?[\d}})!a-zA-Z])(?P<unit>(?:\s*{_NOUNS})+|\s+[{_UNIT_LETTERS}]{_POWER}(?:\s*/\s*[A-Za-z]+{_POWER})?)"
)
_PERCENT = re.compile(r"(.+?)\s*(?:%|(?:\\text\{)?(?:per\s?cent|percentage|pct)(?: points?)?\}?)")
_MATRIX = re.compile(
    r"\\begin\{(?:p|b|B|V|small)?(?:matrix|array)\}(?:\s*\{[lcr|\s]*\})?(.*)"
    r"\\end\{(?:p|b|B|V|small)?(?:matrix|array)\}",
    re.DOTALL,
)
_SHORT_WORDS = frozenset(("no", "yes", "odd", "on"))
_FUNCTIONS = frozenset(("sin", "cos", "tan", "log", "exp", "max", "min", "gcd", "lcm", "mod"))
_JOINERS = frozenset(
    ("or", "and", "if", "not", "is", "are", "than", "more", "less", "plus", "minus", "over", "to", "through",
     "between", "from", "divided", "multiplied", "by", "squared", "cubed", "point", "half", "either", "where", "when",
     "for", "all", "with", "except", "least", "most", "about", "infinite", "no")
)  # fmt: skip
_CURRENCIES = {
    r"\$": "dollar", "$": "dollar", "\u20ac": "euro", "\u00a3": "pound sterling", "\u00a5": "yen", "\u20b9": "rupee",
}  # fmt: skip
_CONVERSION = ConversionConfig(lowercase_symbols=False, interpret_as_mixed_fractions=False)
_DECIMAL = re.compile(r"(?<![\w.])-?\d+\.(\d+)")
MAX_READINGS = 8


@lru_cache(maxsize=512)
def values_of(text: str) -> tuple[MathValue, ...]:
    """The interpretations of a text, most likely first; empty if it cannot be parsed completely."""
    tidy = normalize_latex(text)
    readings: list[MathValue] = []
    natural = re.sub(r"\\log(?![A-Za-z_]|\s*_)", r"\\ln", tidy)
    attempts = [(_words, tidy), (_compound_quantity, tidy), (_parse_text, tidy)]
    for read, source in [*attempts, (_parse_text, natural)] if natural != tidy else attempts:
        try:
            value = read(source)
        except MemoryError:
            raise
        except Exception:  # the parser raises bare Exceptions, sympy many types
            continue
        if value is not None:
            readings.append(value)
        if readings and re.fullmatch(r"[A-Za-z ]+", tidy):
            break
    mixed = re.fullmatch(r"(\d+)\s*(?:\\text\{and\}|and)\s*(?:\\frac\{(\d+)\}\{(\d+)\}|(\d+)/(\d+))", tidy)
    if mixed:  # "4 and 2/3" is a list, or a mixed number in words
        fraction = Fraction(int(mixed[2] or mixed[4]), int(mixed[3] or mixed[5]) or 1)
        readings.append(MathValue("number", sympy.Rational(int(mixed[1]) + fraction)))
    spoken = numbers(readings[0].words) if readings and readings[0].kind == "words" else []
    if len(spoken) == 1 and not re.search(r"[^a-z\s-]", readings[0].words) and _is_only_numerals(readings[0].words):
        readings.append(MathValue("number", sympy.Rational(Fraction(spoken[0]).limit_denominator(10**6))))
    return tuple(readings[:MAX_READINGS])


def _is_only_numerals(words: str) -> bool:
    return not any(numbers(f"{word} 7") == [7.0] and word != "and" for word in re.findall(r"[a-z]+", words))


def _words(text: str) -> MathValue | None:
    """Words that are not mathematics: "Monday", "\\text{no solution}", "July 4"; a noun after a number is a unit."""
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)
    plain = re.sub(r"^\s*\(?([A-Za-z])\)?\s*$", r"\1", plain)
    if re.search(r"[\\{}=<>^_+*|$]", plain) or not re.search(r"[^\W\d_]", plain):
        return None
    letters = re.findall(r"[^\W\d_]+", plain)
    is_text = (
        r"\text" in text or len(letters) > 1 or len(letters[0]) > 3 or letters[0].lower() in ("no", "yes", "odd", "on")
    )
    starts = re.match(r"\s*[\d.,/ -]*\d", plain)
    if (
        not is_text
        or any(letter in _FUNCTIONS for letter in letters)
        or (starts and len(letters) < 9 and _has_unit(text))
    ):
        return None
    if all(len(letter) == 1 for letter in letters) and len(letters) > 1 and r"\text" not in text:
        return None
    words = " ".join(re.findall(r"[^\W_]+(?:['.][^\W_]+)*", plain.casefold()))
    return MathValue("words", words=re.sub(r"^(?:the|a|an) (?=.)", "", words))


def _has_unit(text: str) -> bool:
    try:
        return _quantity(text) is not None
    except UnreadError:
        return False


def _compound_quantity(text: str) -> MathValue | None:
    """Consecutive quantities of one dimension: "2 hours 30 minutes", "5 ft 3 in"."""
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)
    pairs = re.findall(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\.?", plain)
    rest = re.sub(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\.?|,|\band\b", "", plain).strip()
    if rest or len(pairs) < 2:
        return None
    units = [unit_of(name) for _, name in pairs]
    if not all(unit.measures and unit.dimension == units[0].dimension for unit in units):
        return None
    factors = [Fraction(unit.factor).limit_denominator(10**9) for unit in units]
    total = sum(Fraction(number) * factor for (number, _), factor in zip(pairs, factors, strict=True))
    return MathValue("number", sympy.Rational(total / factors[-1]), unit=units[-1])


def _parse_text(text: str) -> MathValue:
    text = _unlabeled(text)
    parts = [part for part in split_top_level(text, rf"[,;]|{_AND_OR}") if part]
    if not parts:
        raise UnreadError(text)
    if len(parts) == 1:
        return _single(parts[0])
    if any(re.search(r"\\mathbb|\\ldots|integer|\\forall", part) for part in parts[1:]):
        raise UnreadError(text)
    items = tuple(_single(part) for part in parts)
    if all(item.kind in ("relation", "region") and "=" not in item.operators for item in items):
        is_or = re.search(r"\bor\b", text) is not None
        return MathValue("list", items=items, operators=("or" if is_or else "and",))
    return MathValue("list", items=items)


_LABEL = re.compile(
    r"^\\text\{(?:the |final |our )*(?:answer|result|value|solution|total)(?: is)?:?\s*\}[:=]?\s*", re.IGNORECASE
)


def _unlabeled(text: str) -> str:
    """Remove "\\text{The answer is}" or an option letter before the value: "\\text{(C)} \\frac{1}{2}"."""
    text = _LABEL.sub("", text)
    return re.sub(r"^\\text\{\(?([A-Z])[).]?\}\s*(?=[\\\d$(-])|^\(([A-E])\)\s*(?=[\\\d$-])", "", text)


def _single(text: str) -> MathValue:
    text = text.strip()
    for read in (_base_numeral, _clock, _bracketed, _matrix, _relation, _ratio, _quantity, _short_words, _expression):
        value = read(text)
        if value is not None:
            return value
    raise UnreadError(text)


def _short_words(text: str) -> MathValue | None:
    value = _words(text)
    return value if (value is not None and r"\text" in text) or (value and len(value.words) > 3) else None


def _clock(text: str) -> MathValue | None:
    """A 12-hour clock time: "3:45 PM"."""
    match = re.fullmatch(r"(\d{1,2}:[0-5]\d)\s*(?:\\text\{)?\s*([apAP])\.?\s?[mM]\.?\s*\}?", text)
    if match is None:
        return None
    hours = tuple(MathValue("number", sympy.Integer(part)) for part in match[1].split(":"))
    return MathValue("ratio", items=hours, words=match[1], operators=(match[2].lower(),))


def _base_numeral(text: str) -> MathValue | None:
    match = re.fullmatch(r"([0-9][0-9A-Fa-f]*)\s*_\s*(?:\{\s*(?:\\text\{)?(\w+?)\}?\s*\}|(\d))", text)
    if match is None:
        return None
    named = numbers(match[2] or match[3])
    base = int(named[0]) if len(named) == 1 else 0
    if not 2 <= base <= 36:
        raise UnreadError(text)
    digits = match[1].upper().lstrip("0") or "0"
    return MathValue("base", sympy.Integer(int(digits, base)), words=digits, base=base)


def _bracketed(text: str) -> MathValue | None:
    """Sets, tuples and intervals that are the complete text."""
    opening = next((mark for mark in (r"\{", r"\langle", "(", "[", "]") if text.startswith(mark)), None)
    closing = next((mark for mark in (r"\}", r"\rangle", ")", "]", "[") if text.endswith(mark)), None)
    if opening is None or closing is None or len(text) < len(opening + closing):
        return None
    inner = text[len(opening) : -len(closing)].strip()
    if (opening in ("]", "[") or closing in ("[", "]")) and inner.startswith(r"\begin"):
        return _matrix(inner)
    if not _is_balanced(inner):
        return None
    if opening == r"\{":
        return _set(inner) if closing == r"\}" else None
    parts = split_top_level(inner, "[,;]")
    if len(parts) < 2:
        return _single(inner) if opening in ("(", "[") and closing in (")", "]") and parts != [""] else None
    return MathValue("tuple", items=tuple(_single(part) for part in parts), operators=(opening, closing))


def _is_balanced(text: str) -> bool:
    depth = 0
    for mark in re.finditer(r"\\[{}]|[()\[\]{}]", text):
        depth += 1 if mark[0][-1] in "([{" else -1
        if depth < 0:
            return False
    return depth == 0


def _set(inner: str) -> MathValue:
    builder = re.match(r"\s*([A-Za-z])\s*(?:\\in\s*\\mathbb\{R\}\s*)?[|:]\s*(.+)$", inner)
    if builder:
        return _parse_text(builder[2])
    return MathValue("set", items=tuple(_single(part) for part in split_top_level(inner, "[,;]") if part))


def _matrix(text: str) -> MathValue | None:
    match = _MATRIX.fullmatch(text)
    if match is None:
        return None
    body = re.sub(r"\\hline|\\\\\s*$", "", match[1].strip()).strip()
    rows = [split_top_level(row, "&") for row in split_top_level(body, r"\\\\(?:\[[^\]]*\])?")]
    if len({len(row) for row in rows}) != 1:
        raise UnreadError(text)
    return MathValue(
        "matrix", items=tuple(_single(cell) for row in rows for cell in row), shape=(len(rows), len(rows[0]))
    )


def _relation(text: str) -> MathValue | None:
    """Equations, inequalities and chains of them; membership is parsed as equality."""
    member = re.fullmatch(r"([A-Za-z](?:_\{?\w+\}?)?(?:\([A-Za-z]\))?)\s*\\in(?![A-Za-z])\s*(.+)", text)
    if member:
        return MathValue("relation", items=(_expression(member[1]), _single(member[2])), operators=("=",))
    approximate = split_top_level(text, r"\\approx|\\simeq|\\doteq|\\sim(?![A-Za-z])")
    if len(approximate) > 1:
        return _approximate([part for part in approximate if part])
    sides = split_top_level(text, _RELATION)
    if len(sides) < 2:
        return None
    name = re.fullmatch(r"[A-Za-z](?:\^\{-1\}|_\{?\w+\}?)?\s*\(\s*[A-Za-z]\s*\)", sides[0])
    operators = tuple(_OPERATORS[mark] for mark in _relations_of(text))
    if not sides[0] and set(operators) == {"="}:
        return _single(sides[-1])
    first = MathValue("number", sympy.Symbol(re.sub(r"\s", "", name[0]))) if name else _single(sides[0])
    return MathValue("relation", items=(first, *(_single(side) for side in sides[1:])), operators=operators)


def _relations_of(text: str) -> Iterator[str]:
    marks = [match[0] for match in re.finditer(_RELATION, text)]
    if len(marks) + 1 != len(split_top_level(text, _RELATION)):
        raise UnreadError(text)
    yield from marks


def _approximate(parts: list[str]) -> MathValue:
    """The exact side of "2\\sqrt{2} \\approx 2.83"; the number of "x \\approx 2.8"."""
    values = [_single(part) for part in parts]
    last = values[-1]
    first = values[0]
    if first.kind == "relation":
        return first
    if first.kind != "number" or last.kind != "number" or first.expression.free_symbols:
        return last
    near = abs(sympy.N(first.expression - last.expression)) <= abs(sympy.N(first.expression)) / 50
    return MathValue("list", items=(first, last), operators=("approx",)) if near else last


def _ratio(text: str) -> MathValue | None:
    parts = split_top_level(text, r":|\\colon|\\text\{to\}|(?<![A-Za-z])to(?![A-Za-z])")
    items = tuple(_single(part) for part in parts) if len(parts) > 1 else ()
    if not items or any(item.kind != "number" for item in items):
        return None
    return MathValue("ratio", items=items, words=text.replace(" ", ""))


def _quantity(text: str) -> MathValue | None:
    """A number with a percent sign, degrees, a currency, or a following unit or noun."""
    for sign, name in _CURRENCIES.items():
        for pattern in (rf"^(-?)\s*{re.escape(sign)}\s*(.+)$", rf"^(-?)(.+?)\s*{re.escape(sign)}$"):
            if match := re.match(pattern, text):
                inner = _single(match[1] + match[2])
                return replace(inner, unit=unit_of(name)) if inner.kind == "number" else None
    percent = _PERCENT.fullmatch(text)
    if percent:
        inner = _single(percent[1])
        return replace(inner, expression=inner.expression / 100, percent=True) if inner.kind == "number" else None
    if degrees := re.fullmatch(r"(.+?)\s*\^\{\\circ\}\s*(?:(?:\\text\{)?([CF])\}?)?", text):
        is_angle = not re.search(r"\\(?:circ|sin|cos|tan|cot|sec|csc)", degrees[1])
        inner = _single(degrees[1]) if is_angle else None
        name = {"C": "celsius", "F": "fahrenheit"}.get(degrees[2] or "", "degree")
        return replace(inner, unit=unit_of(name)) if inner is not None and inner.kind == "number" else None
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    value = match["value"].strip()
    is_number = re.search(r"\d|\\pi|\\sqrt", value) is not None
    ends_in_name = re.search(r"\\(?!pi$)[A-Za-z]+$|(?<!\\)(?<!\\p)[A-Za-z]{2}$", value) is not None
    return _with_unit(value, match["unit"]) if is_number and not ends_in_name else None


def _is_product(noun: str) -> bool:
    """Whether bare letters after a number are variables: "2xy", "3 AB"; "5cm" and "4 men" are not."""
    word = re.fullmatch(rf"\s*([A-Za-z]{{2,3}}){_POWER}", noun)
    if word is None or unit_of(word[1]).measures:
        return False
    return len(word[1]) == 2 or noun[0].isalpha() or not word[1].islower()


def _with_unit(value: str, noun: str) -> MathValue | None:
    if _is_product(noun):
        return None
    words = re.findall(r"[a-z]+", re.sub(r"\\(?:text|cdot|circ)", " ", noun.lower()))
    if any(word in _JOINERS for word in words) or any(word in _FUNCTIONS - {"min"} for word in words):
        return None
    number = _single(value)
    if number.kind != "number" or number.unit is not None or number.percent or number.expression.free_symbols:
        return None
    factor = 1
    while words and words[0] in SCALES:
        factor *= SCALES[words.pop(0)]
        noun = re.sub(rf"(?i)\b{'|'.join(SCALES)}\b", "", noun, count=1)
    rest = unit_of(noun) if words else None
    places = None if number.places is None or factor > 1 else number.places
    return replace(number, expression=number.expression * factor, unit=rest, places=places)


def _expression(text: str) -> MathValue:
    r"""Parse a term exactly: decimals as fractions, ``i`` as the imaginary unit, degrees inside as \pi/180."""
    if re.search(r"\d\s+\d|\\ldots|\$|\\text\{[^{}]*\}\s*\d|[\u3040-\u9fff]", text) or not text:
        raise UnreadError(text)
    if r"\pm" in text or r"\mp" in text:
        signs = (("+", "-"), ("-", "+"))
        both = (text.replace(r"\pm", plus).replace(r"\mp", minus) for plus, minus in signs)
        return MathValue("list", items=tuple(_expression(side) for side in both))
    source = text.replace(r"^{\circ}", r"\cdot\frac{\pi}{180}")
    source = re.sub(r"(\d|[A-Za-z])(\\cdot\\frac\{\\pi\}\{180\})", r"\1\2", source)
    source = re.sub(
        r"(\\(?:sin|cos|tan|cot|sec|csc)\s*)(\d+(?:\.\d+)?)(\\cdot\\frac\{\\pi\}\{180\})", r"\1(\2\3)", source
    )
    try:
        parsed = latex2sympy(source, is_real=True, normalization_config=None, conversion_config=_CONVERSION)
    except Exception as error:  # the parser raises bare Exceptions
        raise UnreadError(text) from error
    if isinstance(parsed, sympy.Set) and not isinstance(parsed, sympy.FiniteSet):
        return MathValue("region", parsed)
    if isinstance(parsed, sympy.FiniteSet):
        items = tuple(MathValue("number", exact(item)) for item in parsed.args)
        return MathValue("set", items=items)
    if isinstance(parsed, sympy.MatrixBase):
        return MathValue("matrix", items=tuple(MathValue("number", exact(cell)) for cell in parsed), shape=parsed.shape)
    if not isinstance(parsed, sympy.Expr):
        raise UnreadError(text)
    decimals = [len(digits) for digits in _DECIMAL.findall(text)]
    return MathValue("number", exact(parsed), places=max(decimals) if decimals else None)


def exact(expression: Any) -> Any:
    """Replace decimals by fractions and ``i`` by the imaginary unit."""
    floats = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
    imaginary = {symbol: sympy.I for symbol in expression.free_symbols if symbol.name in ("i", r"\imath")}
    return expression.xreplace(floats).subs(imaginary) if floats or imaginary else expression
