"""Marks a part of a text, for estimators that use scopes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Scope, Score


@final
class Tagged:
    """Reward: 1 if the text has a non-empty tagged section, else 0; the last such section is a scope.

    The scope has the value 1. A text without the section, or with an empty one, has no scope; without a text None.

    Example: ``{name: tagged, tag: answer, weight: 0}``.
    Settings: ``tag``, the tag name.
    Range: 0 or 1.
    Source: designed for mmgrpo; GRPO-CARE, arXiv:2506.16141, uses the likelihood of an answer separately from its
    reasoning.
    Traps: with weight 0 it does not train the policy but still marks the scope: ``likely_answers`` refers to it as
    ``part``.
    """

    deterministic = True

    def __init__(self, tag: str = "answer") -> None:
        if not tag.isidentifier():
            raise ConfigError(f"Tagged.tag must be a name such as answer, got {tag!r:.60}")
        self._opens, self._closes = f"<{tag}>", f"</{tag}>"

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [None if sample.text is None else self._score(sample.text) for sample in samples]

    def _score(self, text: str) -> Score:
        end = text.rfind(self._closes)
        before = text.rfind(self._opens, 0, max(end, 0))
        start = before + len(self._opens)
        if before < 0 or start == end:
            return Score(0.0)
        return Score(1.0, scopes=[Scope(start, end, 1.0)])
