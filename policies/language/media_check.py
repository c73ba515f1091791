"""Checks that every image, video and audio of a prompt reaches the tensors of a model: nothing is dropped silently.

The rendered text must change if a media part is removed from the messages, and the processor's tensors must change if
the content of a medium changes. Both are checked once per arrangement of media, on the first prompt that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from mmgrpo.samples import MEDIA
from mmgrpo.types import Prompt

from .audio_inputs import ARGUMENTS

MARKS = ("image_token", "video_token", "audio_token", "boi_token")
"""Attributes of processors with the placeholder text of a medium."""

Messages = Sequence[Mapping[str, Any]]


def media_arrangement(prompt: Prompt, processor: Any) -> tuple[Any, ...]:
    """Key of prompts whose media are rendered and processed alike: the roles and types of their parts."""
    turns = [
        (turn["role"], *(part.get("type") for part in turn["content"]))
        for turn in prompt.messages or ()
        if not isinstance(turn["content"], str)
    ]
    marks = {mark for name in MARKS if isinstance(mark := getattr(processor, name, None), str)}
    counts = [len(getattr(prompt, name)) for name in MEDIA.values()]
    return (*counts, *turns, *((mark, prompt.text.count(mark)) for mark in sorted(marks)))


def kinds_dropped_by_template(messages: Messages, render: Callable[[Messages], str]) -> list[str]:
    """Kinds of media with a part for which a chat template writes nothing.

    Args:
        messages: messages with media parts.
        render: the chat template.

    Returns:
        ``image``, ``video`` or ``audio``, each once.
    """
    full_text = render(messages)
    dropped: dict[str, None] = {}
    for turn_index, turn in enumerate(messages):
        if isinstance(turn["content"], str):
            continue
        for index, part in enumerate(turn["content"]):
            kind = part.get("type")
            if kind not in MEDIA or kind in dropped:
                continue
            rest = [*turn["content"][:index], *turn["content"][index + 1 :]]
            shorter = [*messages[:turn_index], {**turn, "content": rest}, *messages[turn_index + 1 :]]
            if _rendered(shorter, render) == full_text:
                dropped[kind] = None
    return list(dropped)


def kinds_dropped_by_processor(
    arguments: Mapping[str, Any], tensors: Mapping[str, Any], process: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> list[str]:
    """Kinds of media whose first or last item has no effect on a processor's tensors.

    Args:
        arguments: of the processor's call, with ``images``, ``videos`` and audio.
        tensors: the processor's output.
        process: calls it with other arguments.

    Returns:
        ``image``, ``video`` or ``audio``, each once.
    """
    dropped = []
    for kind in MEDIA:
        name = next((n for n in ([MEDIA[kind]] if kind != "audio" else ARGUMENTS) if n in arguments), None)
        if name is None:
            continue
        is_nested = kind != "audio"
        media = list(arguments[name][0] if is_nested else arguments[name])
        for index in {0, len(media) - 1}:
            changed = [*media[:index], _changed(media[index]), *media[index + 1 :]]
            other = process({**arguments, name: [changed] if is_nested else changed})
            if _equal(tensors, other):
                dropped.append(kind)
                break
    return dropped


def media_probe(kind: str, mark: str = "") -> Prompt:
    """A prompt with one small medium and its placeholder text, to test whether a model takes the kind."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
    frames = [Image.fromarray(frame) for frame in pixels]
    audio = {"array": np.sin(np.arange(16000) * 0.05), "sampling_rate": 16000}
    media: dict[str, Any] = {"image": frames[0], "video": frames, "audio": audio}
    inputs = {name: [media[media_kind]] if media_kind == kind else [] for media_kind, name in MEDIA.items()}
    text = f"{mark}what is this"
    return Prompt(text, images=inputs["images"], videos=inputs["videos"], audios=inputs["audios"])


def _rendered(messages: Messages, render: Callable[[Messages], str]) -> str | None:
    """The text; None if the template rejects messages without that part, and so reads it."""
    try:
        return render(messages)
    except Exception:  # of the template's own, jinja2's among them
        return None


def _changed(medium: Any) -> Any:
    """Other content of the same size: inverted images and frames, another waveform."""
    if isinstance(medium, Image.Image):
        return ImageOps.invert(medium)
    if isinstance(medium, Tensor):
        return 255 - medium
    return np.sin(np.arange(len(medium)) * 0.3).astype(medium.dtype)


def _equal(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    if set(tensors) != set(others):
        return False
    return all(_same(value, others[name]) for name, value in tensors.items())


def _same(value: Any, other: Any) -> bool:
    if value is None or other is None:
        return value is other
    first, second = torch.as_tensor(value), torch.as_tensor(other)
    return first.shape == second.shape and torch.equal(first, second)
