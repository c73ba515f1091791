"""Images and frames of samples, and the texts and reference images that rewards compare them with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from mmgrpo.data.image_loading import load_image, load_image_column
from mmgrpo.types import Prompt, Sample


def score_image_texts(
    samples: Sequence[Sample],
    score: Callable[[list[Image.Image], list[str]], Sequence[float]],
    text_column: str | None = None,
) -> list[float | None]:
    """``score(images, texts)`` of the samples with image and text, in one call; None for the others."""
    texts = [prompt_text(sample.prompt, text_column) for sample in samples]
    rows = [i for i, s in enumerate(samples) if s.image is not None and texts[i] is not None]
    values: list[float | None] = [None] * len(samples)
    if rows:
        scores = score([to_rgb(samples[i].image) for i in rows], [texts[i] or "" for i in rows])
        for i, value in zip(rows, scores, strict=True):
            values[i] = float(value)
    return values


def prompt_text(prompt: Prompt, column: str | None) -> str | None:
    """The text of the prompt, or of a column; None if the value is not a text."""
    text = prompt.text if column is None else prompt.columns.get(column)
    return text if isinstance(text, str) else None


def to_rgb(image: Any) -> Image.Image:
    """An image as RGB; transparent pixels become white."""
    return image if isinstance(image, Image.Image) and image.mode == "RGB" else load_image(image)


def sample_frames(sample: Sample, count: int | None = None) -> list[Image.Image]:
    """The image, or ``count`` evenly spaced frames of the video including first and last; empty without either."""
    if sample.image is not None:
        return [to_rgb(sample.image)]
    frames = list(sample.video or ())
    return [to_rgb(frames[i]) for i in evenly_spaced(len(frames), count)]


def evenly_spaced(total: int, count: int | None) -> list[int]:
    """``count`` evenly spaced indices below ``total``, including first and last; all if ``count`` is None or larger.

    A count of 1 gives the middle index.
    """
    if count is None or count >= total:
        return list(range(total))
    if count == 1:
        return [total // 2]
    return [round(i * (total - 1) / (count - 1)) for i in range(count)]


def reference_image(prompt: Prompt, column: str | None) -> Image.Image | None:
    """The image in a column, or without a column the prompt's first image; None if missing."""
    if column is not None:
        return column_image(prompt, column)
    image = next(iter(prompt.images), None)
    return None if image is None else to_rgb(image)


def column_image(prompt: Prompt, column: str) -> Image.Image | None:
    """The first image in a column; None if missing.

    Raises: DataError if it cannot be opened, with the resolution of paths relative to the data file.
    """
    return next(iter(load_image_column(prompt.columns, column)), None)
