"""Questions to judge models, and parsing of the score from their replies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import excerpt
from ..parsing.extraction import finite, require_choice
from ..parsing.sample_images import sample_frames, to_rgb

SHOWS = 'Does this picture show "{prompt}"? Answer yes or no.'
HOW_WELL = (
    'How well does this picture show "{prompt}", from {low} (not at all) to {high} (fully)? Answer: Score: number.'
)

WhichScore = Literal["first", "least"]

MAX_REPLY_CHARS = 20_000
"""Of longer replies only the end is parsed."""

_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}")
_TAG = re.compile(r"</(\w+)>")
_TURN = re.compile(r"<(?=\||/?s>|(?:start|end)_of_turn>)|\[(?=/?INST\])")
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,9}(?:\.\d{1,9})?(?![\w]|\.\d)")
_OUT_OF = re.compile(r"(?:/|out of|of)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Question:
    """Images and a question about them."""

    images: Sequence[Image.Image]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The scale of a judge's scores.

    Attributes:
        low: the lowest score.
        high: the highest score.
        key: the word that precedes a score; without it a reply must have exactly one score.
        answers: answer words with their values; None for the numbers from low to high.
        which: use the first score after the key, or the lowest.
    """

    low: int
    high: int
    key: str
    answers: Mapping[str, float] | None = None
    which: WhichScore = "first"

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ConfigError(f"the scale of a judge needs low < high, got {self.low} and {self.high}")
        require_choice("the judge's which", self.which, WhichScore)
        if not self.key:
            raise ConfigError("the key of a judge's score must be a word, such as score")
        if self.answers is None:
            return
        worth = [value for value in self.answers.values() if finite(value) is not None]
        if len({answer.casefold() for answer in self.answers}) < 2 or len(worth) < len(self.answers):
            raise ConfigError(
                f"the answers of a judge must be two words or more with a number each, got {self.answers}"
            )

    @property
    def least(self) -> float:
        """The lowest possible value."""
        return 0.0 if self.answers is None else min(self.answers.values())

    def read(self, reply: str) -> float | None:
        """Parse the score of a reply, from 0 (low) to 1 (high), or the value of its answer word; None if there is none.

        Text before ``</think>`` is ignored. After the last ``key`` the first score is used, or the lowest; without a
        key there must be exactly one score. "4/5" and "4 out of 5" are 4 if the scale ends with 5.
        """
        text = reply[-MAX_REPLY_CHARS:].rpartition("</think>")[2]
        pieces = re.split(rf"\b{re.escape(self.key)}\b", text, flags=re.IGNORECASE)
        stated = self._words(pieces[-1]) if self.answers is not None else self._numbers(pieces[-1])
        if not stated or (len(pieces) == 1 and len(set(stated)) != 1):
            return None
        in_range = [value for value in stated if value is not None]
        least = min(in_range) if len(in_range) == len(stated) else None
        return least if self.which == "least" else stated[0]

    def scored_reply(self, reply: str | None) -> Score:
        """The score of a reply with the reply as explanation; NaN (a failure) without a reply or a score."""
        share = None if reply is None else self.read(reply)
        explanation = {} if reply is None else {"reason": excerpt(reply.rpartition("</think>")[2].strip())}
        return Score(math.nan if share is None else share, {"parsed": self._score(share)} | explanation)

    def share(self, score: float) -> float:
        """The score scaled to 0 (low) to 1 (high)."""
        return (score - self.low) / (self.high - self.low)

    def _score(self, share: float | None) -> float | None:
        if share is None or self.answers is not None:
            return share
        return round(self.low + share * (self.high - self.low), 4)

    def _words(self, text: str) -> list[float]:
        """The values of the answer words in a text, in order; single letters are case-sensitive."""
        answers = self.answers or {}
        worths = {answer.casefold(): value for answer, value in answers.items()}
        longest_first = sorted(answers, key=len, reverse=True)
        forms = "|".join(re.escape(a) if len(a) == 1 else f"(?i:{re.escape(a)})" for a in longest_first)
        return [worths[match[0].casefold()] for match in re.finditer(rf"(?<!\w)(?:{forms})(?!\w)", text)]

    def _numbers(self, text: str) -> list[float | None]:
        """The scaled numbers of a text, None if outside the scale; the maximum in "4 out of 5" is omitted."""
        numbers = [float(number[0]) for number in _NUMBER.finditer(text) if not self._is_out_of(text, number)]
        return [self.share(number) if self.low <= number <= self.high else None for number in numbers]

    def _is_out_of(self, text: str, number: re.Match[str]) -> bool:
        before = text[max(number.start() - 10, 0) : number.start()]
        return float(number[0]) == self.high and _OUT_OF.search(before) is not None


def default_image_question(mode: str) -> str:
    """The default question about an image."""
    return SHOWS if mode == "yes" else HOW_WELL


def fill_template(
    template: str,
    sample: Sample,
    scale: Scale,
    *,
    quoted: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> str | None:
    """Fill ``{prompt}``, ``{low}``, ``{high}`` and ``{column}`` into a template.

    Values are inserted verbatim; braces in them are not expanded.

    Args:
        template: the question.
        sample: provides the prompt and the columns.
        scale: the scale of the scores.
        quoted: further fields with text of the policy, escaped by ``escape_quoted``.
        more: further fields.

    Returns:
        The question; None if a field has no value.
    """
    values: Mapping[str, object] = {
        **sample.prompt.columns,
        "prompt": sample.prompt.text,
        "low": scale.low,
        "high": scale.high,
        **(more or {}),
        **{name: escape_quoted(text, template) for name, text in (quoted or {}).items()},
    }
    if any(values.get(name) is None for name in _FIELD.findall(template)):
        return None
    return _FIELD.sub(lambda field: str(values[field[1]]), template)


def escape_quoted(text: str, template: str) -> str:
    """Escape a text so that it cannot end its quotation: a space is inserted into tags that the template closes.

    The same applies to chat markers such as ``<|..|>``, ``[INST]`` and ``<start_of_turn>``.
    """
    tags = "|".join(sorted({re.escape(tag) for tag in _TAG.findall(template)}))
    text = re.sub(rf"<(?=\s*/?\s*(?:{tags})\b)", "< ", text, flags=re.IGNORECASE) if tags else text
    return _TURN.sub(lambda mark: f"{mark[0]} ", text)


def judge_images(sample: Sample, frames: int, source: bool) -> Sequence[Image.Image]:
    """The images for a judge: optionally those of the prompt first, then the image or the frames of the video."""
    generated = sample_frames(sample, frames)
    return [*map(to_rgb, sample.prompt.images), *generated] if source and generated else generated
