"""Rewards on the length and the repetition of completions, in tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import rounded
from .answer_verifiers import Judge, judge_of

Unit = Literal["tokens", "words"]
STATED = re.compile(r"\b([0-9]{1,9}) tokens")
"""Matches a length that a text announces."""


@final
class Overlong:
    """Reward: 0 up to a length, then decreasing to -1: DAPO's soft overlong punishment.

    With n tokens: 0 for n <= max_length - margin; (max_length - margin - n) / margin up to max_length; -1 beyond.
    ``margin: 0`` is a hard limit. A sample without tokens is not scored (None).

    Example: ``{name: overlong, max_length: 1024, margin: 256}``.
    Units: tokens of the completion, its end token included.   Range: -1 to 0.
    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13.
    Traps: it is never positive, so use a positive weight. Set ``max_length`` to the run's generation limit: then
    truncated samples get -1; with a larger value -1 is never reached.
    """

    def __init__(self, max_length: int, margin: int) -> None:
        if max_length < 1 or not 0 <= margin <= max_length:
            raise ConfigError(
                f"Overlong needs max_length >= 1 and 0 <= margin <= max_length, got {max_length} and {margin}"
            )
        self._max_length = max_length
        self._margin = margin

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [None if sample.tokens is None else self._score(len(sample.tokens)) for sample in samples]

    def _score(self, length: int) -> Score:
        free = self._max_length - self._margin
        explanation = {"reason": f"{length} tokens, free up to {free}, -1 beyond {self._max_length}"}
        if length <= free:
            return Score(0.0, explanation)
        return Score(-1.0 if length > self._max_length else -(length - free) / self._margin, explanation)


@final
class LengthPeak:
    """Reward: 1 at a target length, decreasing with the distance from it, to -1 at the maximum length.

    With x = tokens / max_length: 1 - (1 - x / peak)^2 up to ``peak``, 1 - 2 ((x - peak) / (1 - peak))^2 beyond, and -1
    from ``max_length`` on. With ``shape: line`` it is piecewise linear from 0 to 1 and back to 0: x / peak, and 1 - (x
    - peak) / (1 - peak). A sample without tokens is not scored (None).

    Example: ``{name: length_peak, max_length: 3072}``.
    Units: tokens of the completion, its end token included.   Range: -1 to 1, 0 to 1 with ``shape: line``.
    Source: the length reward of "Surrogate Signals from Format and Length", arXiv:2505.19439; the piecewise linear form
    from "Train Long, Think Short", arXiv:2508.08940, whose ``max_length`` decreases by a schedule.
    Traps: it depends only on the length: gate it by a format reward.
    """

    def __init__(self, max_length: float, peak: float = 0.5, shape: Literal["square", "line"] = "square") -> None:
        if shape not in ("square", "line"):
            raise ConfigError(f"LengthPeak.shape must be square or line, got {shape!r}")
        if max_length < 1 or not 0 < peak < 1:
            raise ConfigError(f"LengthPeak needs max_length >= 1 and 0 < peak < 1, got {max_length} and {peak}")
        self._max_length = max_length
        self._peak = peak
        self._shape = shape

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [None if sample.tokens is None else self._score(len(sample.tokens)) for sample in samples]

    def _score(self, length: int) -> Score:
        share, peak = min(length / self._max_length, 1.0), self._peak
        short = share <= peak
        away = 1 - share / peak if short else (share - peak) / (1 - peak)
        value = 1 - away if self._shape == "line" else 1 - (1 if short else 2) * away**2
        return Score(value, {"reason": f"{length} tokens, best are {self._max_length * peak:g}"})


@final
class Repetition:
    """Reward: ``max_penalty`` times the fraction of n-grams that repeat an earlier one.

    max_penalty * (1 - distinct n-grams / n-grams); 0 for fewer than ``size`` tokens. ``unit: words`` splits the text at
    whitespace instead, for samples without tokens. A sample without tokens (or text) gets None.

    Range: ``max_penalty`` (below 0) to 0.
    Source: Yeo et al. 2025, arXiv:2502.03373, appendix C.2, as in TRL's ``get_repetition_penalty_reward``.
    Traps: lists and tables of boxes repeat n-grams legitimately; with a small ``size`` they are penalized.
    """

    def __init__(self, size: int = 3, max_penalty: float = -1.0, unit: Unit = "tokens") -> None:
        if size < 1:
            raise ConfigError(f"Repetition.size must be at least 1, got {size}")
        if not (max_penalty <= 0 and math.isfinite(max_penalty)):
            raise ConfigError(f"Repetition.max_penalty must be at most 0, got {max_penalty}")
        if unit not in ("tokens", "words"):
            raise ConfigError(f"Repetition.unit must be tokens or words, got {unit!r}")
        self._size = size
        self._max_penalty = max_penalty
        self._unit = unit

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score | None:
        items = sample.tokens if self._unit == "tokens" else None if sample.text is None else sample.text.split()
        if items is None:
            return None
        grams = [tuple(items[i : i + self._size]) for i in range(len(items) - self._size + 1)]
        if not grams:
            return Score(0.0, {"reason": f"fewer than {self._size} {self._unit}"})
        repeated = len(grams) - len(set(grams))
        explanation = {"reason": f"{repeated} of {len(grams)} runs of {self._size} {self._unit} repeat an earlier one"}
        return Score(self._max_penalty * (1 - len(set(grams)) / len(grams)), explanation)


@final
class CosineLength:
    """Reward: cosine-scaled correctness: correct answers score more if shorter, wrong answers score less if shorter.

    With p = min(tokens / max_length, 1) and f = (1 + cos(pi p)) / 2: correct answers score short_right f + long_right
    (1 - f), wrong ones short_wrong f + long_wrong (1 - f). ``judge`` is the verifier: the name of a reward, or a
    mapping with its settings such as ``{name: exact_match, extract: tag}``; a score of at least ``right_from`` is
    correct. None if the verifier returns None or the sample has no tokens; NaN of the verifier is kept.

    Example: ``{name: cosine_length, max_length: 1024}``.
    Judges: math_verify, exact_match, multiple_choice, yes_no, classification, number, count.
    Units: tokens.   Range: minimum to maximum of the four bounds, by default -1 to 1.
    Source: Yeo et al. 2025, arXiv:2502.03373, appendix C.1, as in TRL's ``get_cosine_scaled_reward``.
    Traps: it includes the correctness, so do not add the judge as a separate reward. Long wrong answers score more than
    short ones (-0.5 against -1), to keep exploration; this conflicts with ``overlong``.
    """

    def __init__(
        self,
        max_length: int,
        judge: str | Mapping[str, Any] | Judge = "math_verify",
        short_right: float = 1.0,
        long_right: float = 0.5,
        short_wrong: float = -1.0,
        long_wrong: float = -0.5,
        right_from: float = 1.0,
    ) -> None:
        if max_length < 1:
            raise ConfigError(f"CosineLength.max_length must be at least 1, got {max_length}")
        if not all(math.isfinite(bound) for bound in (short_right, long_right, short_wrong, long_wrong)):
            raise ConfigError("CosineLength's bounds must be finite numbers")
        self._max_length = max_length
        self.judge = judge_of("CosineLength.judge", judge)
        self._right = (short_right, long_right)
        self._wrong = (short_wrong, long_wrong)
        self._right_from = right_from

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [self._score(sample, score) for sample, score in zip(samples, self.judge(samples), strict=True)]

    def _score(self, sample: Sample, score: float | Score | None) -> float | Score | None:
        value = None if score is None else float(score)
        if sample.tokens is None or value is None or math.isnan(value):
            return None if sample.tokens is None else value
        short, long = self._right if value >= self._right_from else self._wrong
        share = (1 + math.cos(math.pi * min(len(sample.tokens) / self._max_length, 1.0))) / 2
        explanation = dict(score.explanation) if isinstance(score, Score) else {}
        explanation["parts"] = rounded({"judge": value, "shortness": share})
        return Score(short * share + long * (1 - share), explanation)


@final
class StatedLength:
    """Reward: correct answers score more if shorter, bounded by the score of the length that they announce.

    With n tokens, f(n) = top cos(pi n / (2 max_length)) and b the number before the first "tokens" of the text,
    ``max_length`` at most, a correct answer scores min(f(n) - |b - n| / max_length, f(b)), or f(n) without an announced
    length; answers that are wrong, or longer than ``max_length``, score 0. ``judge`` is the verifier, as in
    ``cosine_length``. None if the verifier returns None or the sample has no tokens; NaN of the verifier is kept.

    Example: ``{name: stated_length, max_length: 4096}``.
    Judges: math_verify, exact_match, multiple_choice, yes_no, classification, number, count.
    Units: tokens.   Range: -1 to ``top``.
    Source: HBPO, arXiv:2507.15844, and its code (ZJU-REAL/HBPO, ``math_reward.py``), where ``top`` is 4.
    Traps: it includes the correctness, so do not add the judge as a separate reward.
    """

    def __init__(
        self,
        max_length: int,
        judge: str | Mapping[str, Any] | Judge = "math_verify",
        top: float = 4.0,
        right_from: float = 1.0,
    ) -> None:
        if max_length < 1 or not (top > 0 and math.isfinite(top)):
            raise ConfigError(f"StatedLength needs max_length >= 1 and top > 0, got {max_length} and {top}")
        self._max_length = max_length
        self.judge = judge_of("StatedLength.judge", judge)
        self._top = top
        self._right_from = right_from

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [self._score(sample, score) for sample, score in zip(samples, self.judge(samples), strict=True)]

    def _score(self, sample: Sample, score: float | Score | None) -> float | Score | None:
        value = None if score is None else float(score)
        if sample.tokens is None or value is None or math.isnan(value):
            return None if sample.tokens is None else value
        length, match = len(sample.tokens), STATED.search(sample.text or "")
        stated = min(int(match[1]), self._max_length) if match else None
        explanation = dict(score.explanation) if isinstance(score, Score) else {}
        explanation["parts"] = rounded({"judge": value} | ({} if stated is None else {"stated": stated}))
        if value < self._right_from or length > self._max_length:
            return Score(0.0, explanation)
        if stated is None:
            return Score(self._worth(length), explanation)
        return Score(
            min(self._worth(length) - abs(stated - length) / self._max_length, self._worth(stated)), explanation
        )

    def _worth(self, length: int) -> float:
        return self._top * math.cos(math.pi * length / (2 * self._max_length))
