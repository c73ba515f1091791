"""Where in a text something stands, for estimators that read parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Scope, Score


@final
class Tagged:
    """Reward: 1 if the text holds something between two tags, else 0; it marks what stands between the last such pair.

    The part has the value 1. A text without one, or with nothing in it, has no parts; no text, None.

    Example: ``{name: tagged, tag: answer, weight: 0}``.
    Settings: ``tag``, the name within ``<>``.
    Range: 0 or 1.
    Source: ours; GRPO-CARE, arXiv:2506.16141, looks at the likelihood of an answer apart from its reasoning.
    Traps: at weight 0 it teaches nothing of itself and marks all the same: ``likely_answers`` names it as ``part``.
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
