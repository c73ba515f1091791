"""Samples for a person to look at: drawn for one prompt, judged where a reward applies, in one flat folder."""

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
from mmgrpo.runs.folder import claimed
from mmgrpo.runs.samples import SAMPLES, write_samples
from mmgrpo.scoring import NamedReward, Scorer
from mmgrpo.types import Plan, Prompt, Sample, Scores

SHEET = "sheet.png"
TILE = 128  # px at least; smaller pictures are enlarged smoothly
LINE = 12  # px of a line under a picture
COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a prompt gave.

    Attributes:
        samples: in the order of their members.
        scores: what those rewards said that could be asked.
        unasked: why the others were not, by name.
    """

    samples: Sequence[Sample]
    scores: Scores
    unasked: dict[str, str]


def draw(
    policy: Policy,
    prompt: Prompt,
    rewards: Sequence[NamedReward],
    *,
    count: int,
    seed: int,
    noise: bool,
    plan: Plan | None = None,
) -> Drawn:
    """Draws samples of one prompt and asks every reward about them; one that fails is named and left out.

    Args:
        policy: what draws.
        prompt: what is asked.
        rewards: what judges; a prompt typed by hand may lack the columns that some need.
        count: how many.
        seed: of the draw.
        noise: whether decisions are drawn as in training.
        plan: whose environment the samples are exchanges with; None: there is none.

    Returns:
        Samples and scores.
    """
    needed = Scorer(rewards).needs_values if rewards else ()
    plan = replace(plan or Plan(), stochastic=None if noise else (), sample_values=needed)
    samples = policy.rollout([prompt], group_size=count, seed=seed, plan=plan).samples
    said: list[Scores] = []
    unasked: dict[str, str] = {}
    for reward in rewards:
        try:
            scores = Scorer([reward], max_failure_frac=0.0)(samples)
        except MmgrpoError as error:
            unasked[reward.name] = str(error)
            continue
        if bool(scores.valid_BR.any()):
            said.append(scores)
        else:
            failures = sorted({sample.failure for sample in samples if sample.failure is not None})
            unasked[reward.name] = "; ".join(failures) or "it does not apply to a prompt without its columns"
    return Drawn([shown_by(policy, sample) for sample in samples], _beside(said, count), unasked)


def shown_by(policy: Policy, sample: Sample) -> Sample:
    """The sample with its policy's preview, where the policy is a ``SupportsPreviews``."""
    return policy.preview(sample) if isinstance(policy, SupportsPreviews) else sample


def write(drawn: Drawn, folder: Path) -> Path:
    """Writes media, ``samples.jsonl`` and, of what can be seen, a contact sheet with scores.

    Returns the folder: one beside it where samples lie in it already.
    """
    folder = claimed(folder) if (folder / SAMPLES).exists() else folder
    write_samples(folder, drawn.samples, drawn.scores, shown=folder)
    pictures = [picture_of(sample, moment=0.0) for sample in drawn.samples]
    if all(picture is not None for picture in pictures):
        captions = [captions_of(drawn.scores, row) for row in range(len(pictures))]
        contact_sheet([picture for picture in pictures if picture is not None], captions).save(folder / SHEET)
    return folder


def _beside(parts: Sequence[Scores], count: int) -> Scores:
    """The scores of several rewards for the same samples as columns of one."""
    nothing = torch.zeros(count, 0)
    return Scores(
        names=tuple(name for part in parts for name in part.names),
        weight_R=torch.cat([torch.zeros(0), *(part.weight_R for part in parts)]),
        value_BR=torch.cat([nothing, *(part.value_BR for part in parts)], dim=1),
        valid_BR=torch.cat([nothing.bool(), *(part.valid_BR for part in parts)], dim=1),
        explanations={name: notes for part in parts for name, notes in part.explanations.items()},
        scopes={name: said for part in parts for name, said in part.scopes.items()},
    )


def picture_of(sample: Sample, *, moment: float = 0.5) -> Image.Image | None:
    """A picture, a video's frame at a moment (0 its first, 0.5 its middle), a sound's spectrogram; None of a text."""
    if sample.image is not None:
        return sample.image
    if sample.video:
        return sample.video[int(moment * len(sample.video))]
    return None if sample.audio is None else spectrogram(sample.audio)


def captions_of(scores: Scores, row: int) -> list[str]:
    """A line per reward that applies to the sample."""
    said = zip(scores.names, scores.value_BR[row].tolist(), scores.valid_BR[row].tolist(), strict=True)
    return [f"{name} {value:.3g}" for name, value, valid in said if valid]


def contact_sheet(pictures: Sequence[Image.Image], captions: Sequence[Sequence[str]]) -> Image.Image:
    """Pictures of one size in rows of at most eight, each over its captions."""
    factor = max(1, ceil(TILE / max(pictures[0].size)))
    width, height = pictures[0].width * factor, pictures[0].height * factor
    lines = max((len(under) for under in captions), default=0)
    pitch = height + LINE * lines + 8
    columns = min(COLUMNS, len(pictures))
    sheet = Image.new("RGB", (columns * (width + 8) + 8, ceil(len(pictures) / columns) * pitch + 8), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (picture, under) in enumerate(zip(pictures, captions, strict=True)):
        left, top = 8 + number % columns * (width + 8), 8 + number // columns * pitch
        sheet.paste(picture.convert("RGB").resize((width, height), Image.Resampling.BICUBIC), (left, top))
        for line, text in enumerate(under):
            pen.text((left, top + height + LINE * line), text, fill="black")
    return sheet
