"""A reward that speaks of a part of each text alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.rewards.groups.grouping import asked, needed
from mmgrpo.types import Sample, Scope, Score


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
        self.needs_values = needed(of)
        self._of = of
        self._start = start or ""
        self._end = end or None

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        said = asked(self._of, samples)
        return [
            None if value is None or sample.text is None else self._laid(sample.text, value, own)
            for sample, value, own in zip(samples, said.values, said.scores, strict=True)
        ]

    def _laid(self, text: str, value: float, own: float | Score | None) -> Score:
        found = text.find(self._start)
        begin, after = (0, 0) if found < 0 else (found, found + len(self._start))
        end = -1 if self._end is None else text.find(self._end, after)
        stop = len(text) if end < 0 else end
        explanation = own.explanation if isinstance(own, Score) else {}
        return Score(value, explanation, [Scope(begin, stop, value)] if begin < stop else [])
