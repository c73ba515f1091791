"""Rewards that speak of parts of each text: of one, or of its attempts and of what it says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Scope, Score

from .grouping import inner_scores, is_score, needed_values


@final
class OnPart:
    """Reward: another reward, said of the part of the text between two marks.

    The part begins with the first ``start`` and ends before the first ``end`` after it. Without a mark, or where the
    text does not have it, it reaches to that end of the text. None where the reward has None or there is no text.

    Example: ``{name: on_part, of: {name: exact_match, extract: tag}, start: <think>, weight: 0}``.
    Settings: ``of``, the reward with its settings, or its bare name; ``start`` and ``end``, one of them at least. With
    a weight of 0 it speaks through its part alone, to an estimator such as ``{name: scoped, reward: on_part}``; several
    have a ``label`` each.
    Range: that of the reward.
    Source: EVisRAG, arXiv:2510.09733, and its code (OpenBMB/VisRAG, src/rsgrpo/verl/workers/reward/function.py), whose
    rewards are laid on spans between tags.
    Traps: the tokens of ``start`` are in the part, those of ``end`` are not.
    """

    def __init__(self, of: Reward, start: str | None = None, end: str | None = None) -> None:
        if not start and not end:
            raise ConfigError("OnPart needs start, end or both: without them it speaks of the whole text")
        self.needs_values = needed_values(of)
        self.of = of
        self._start = start or ""
        self._end = end or None

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        inner = inner_scores(self.of, samples)
        return [
            None if value is None or sample.text is None else self._scoped(sample.text, value, score)
            for sample, value, score in zip(samples, inner.values, inner.scores, strict=True)
        ]

    def _scoped(self, text: str, value: float, score: float | Score | None) -> Score:
        start = text.find(self._start)
        begin, after = (0, 0) if start < 0 else (start, start + len(self._start))
        end = -1 if self._end is None else text.find(self._end, after)
        stop = len(text) if end < 0 else end
        explanation = score.explanation if isinstance(score, Score) else {}
        return Score(value, explanation, [Scope(begin, stop, value)] if begin < stop else [])


@final
class Attempts:
    """Reward: another reward of each attempt in a text, and 1 or 0 for each verdict on the attempt before it.

    A text is an attempt, its check between ``start`` and ``end``, a further attempt, its check, and so on. A check is
    right, 1, if the last match of ``verdict`` in it, its first group, is ``yes`` after an attempt whose reward reaches
    ``right``, or anything else after another; without a match it is 0. The sample itself has what its last attempt has.
    A check with no attempt before it is part of one. None where the reward has None for any attempt, or without a text.

    Example: ``{name: attempts, of: math_verify, weight: 0}``.
    Settings: ``of``, the reward with its settings, or its bare name; ``start`` and ``end`` of a check; ``verdict``, a
    regular expression with a group, and ``yes``, whatever the case; ``right``, in units of the reward.
    With a weight of 0 it speaks through its parts alone, to the estimator ``{name: scoped, reward: attempts}``: the
    first, third and so on are attempts, the others checks.
    Range: that of the reward; of checks 0 and 1.
    Source: SPOC, arXiv:2506.06923, sec. 3.1, whose messages are each rewarded by their own correctness.
    Traps: a right attempt that the text goes on to replace earns its reward all the same.
    """

    def __init__(
        self,
        of: Reward,
        start: str = "<reflection>",
        end: str = "</reflection>",
        verdict: str = r"\b(yes|no)\b",
        yes: str = "yes",
        right: float = 1.0,
    ) -> None:
        try:
            self._verdict = re.compile(verdict, re.IGNORECASE)
        except re.error as error:
            raise ConfigError(f"Attempts.verdict must be a regular expression, got {verdict!r:.80}: {error}") from error
        if not start or not end or self._verdict.groups < 1:
            raise ConfigError("Attempts needs the start and the end of a check, and a verdict with a group in brackets")
        self.needs_values = needed_values(of)
        self.of = of
        self._start = start
        self._end = end
        self._yes = yes.lower()
        self._right = right

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        cut = [list(self._cut(sample.text or "")) for sample in samples]
        attempts = [
            replace(sample, text=(sample.text or "")[begin:stop])
            for sample, parts in zip(samples, cut, strict=True)
            for begin, stop in parts[::2]
        ]
        values = iter(inner_scores(self.of, attempts).values if attempts else ())
        attempt_values = [[next(values) for _ in parts[::2]] for parts in cut]
        return [
            None
            if sample.text is None or not row_values or None in row_values
            else self._scoped(sample.text, parts, row_values)
            for sample, parts, row_values in zip(samples, cut, attempt_values, strict=True)
        ]

    def _cut(self, text: str) -> Iterator[tuple[int, int]]:
        """Where attempts and checks begin and end, in turns."""
        begin = 0
        while text[begin:].strip():
            check_start = text.find(self._start, begin)
            if check_start >= 0 and not text[begin:check_start].strip():
                check_start = text.find(self._start, check_start + 1)
            yield begin, len(text) if check_start < 0 else check_start
            if check_start < 0:
                return
            end = text.find(self._end, check_start)
            begin = len(text) if end < 0 else end + len(self._end)
            yield check_start, begin

    def _scoped(self, text: str, parts: Sequence[tuple[int, int]], attempt_values: Sequence[float | None]) -> Score:
        scopes = []
        for number, (begin, stop) in enumerate(parts):
            value = attempt_values[number // 2]
            assert value is not None
            scopes.append(Scope(begin, stop, self._checked(text[begin:stop], value) if number % 2 else value))
        return Score(attempt_values[-1] or 0.0, {}, scopes)

    def _checked(self, check: str, value: float) -> float:
        if not is_score(value):
            return value
        matches = list(self._verdict.finditer(check))
        return float(bool(matches) and (matches[-1][1].lower() == self._yes) == (value >= self._right))
