"""Reward for text rendered in images, read by a local OCR engine."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Literal, final

import numpy as np
from PIL import Image
from rapidfuzz.distance import Levenshtein

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..models.checkpoints import load_once, require_positive, resolve_device
from ..models.ocr_engines import ENGINES, Engine, Line
from ..parsing.explanations import boxes_explanation
from ..parsing.extraction import require_choice
from ..parsing.sample_images import sample_frames

Reader = Callable[[Image.Image], str]
Around = Literal["forgiven", "counted"]

MAX_CHARS = 10_000
"""Longer texts are truncated, so that comparing text detected in noise does not take minutes."""

_LATIN = (
    "\u201c\u201d",
    "\u201e\u201c",
    "\u201e\u201d",
    "\u00ab\u00bb",
    "\u00bb\u00ab",
    "\u2039\u203a",
    "\u203a\u2039",
)
_CJK = ("\u300c\u300d", "\u300e\u300f", "\u301d\u301f", "\uff02\uff02")
_QUOTED = re.compile(
    "|".join(rf"{opening}([^{opening}{closing}]+){closing}" for opening, closing in (*_LATIN, *_CJK))
    + r"|(?<!\d)\"([^\"]*)\""  # a mark after a digit is inches
    + "".join(rf"|(?<!\w){a}((?:[^{a}{b}]|(?<=\w){b}(?=\w))+){b}(?!\w)" for a, b in ("''", "\u2018\u2019"))
)


@final
class OcrAccuracy:
    """Reward: accuracy of the text rendered in the image, 1 - edit distance / length.

    The target is the text in ``column``, or without it the text in quotation marks in the prompt (English, German,
    French, Chinese and Japanese ones, double or single), several joined by spaces; a row without either is not scored.
    Both texts are compared in Unicode NFKC, case folded, without whitespace. ``around: forgiven``: other text in the
    image costs nothing if it contains the complete target, and the distance is divided by the length of the target; the
    score is at least 0. ``counted``: every additional letter counts, and the distance is divided by the longer text.
    For a video the score is the mean over ``frames`` frames.

    Settings: ``engine`` is rapidocr (its wheel includes the models), pytesseract (needs the program tesseract; the
    extra ``ocr`` has both), easyocr (downloads its weights), or ``python:module:function``, a function from a PIL image
    to its text. ``languages`` are the codes of the engine; the default of rapidocr is one model for Latin, Chinese and
    Japanese script, that of the others English. ``device`` is used by easyocr, and by rapidocr with the package
    onnxruntime-gpu; images are read one at a time.
    Range: 0 to 1.
    Source: Flow-GRPO, arXiv:2505.05470, sec. 5.1: max(1 - distance / requested length, 0), there with PaddleOCR, and
    only for the first quotation.
    Traps: engines have language priors: a malformed A is read as an A. rapidocr reads rotated text, tesseract does not,
    and neither reads letters of a few pixels. ``forgiven`` allows images that repeat the text or contain other text;
    inspect the explanations.
    """

    deterministic = True

    def __init__(
        self,
        engine: str | Reader = "rapidocr",
        column: str | None = None,
        around: Around = "forgiven",
        languages: Sequence[str] = (),
        frames: int = 4,
        device: str | None = None,
    ) -> None:
        if isinstance(engine, str) and engine not in ENGINES:
            raise ConfigError(
                f"OcrAccuracy.engine must be one of {', '.join(ENGINES)} or python:module:function, got {engine!r}"
            )
        self._engine = engine
        self.column = column
        self._around: Around = require_choice("OcrAccuracy.around", around, Around)
        self._languages = tuple([languages] if isinstance(languages, str) else languages)
        self._frames = require_positive("OcrAccuracy.frames", frames)
        self._device = device

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        expected = [expected_text(sample, self.column) for sample in samples]
        frames = [sample_frames(s, self._frames) if text else [] for s, text in zip(samples, expected, strict=True)]
        read = self._reader() if any(frames) else None
        values: list[float | Score | None] = []
        for text, images in zip(expected, frames, strict=True):
            lines = [read(image) for image in images] if read is not None else []
            values.append(self._scored(text or "", lines) if lines else None)
        return values

    def _scored(self, expected: str, frame_lines: Sequence[Sequence[Line]]) -> Score:
        texts = [" ".join(line.text for line in lines) for lines in frame_lines]
        value = float(np.mean([text_accuracy(text, expected, self._around) for text in texts]))
        boxes = line_boxes(frame_lines[0]) if len(frame_lines) == 1 else {}
        return Score(value, {"text": " | ".join(texts)[:500], "reference": expected[:500]} | boxes)

    def _reader(self) -> Engine:
        if isinstance(self._engine, str):
            return load_once(ENGINES[self._engine], self._languages, resolve_device(self._device))
        reader = self._engine
        return lambda image: [Line(reader(image), None)]


def line_boxes(lines: Sequence[Line]) -> dict[str, Any]:
    """Explanation with the boxes of the lines and their text; empty without boxes."""
    with_box = [line for line in lines if line.box is not None]
    boxes = [line.box for line in with_box if line.box is not None]
    return boxes_explanation(boxes, (), labels=[line.text for line in with_box]) if boxes else {}


def expected_text(sample: Sample, column: str | None) -> str | None:
    """The text in a column, or the quoted text in the prompt; None if there is none."""
    if column is not None:
        value = sample.prompt.columns.get(column)
        text = value if isinstance(value, str) else ""
    else:
        text = " ".join(next(filter(None, groups), "") for groups in _QUOTED.findall(sample.prompt.text[:MAX_CHARS]))
    return text if plain(text) else None


def text_accuracy(text: str, expected: str, around: Around) -> float:
    """1 - edit distance over length, 0 to 1, as described in ``OcrAccuracy``."""
    read, target = plain(text), plain(expected)
    if around == "forgiven" and target in read:
        return 1.0
    length = len(target) if around == "forgiven" else max(len(target), len(read))
    return max(1 - Levenshtein.distance(read, target) / length, 0.0) if length else 1.0


def plain(text: str) -> str:
    """NFKC, case folded, without whitespace; truncated at ``MAX_CHARS``."""
    return "".join(unicodedata.normalize("NFKC", text[:MAX_CHARS]).casefold().split())[:MAX_CHARS]
