"""Reward for countdown: an expression of given numbers that equals a target."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, final

from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison
from ..parsing.extraction import Extract, extract_answer, require_extract
from ..parsing.scalars import plain_value

MAX_CHARS = 200
"""Longer answers are wrong: an expression of a few numbers is short."""

_EXPRESSION = re.compile(r"[\d+\-*/() ]+")
_SIGNS = str.maketrans({"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "[": "(", "]": ")"})


@final
class Countdown:
    r"""Reward: 1 if the answer is an expression that uses each given number exactly once and equals the target, else 0.

    Expressions have ``+``, ``-``, ``*``, ``/`` (also ``×``, ``÷``) and parentheses, and are computed with fractions. A
    final ``= 24`` is allowed if it states the target. The numbers are a list in ``column``, the target a number in
    ``target``; other references are not scored (None).

    Settings: ``extract`` as in ``exact_match``.
    Range: 0 or 1.
    Source: TinyZero, verl/utils/reward_score/countdown.py. Deviation: no 0.1 for an expression with a wrong value; use
    ``format`` for that. The expression is parsed, never evaluated.
    Traps: the expression must be all of the answer, so extract it from a tag or a line.
    """

    deterministic = True

    def __init__(self, column: str = "nums", target: str = "target", extract: Extract = "tag") -> None:
        self.column = column
        self._target = target
        self.needs_columns = (column, target)
        self._extract: Extract = require_extract("Countdown.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [self._score(sample) for sample in samples]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of a column is no reference; None if it is one."""
        value = plain_value(value)
        is_valid = all(map(_is_integer, value)) and value if isinstance(value, list) else _is_integer(value)
        return None if is_valid else "it is neither an integer nor a list of integers"

    def _score(self, sample: Sample) -> Score | None:
        numbers, target = (plain_value(sample.prompt.columns.get(name)) for name in self.needs_columns)
        is_known = isinstance(numbers, list) and all(map(_is_integer, numbers)) and _is_integer(target)
        if sample.text is None or not is_known or not numbers:
            return None
        answer = extract_answer(sample.text, self._extract)
        reason = _error(answer or "", [int(number) for number in numbers], int(target))
        return Score(float(reason is None), comparison(answer, f"{target} of {numbers}", reason))


def _is_integer(value: Any) -> bool:
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


def _error(answer: str, numbers: Sequence[int], target: int) -> str | None:
    """Why an answer is wrong; None if it is right."""
    text, equals, result = answer.translate(_SIGNS).partition("=")
    if equals and result.strip() != str(target):
        return "it states another result"
    text = text.strip()
    if len(text) > MAX_CHARS or not _EXPRESSION.fullmatch(text):
        return "it is no expression"
    try:
        tree = ast.parse(text, mode="eval").body
        used = sorted(_numbers(tree))
        value = _value(tree)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return "it is no expression"
    if used != sorted(numbers):
        return "it uses other numbers"
    return None if value == target else "it has another value"


def _numbers(node: ast.expr) -> Iterator[int]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, int):
            yield inner.value


def _value(node: ast.expr) -> Fraction:
    """The value of a tree of integers, + - * /, and signs. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if not isinstance(node, ast.BinOp):
        raise ValueError(type(node).__name__)
    left, right = _value(node.left), _value(node.right)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Div):
        return left / right
    raise ValueError(type(node.op).__name__)
