"""Samples of one prompt, scored by the rewards that apply, in one flat folder with a contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from PIL import Image, ImageDraw

from mmgrpo.data.spectrograms import spectrogram
from mmgrpo.policy import Policy, SupportsPreviews
from mmgrpo.runs.folder import create_numbered_folder
from mmgrpo.runs.sample_files import SAMPLES, write_samples
from mmgrpo.types import Sample, Scores

SHEET = "sheet.png"
TILE = 128  # minimal size in px; smaller images are upscaled
LINE = 12  # px of a caption line
COLUMNS = 8


@dataclass(frozen=True, slots=True)
class PromptSamples:
    """Samples of a prompt.

    Attributes:
        samples: samples in member order, those of each turn of a conversation together.
        scores: scores of the rewards that apply.
        unscored: the reason for each other reward, by name.
    """

    samples: Sequence[Sample]
    scores: Scores
    unscored: dict[str, str]


def with_preview(policy: Policy, sample: Sample) -> Sample:
    """Returns the sample with its preview, if the policy is a ``SupportsPreviews``."""
    return policy.preview(sample) if isinstance(policy, SupportsPreviews) else sample


def write_prompt_samples(sampled: PromptSamples, folder: Path) -> Path:
    """Writes media, ``samples.jsonl`` and, if all samples have an image, a contact sheet with scores.

    Returns the folder: a new one with a number appended if it holds samples already.
    """
    folder = create_numbered_folder(folder) if (folder / SAMPLES).exists() else folder
    write_samples(folder, sampled.samples, sampled.scores, prompt_media=folder)
    images = [image_of(sample, moment=0.0) for sample in sampled.samples]
    if all(image is not None for image in images):
        captions = [captions_of(sampled.scores, row) for row in range(len(images))]
        contact_sheet([image for image in images if image is not None], captions).save(folder / SHEET)
    return folder


def image_of(sample: Sample, *, moment: float = 0.5) -> Image.Image | None:
    """Returns the image, a video frame (moment 0: the first, 0.5: the middle) or the spectrogram; None for a text."""
    if sample.image is not None:
        return sample.image
    if sample.video:
        return sample.video[int(moment * len(sample.video))]
    return None if sample.audio is None else spectrogram(sample.audio)


def captions_of(scores: Scores, row: int) -> list[str]:
    """Returns a line per reward that applies to the sample."""
    values = zip(scores.names, scores.value_BR[row].tolist(), scores.valid_BR[row].tolist(), strict=True)
    return [f"{name} {value:.3g}" for name, value, is_valid in values if is_valid]


def contact_sheet(images: Sequence[Image.Image], captions: Sequence[Sequence[str]]) -> Image.Image:
    """Returns images of one size in rows of at most eight, each above its captions."""
    factor = max(1, ceil(TILE / max(images[0].size)))
    width, height = images[0].width * factor, images[0].height * factor
    lines = max((len(caption) for caption in captions), default=0)
    pitch = height + LINE * lines + 8
    columns = min(COLUMNS, len(images))
    sheet = Image.new("RGB", (columns * (width + 8) + 8, ceil(len(images) / columns) * pitch + 8), "white")
    canvas = ImageDraw.Draw(sheet)
    for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
        left, top = 8 + number % columns * (width + 8), 8 + number // columns * pitch
        sheet.paste(image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC), (left, top))
        for line, text in enumerate(caption):
            canvas.text((left, top + height + LINE * line), text, fill="black")
    return sheet
