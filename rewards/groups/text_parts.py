"""Rewards for parts of a text: one part, or attempts and self-checks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Scope, Score

from ..parsing.inner_rewards import inner_scores, is_score, needed_values


@final
class OnPart:
    """Reward: an inner reward, assigned to the part of the text between two marks.

    The part begins with the first ``start`` and ends before the next ``end``. Without a mark, or if the text does not
    contain it, the part extends to that end of the text. None if the inner reward is None or there is no text.

    Example: ``{name: on_part, of: {name: exact_match, extract: tag}, start: <think>, weight: 0}``.
    Settings: ``of``: the inner reward, by name or with its settings; ``start`` and ``end``, at least one. With a weight
    of 0 only its scope has an effect, in an estimator such as ``{name: scoped, reward: on_part}``; give several of them
    distinct labels.
    Range: that of the inner reward.
    Source: EVisRAG, arXiv:2510.09733, and its code (OpenBMB/VisRAG, src/rsgrpo/verl/workers/reward/function.py), whose
    rewards are assigned to spans between tags.
    Traps: the tokens of ``start`` belong to the part, those of ``end`` do not.
    """

    def __init__(self, of: Reward, start: str | None = None, end: str | None = None) -> None:
        if not start and not end:
            raise ConfigError("OnPart needs start, end or both: without them the part is the complete text")
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
    """Reward: an inner reward for each attempt in a text, and 1 or 0 for each self-check of the previous attempt.

    A text consists of an attempt, its check between ``start`` and ``end``, another attempt, its check, and so on. A
    check is correct, 1, if the first group of the last match of ``verdict`` in it is ``yes`` after an attempt whose
    reward reaches ``right``, or anything else after another attempt; without a match it is 0. The score of the sample
    is that of its last attempt. A check without a previous attempt is part of an attempt. None if the inner reward is
    None for any attempt, or without a text.

    Example: ``{name: attempts, of: math_verify, weight: 0}``.
    Settings: ``of``: the inner reward, by name or with its settings; ``start`` and ``end`` of a check; ``verdict``, a
    regular expression with a group, and ``yes``, case-insensitive; ``right``, in units of the inner reward. With a
    weight of 0 only its scopes have an effect, in the estimator ``{name: scoped, reward: attempts}``: odd scopes are
    attempts, even scopes are checks.
    Range: that of the inner reward; 0 and 1 for checks.
    Source: SPOC, arXiv:2506.06923, sec. 3.1, where each message is rewarded by its own correctness.
    Traps: a correct attempt that a later attempt replaces still earns its reward.
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
        """Start and end of attempts and checks, alternating."""
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
