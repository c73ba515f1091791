"""Digits that are too small to read in a large image, with a tool that zooms in.

Each image has 128 x 128 pixels and a card with one real handwritten digit of 8 x 8. The model of
``quickstart/zoom-vlm`` receives 16 x 16 pixels of it, in which the digit is one pixel: the position of the card is
visible, the shape of the digit is not. The tool returns the region that the model names, which the processor enlarges.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from mmgrpo.examples.digits import SIDE, load_split
from mmgrpo.examples.language_models import CANVAS, ZOOM_PIECES
from PIL import Image

from mmgrpo.errors import DataError
from mmgrpo.tool_calls import FunctionCall, calls_in
from mmgrpo.types import Example, Prompt, Sample

QUESTION = "which digit is shown ?"
CARD = 24
"""Pixels of a side of a card; the digit is in its center."""
STEP = 8
"""Distance between positions of cards, in pixels."""
PAPER, LIGHT, INK = 60, 220, 200
"""Gray levels of the background and of a card, and the contrast of ink."""
MAX_AREA = 4
"""The largest right region, in areas of a digit."""

Box = tuple[int, int, int, int]


def questions(copies: int = 3, seed: int = 0) -> list[Prompt]:
    """Each training digit at ``copies`` random places, with the question which digit it is.

    The columns are ``answer``, the digit as text, and ``box``: its left, top, right and bottom in pixels.
    """
    split = load_split()
    return _questions(list(zip(split.train, split.train_labels, strict=True)) * copies, seed)


def held_out_questions(seed: int = 1) -> list[Prompt]:
    """The held-out digits, one place each."""
    split = load_split()
    return _questions(list(zip(split.held_out, split.held_out_labels, strict=True)), seed)


def examples(
    called: float = 0.3, misplaced: float = 0.2, zoomed: float = 0.5, copies: int = 3, seed: int = 0
) -> list[Example]:
    """Demonstrations of each question: the first turn, and for some of them the answer after a zoom.

    The fraction ``called`` of the first turns is a call, the others are the answer at once. The fraction ``misplaced``
    of all zooms has a region next to the digit. The fraction ``zoomed`` of the questions is answered after a zoom.

    Raises: DataError if a share is outside [0, 1].
    """
    if not all(0 <= share <= 1 for share in (called, misplaced, zoomed)):
        raise DataError(f"called, misplaced and zoomed must be in [0, 1], got {called}, {misplaced} and {zoomed}")
    rng = Random(seed)
    demonstrations = []
    for prompt in questions(copies, seed):
        answer = f"<answer>{prompt.columns['answer']}</answer>"
        box = _misplaced(prompt.columns["box"], rng) if rng.random() < misplaced else prompt.columns["box"]
        call = call_of(box)
        demonstrations.append(Example(prompt, call if rng.random() < called else answer))
        if rng.random() < zoomed:
            demonstrations.append(Example(_after_zoom(prompt, call, box), answer))
    return demonstrations


def called(samples: Sequence[Sample]) -> list[float]:
    """Reward for monitoring: whether the tool was called."""
    return [float(any(calls_in(turn) for turn in sample.turn_texts)) for sample in samples]


def right_zoom(samples: Sequence[Sample]) -> list[float]:
    """Reward for monitoring: whether a zoom showed the complete digit in a region of at most ``MAX_AREA`` digits."""
    return [
        float(any(_is_right(sample, call) for turn in sample.turn_texts for call in calls_in(turn)))
        for sample in samples
    ]


def call_of(box: Box) -> str:
    """A call of ``zoom`` for a region."""
    before, between, after = ZOOM_PIECES
    return f"{before}{between.join(map(str, box))}{after}"


def _is_right(sample: Sample, call: FunctionCall) -> bool:
    try:
        left, top, right, bottom = call.arguments["bbox_2d"]
        x0, y0, x1, y1 = sample.prompt.columns["box"]
        area = (right - left) * (bottom - top)
        return left <= x0 and top <= y0 and x1 <= right and y1 <= bottom and area <= MAX_AREA * SIDE**2
    except (ValueError, KeyError, TypeError):
        return False


def _questions(digits: Sequence[tuple[Any, Any]], seed: int) -> list[Prompt]:
    rng = Random(seed)
    return [_question(pixels, str(label), rng) for pixels, label in digits]


def _question(pixels: Any, answer: str, rng: Random) -> Prompt:
    """A question about a digit on a card at a random position."""
    left, top = (rng.randrange((CANVAS - CARD) // STEP + 1) * STEP for _ in range(2))
    gray = np.full((CANVAS, CANVAS), PAPER, np.float32)
    gray[top : top + CARD, left : left + CARD] = LIGHT
    left, top = left + (CARD - SIDE) // 2, top + (CARD - SIDE) // 2
    gray[top : top + SIDE, left : left + SIDE] -= INK * (pixels + 1) / 2
    image = Image.fromarray(np.rint(gray).astype(np.uint8))
    return Prompt(QUESTION, images=[image], columns={"answer": answer, "box": (left, top, left + SIDE, top + SIDE)})


def _misplaced(box: Box, rng: Random) -> Box:
    """A region of the same size, one or two digits away in each direction at most, but another one."""
    while True:
        left, top = (min(max(side + rng.randint(-2, 2) * SIDE, 0), CANVAS - SIDE) for side in box[:2])
        if (left, top) != box[:2]:
            return left, top, left + SIDE, top + SIDE


def _after_zoom(prompt: Prompt, call: str, box: Box) -> Prompt:
    """The conversation up to the image that the call returns."""
    image = {"type": "image"}
    messages = [
        {"role": "user", "content": [image, {"type": "text", "text": prompt.text}]},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": [image]},
    ]
    images = [*prompt.images, prompt.images[0].crop(box)]
    return Prompt(prompt.text, images=images, messages=messages, columns=prompt.columns)
