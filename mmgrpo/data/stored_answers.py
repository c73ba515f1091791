"""Answers of data rows, in their columns."""

from __future__ import annotations

from collections.abc import Mapping

from mmgrpo.errors import DataError
from mmgrpo.types import Example, Prompt


def answer_of(prompt: Prompt, column: str, *, writes: bool) -> Example:
    """The answer in a column of a data row as an example.

    Args:
        prompt: with the columns of its row.
        column: a text, or a message of the assistant as the only one of a list, as TRL stores preferences; of
            generators of images an image in any form that ``load_image`` takes, or a list of them, the frames of a
            video.
        writes: whether the policy generates texts; otherwise it generates images.

    Returns:
        The example.

    Raises:
        DataError: the row has no such column, or something else in it.
    """
    answer = prompt.columns.get(column)
    if writes and (text := _text_of(answer)) is not None:
        return Example(prompt, text=text)
    if writes or answer is None:
        target = "a text, or one message of the assistant" if writes else "an image, or the frames of a video"
        raise DataError(f"column {column!r} must have {target} as an answer; the row has {sorted(prompt.columns)}")
    from mmgrpo.data.image_loading import LazyImages, load_image  # methods are listed without PIL and numpy

    if isinstance(answer, list | tuple):
        return Example(prompt, video=list(LazyImages(answer)))
    return Example(prompt, image=load_image(answer))


def _text_of(answer: object) -> str | None:
    if isinstance(answer, list | tuple) and len(answer) == 1:
        (message,) = answer
        answer = message.get("content") if isinstance(message, Mapping) and message.get("role") == "assistant" else None
    return answer if isinstance(answer, str) else None
