"""What rewards look at: the pictures and frames of samples, and the texts that they are held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from mmgrpo.data.media import opened, opened_column
from mmgrpo.types import Prompt, Sample


def score_image_texts(
    samples: Sequence[Sample],
    score: Callable[[list[Image.Image], list[str]], Sequence[float]],
    text_column: str | None = None,
) -> list[float | None]:
    """``score(images, texts)`` of the samples that have both, in one call; None for the others."""
    texts = [text_of(sample.prompt, text_column) for sample in samples]
    rows = [i for i, s in enumerate(samples) if s.image is not None and texts[i] is not None]
    values: list[float | None] = [None] * len(samples)
    if rows:
        scores = score([as_rgb(samples[i].image) for i in rows], [texts[i] or "" for i in rows])
        for i, value in zip(rows, scores, strict=True):
            values[i] = float(value)
    return values


def text_of(prompt: Prompt, column: str | None) -> str | None:
    """The prompt's text, or that of a column; None where the row has no text there."""
    text = prompt.text if column is None else prompt.columns.get(column)
    return text if isinstance(text, str) else None


def as_rgb(image: Any) -> Image.Image:
    """A picture in RGB; what is transparent becomes white."""
    return image if isinstance(image, Image.Image) and image.mode == "RGB" else opened(image)


def frames_of(sample: Sample, count: int | None = None) -> list[Image.Image]:
    """The picture, or ``count`` frames of the video at even distances, first and last among them; else nothing."""
    if sample.image is not None:
        return [as_rgb(sample.image)]
    frames = list(sample.video or ())
    return [as_rgb(frames[i]) for i in evenly_spaced(len(frames), count)]


def evenly_spaced(total: int, count: int | None) -> list[int]:
    """``count`` of the numbers below ``total`` at even distances, first and last among them; all if None or fewer.

    One is the middle one.
    """
    if count is None or count >= total:
        return list(range(total))
    if count == 1:
        return [total // 2]
    return [round(i * (total - 1) / (count - 1)) for i in range(count)]


def reference_image(prompt: Prompt, column: str | None) -> Image.Image | None:
    """The picture in a column, or without one the prompt's first; None where there is none."""
    if column is not None:
        return column_image(prompt, column)
    image = next(iter(prompt.images), None)
    return None if image is None else as_rgb(image)


def column_image(prompt: Prompt, column: str) -> Image.Image | None:
    """The picture in a column, the first where it holds several; None where there is none.

    Raises: DataError if it cannot be opened, and how a path is found that lies beside the data file.
    """
    return next(iter(opened_column(prompt.columns, column)), None)
