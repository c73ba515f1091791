"""A reward for text drawn into images, read by an OCR engine on this machine."""

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
from ..parsing.sample_images import frames_of

Reader = Callable[[Image.Image], str]
Around = Literal["forgiven", "counted"]

MAX_CHARS = 10_000
"""Longer texts are cut: an engine that sees text in noise must not take minutes to compare."""

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
    + r"|(?<!\d)\"([^\"]*)\""  # a mark behind a digit is inches
    + "".join(rf"|(?<!\w){a}((?:[^{a}{b}]|(?<=\w){b}(?=\w))+){b}(?!\w)" for a, b in ("''", "\u2018\u2019"))
)


@final
class OcrAccuracy:
    """Reward: how much of the text asked for stands in the image, 1 - edit distance / length.

    What is asked for is the text in ``column``, or without one the text in quotation marks in the prompt (English,
    German, French, Chinese and Japanese ones, double or single), several joined by blanks; a row with neither is not
    scored. Both texts are compared in Unicode NFKC, case folded, without white space.
    ``around: forgiven``: other text in the image costs nothing if what is asked for stands there in one piece, and
    the distance is divided by the length asked for, at least 0. ``counted``: every letter too many counts, and the
    distance is divided by the longer of the two. Of a video ``frames`` are read, and the mean is taken.

    Settings: ``engine`` is rapidocr (its wheel carries its models, nothing is fetched), pytesseract (needs the program
    tesseract; the extra ``ocr`` has both), easyocr (fetches its weights), or ``python:module:function``, a
    function from a PIL image to the text in it. ``languages`` are the engine's own codes; none leaves it its own
    default: rapidocr reads Latin, Chinese and Japanese script with one model, the others English. ``device`` is used by
    easyocr, and by rapidocr with the package onnxruntime-gpu; images are read one by one.
    Range: 0 to 1.
    Source: Flow-GRPO, arXiv:2505.05470, sec. 5.1: max(1 - distance / length asked for, 0), there with PaddleOCR, and
    for the first quotation alone.
    Traps: engines read what they expect: a glyph that is nearly an A is read as one. rapidocr reads text that stands on
    its side or head, tesseract does not, and neither reads letters of a few pixels. ``forgiven`` lets an image repeat
    the text or fill up with others; read the explanations.
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
        wanted = [wanted_text(sample, self.column) for sample in samples]
        frames = [frames_of(s, self._frames) if text else [] for s, text in zip(samples, wanted, strict=True)]
        read = self._reader() if any(frames) else None
        values: list[float | Score | None] = []
        for text, pictures in zip(wanted, frames, strict=True):
            lines = [read(picture) for picture in pictures] if read is not None else []
            values.append(self._scored(text or "", lines) if lines else None)
        return values

    def _scored(self, wanted: str, frame_lines: Sequence[Sequence[Line]]) -> Score:
        texts = [" ".join(line.text for line in lines) for lines in frame_lines]
        value = float(np.mean([text_accuracy(text, wanted, self._around) for text in texts]))
        boxes = line_boxes(frame_lines[0]) if len(frame_lines) == 1 else {}
        return Score(value, {"text": " | ".join(texts)[:500], "reference": wanted[:500]} | boxes)

    def _reader(self) -> Engine:
        if isinstance(self._engine, str):
            return load_once(ENGINES[self._engine], self._languages, resolve_device(self._device))
        reader = self._engine
        return lambda image: [Line(reader(image), None)]


def line_boxes(lines: Sequence[Line]) -> dict[str, Any]:
    """The boxes of the lines that have one, with their text, for reports; nothing if there are none."""
    with_box = [line for line in lines if line.box is not None]
    boxes = [line.box for line in with_box if line.box is not None]
    return boxes_explanation(boxes, (), labels=[line.text for line in with_box]) if boxes else {}


def wanted_text(sample: Sample, column: str | None) -> str | None:
    """The text in a column, or what stands in quotes in the prompt; None where there is none."""
    if column is not None:
        value = sample.prompt.columns.get(column)
        text = value if isinstance(value, str) else ""
    else:
        text = " ".join(next(filter(None, groups), "") for groups in _QUOTED.findall(sample.prompt.text[:MAX_CHARS]))
    return text if plain(text) else None


def text_accuracy(text: str, wanted: str, around: Around) -> float:
    """1 - edit distance over length, 0 to 1, as ``ocr_accuracy`` describes it."""
    read, target = plain(text), plain(wanted)
    if around == "forgiven" and target in read:
        return 1.0
    length = len(target) if around == "forgiven" else max(len(target), len(read))
    return max(1 - Levenshtein.distance(read, target) / length, 0.0) if length else 1.0


def plain(text: str) -> str:
    """NFKC, case folded, without white space; cut at ``MAX_CHARS``."""
    return "".join(unicodedata.normalize("NFKC", text[:MAX_CHARS]).casefold().split())[:MAX_CHARS]
