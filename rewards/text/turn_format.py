"""A reward for the form of the turns of a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from .structure import PATTERN_LIMIT_S, compiled_pattern

PATTERNS = ("every", "first", "later", "earlier", "last")


@final
class TurnFormat:
    """Reward: 1 if the policy's turns of a conversation match regular expressions, else 0.

    The turns of the environment are not checked. ``every`` must match each turn of the policy; ``first`` its first turn
    and ``later`` those after it; ``last`` its last turn and ``earlier`` those before it. Patterns match the complete
    stripped turn, with ``.`` matching line ends, and have one second per turn; then the reward fails (NaN). A sample
    without turns is one turn, its text. A turn that was cut off is checked like the others.

    Example: ``{name: turn_format, every: "<think>.*", last: ".*</answer>"}``.
    Range: 0 or 1.
    Source: the form of conversations with tools as in Search-R1 (arXiv:2503.09516); the split into turns is designed
    for mmgrpo.
    Traps: as those of ``format``. The policy's turns alone are matched, so results of tools are not part of a pattern.
    A conversation of more than ``max_chars`` characters scores 0.
    """

    def __init__(
        self,
        every: str | None = None,
        first: str | None = None,
        later: str | None = None,
        earlier: str | None = None,
        last: str | None = None,
        max_chars: int = 200_000,
    ) -> None:
        patterns = dict(zip(PATTERNS, (every, first, later, earlier, last), strict=True))
        self._patterns = {
            name: compiled_pattern(f"TurnFormat.{name}", pattern)
            for name, pattern in patterns.items()
            if pattern is not None
        }
        if not self._patterns:
            raise ConfigError(f"TurnFormat needs one or more of {', '.join(PATTERNS)}")
        self._max_chars = max_chars

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [None if sample.text is None else self._score(sample, sample.text) for sample in samples]

    def _score(self, sample: Sample, text: str) -> float | Score:
        turns = list(sample.turn_texts) or [text]
        if (length := sum(map(len, turns))) > self._max_chars:
            return Score(0.0, {"reason": f"{length} characters, more than {self._max_chars}"})
        for number, turn in enumerate(turns):
            for name in _names_for(number, len(turns)):
                pattern = self._patterns.get(name)
                try:
                    matches = pattern is None or pattern.fullmatch(turn.strip(), timeout=PATTERN_LIMIT_S) is not None
                except TimeoutError:
                    return float("nan")
                if not matches:
                    return Score(0.0, {"reason": f"turn {number + 1} does not match {name!r}"})
        return Score(1.0, {"reason": "well formed"})


def _names_for(number: int, num_turns: int) -> Iterator[str]:
    """The names of the patterns of a turn."""
    yield "every"
    yield "first" if number == 0 else "later"
    yield "last" if number == num_turns - 1 else "earlier"
