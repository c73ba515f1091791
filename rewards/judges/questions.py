"""What a judge is asked about a sample, and how the score is read out of what it writes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.rewards.explaining import excerpt
from mmgrpo.rewards.pictures import as_rgb, frames_of
from mmgrpo.types import Sample, Score

SHOWS = 'Does this picture show "{prompt}"? Answer yes or no.'
HOW_WELL = (
    'How well does this picture show "{prompt}", from {low} (not at all) to {high} (fully)? Answer: Score: number.'
)

MAX_REPLY_CHARS = 20_000
"""Of a longer reply only its end is read."""

_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}")
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,9}(?:\.\d{1,9})?(?![\w]|\.\d)")
_WHOLE = re.compile(r"(?:/|out of|of)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Question:
    """Pictures, and what is asked about them."""

    pictures: Sequence[Image.Image]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The scores that a judge may give.

    Attributes:
        low: the worst.
        high: the best.
        key: the word that a score stands behind; without it a reply with one number alone is read.
    """

    low: int
    high: int
    key: str

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ConfigError(f"the scale of a judge needs low < high, got {self.low} and {self.high}")
        if not self.key:
            raise ConfigError("the key of a judge's score must be a word, such as score")

    def read(self, reply: str) -> float | None:
        """The score in a reply, from 0 (low) to 1 (high); None if it states none within the scale.

        What precedes the end of a thought (``</think>``) does not count. Behind the last ``key`` the first number
        counts; without a key there must be one number alone. "4/5" and "4 out of 5" are 4 if the scale ends with 5.
        """
        text = reply[-MAX_REPLY_CHARS:].rpartition("</think>")[2]
        behind = re.split(rf"\b{re.escape(self.key)}\b", text, flags=re.IGNORECASE)
        stated = self._numbers(behind[-1])
        if len(behind) == 1 and len(set(stated)) != 1:
            return None
        return self.share(stated[0]) if stated and self.low <= stated[0] <= self.high else None

    def judged(self, reply: str | None) -> Score:
        """The share that a reply states, and the reply; NaN, a failure, where there is none or it states none."""
        share = None if reply is None else self.read(reply)
        stated = None if share is None else round(self.low + share * (self.high - self.low), 4)
        said = {} if reply is None else {"reason": excerpt(reply.rpartition("</think>")[2].strip())}
        return Score(math.nan if share is None else share, {"parsed": stated} | said)

    def share(self, score: float) -> float:
        """Where a score lies between low (0) and high (1)."""
        return (score - self.low) / (self.high - self.low)

    def _numbers(self, text: str) -> list[float]:
        """The numbers in a text, less those that say what a score is out of."""
        found = list(_NUMBER.finditer(text))
        return [float(number[0]) for number in found if not self._is_whole(text, number)]

    def _is_whole(self, text: str, number: re.Match[str]) -> bool:
        before = text[max(number.start() - 10, 0) : number.start()]
        return float(number[0]) == self.high and _WHOLE.search(before) is not None


def filled(template: str, sample: Sample, scale: Scale) -> str | None:
    """The template with ``{prompt}``, ``{low}``, ``{high}`` and ``{column}`` filled in; None if a column is missing.

    Values are put in as they are: braces in them are not read again.
    """
    known: Mapping[str, object] = {
        **sample.prompt.columns,
        "prompt": sample.prompt.text,
        "low": scale.low,
        "high": scale.high,
    }
    if any(known.get(name) is None for name in _FIELD.findall(template)):
        return None
    return _FIELD.sub(lambda field: str(known[field[1]]), template)


def shown(sample: Sample, frames: int, source: bool) -> Sequence[Image.Image]:
    """The pictures that a judge sees: the prompt's own first, if asked for, then the picture or frames of the video."""
    made = frames_of(sample, frames)
    return [*map(as_rgb, sample.prompt.images), *made] if source and made else made
