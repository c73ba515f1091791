"""Samples of a policy that draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from mmgrpo.types import Prompt, Sample, Score


def drew(image: Image.Image | None, text: str = "a red cat", **columns: Any) -> Sample:
    """A sample with this image."""
    return Sample(Prompt(text, columns=columns), group=0, member=0, image=image)


def filmed(frames: Sequence[Image.Image] | None, text: str = "a red cat", **columns: Any) -> Sample:
    """A sample with these frames."""
    return Sample(Prompt(text, columns=columns), group=0, member=0, video=frames)


def noise(seed: int, width: int = 24, height: int = 20) -> Image.Image:
    """An RGB image of which no two pixels go together."""
    pixels = np.random.RandomState(seed).randint(0, 256, size=(height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def numbers(scores: Sequence[float | Score | None]) -> list[float | None]:
    """The numbers that a reward gave, with or without what they rest on."""
    return [None if score is None else float(score) for score in scores]


def explanations(scores: Sequence[float | Score | None]) -> list[dict[str, Any] | None]:
    """The explanations of scores."""
    return [dict(score.explanation) if isinstance(score, Score) else None for score in scores]
