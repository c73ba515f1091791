"""Samples of one prompt, scored by the rewards that apply, in one flat folder with a contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from mmgrpo.data.spectrograms import spectrogram
from mmgrpo.errors import MmgrpoError
from mmgrpo.policy import Policy, SupportsPreviews
from mmgrpo.runs.folder import create_numbered_folder
from mmgrpo.runs.sample_files import SAMPLES, write_samples
from mmgrpo.scoring import NamedReward, Scorer
from mmgrpo.types import Plan, Prompt, Sample, Scores

SHEET = "sheet.png"
TILE = 128  # minimal size in px; smaller images are upscaled
LINE = 12  # px of a caption line
COLUMNS = 8


@dataclass(frozen=True, slots=True)
class PromptSamples:
    """Samples of a prompt.

    Attributes:
        samples: samples in member order.
        scores: scores of the rewards that apply.
        unscored: the reason for each other reward, by name.
    """

    samples: Sequence[Sample]
    scores: Scores
    unscored: dict[str, str]


def sample_prompt(
    policy: Policy,
    prompt: Prompt,
    rewards: Sequence[NamedReward],
    *,
    count: int,
    seed: int,
    noise: bool,
    plan: Plan | None = None,
) -> PromptSamples:
    """Samples one prompt and scores the samples; leaves out a reward that fails, with its error.

    Args:
        policy: the policy.
        prompt: the prompt; one from the command line may lack columns that some rewards need.
        rewards: the rewards.
        count: number of samples.
        seed: seed of the rollout.
        noise: whether to sample stochastically, as in training.
        plan: the plan whose environment the samples interact with; None: no environment.

    Returns:
        Samples and scores.
    """
    needed = Scorer(rewards).needs_values if rewards else ()
    plan = replace(plan or Plan(), stochastic=None if noise else (), sample_values=needed)
    samples = policy.rollout([prompt], group_size=count, seed=seed, plan=plan).samples
    scores_of_rewards: list[Scores] = []
    unscored: dict[str, str] = {}
    for reward in rewards:
        try:
            scores = Scorer([reward], max_failure_frac=0.0)(samples)
        except MmgrpoError as error:
            unscored[reward.name] = str(error)
            continue
        if bool(scores.valid_BR.any()):
            scores_of_rewards.append(scores)
        else:
            failures = sorted({sample.failure for sample in samples if sample.failure is not None})
            unscored[reward.name] = "; ".join(failures) or "it does not apply to a prompt without its columns"
    previews = [with_preview(policy, sample) for sample in samples]
    return PromptSamples(previews, _concat_rewards(scores_of_rewards, count), unscored)


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


def _concat_rewards(parts: Sequence[Scores], count: int) -> Scores:
    """Concatenates the scores of several rewards for the same samples."""
    empty = torch.zeros(count, 0)
    return Scores(
        names=tuple(name for part in parts for name in part.names),
        weight_R=torch.cat([torch.zeros(0), *(part.weight_R for part in parts)]),
        value_BR=torch.cat([empty, *(part.value_BR for part in parts)], dim=1),
        valid_BR=torch.cat([empty.bool(), *(part.valid_BR for part in parts)], dim=1),
        explanations={name: notes for part in parts for name, notes in part.explanations.items()},
        scopes={name: scopes for part in parts for name, scopes in part.scopes.items()},
    )


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
