"""What an evaluation drew, in the trackers: pictures over their scores, and texts in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from mmgrpo.distributed.trackers import Trackers
from mmgrpo.runs.drawing import captions_of, contact_sheet, picture_of
from mmgrpo.types import Sample, Scores

MAX_SHOWN = 16
"""Samples of an evaluation that a tracker gets; the run folder keeps ``evaluation.pictures``."""
EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class _Texts:
    """A table: what was asked, what was answered, and what each judge said."""

    columns: list[str]
    rows: list[Any]


def show(trackers: Trackers, step: int, samples: Sequence[Sample], scores: Scores, *, task: str = "") -> None:
    """Hands an evaluation's samples to every tracker of the run.

    Args:
        trackers: of the run.
        step: of the run.
        samples: pictures, videos, of which the middle frame is shown, or texts.
        scores: what the judges said of them.
        task: of a mixed run: in the names under which they are found.
    """
    if not samples or not trackers.is_active:
        return
    drawn = [(picture, row) for row, sample in enumerate(samples) if (picture := picture_of(sample)) is not None]
    pictures, captions = [picture for picture, _ in drawn], [captions_of(scores, row) for _, row in drawn]
    texts, under = _texts(samples, scores), f"{EVALUATION}/{task}" if task else EVALUATION
    prompts = [samples[row].prompt.text for _, row in drawn]

    def say(tracker: Any) -> None:
        if tracker.name == "tensorboard":
            _in_tensorboard(tracker.tracker, under, step, pictures, captions, texts)
        elif tracker.name == "wandb":
            told = [", ".join([p, *c]) for p, c in zip(prompts, captions, strict=True)]
            _in_wandb(tracker.tracker, under, step, pictures, told, texts)
        elif tracker.name == "trackio":
            _in_trackio(tracker.tracker, under, step, pictures, captions, texts)

    trackers.call(say)


def _texts(samples: Sequence[Sample], scores: Scores) -> _Texts | None:
    written = [row for row, sample in enumerate(samples) if sample.text is not None]
    if not written:
        return None
    value_BR, valid_BR = scores.value_BR.tolist(), scores.valid_BR.tolist()
    said = [[v if known else None for v, known in zip(value_BR[r], valid_BR[r], strict=True)] for r in written]
    rows = [[samples[r].prompt.text, samples[r].text, *values] for r, values in zip(written, said, strict=True)]
    return _Texts(["prompt", "text", *scores.names], rows)


def _in_tensorboard(
    writer: Any, under: str, step: int, pictures: list[Image.Image], captions: list[list[str]], texts: _Texts | None
) -> None:
    if pictures:
        writer.add_image(f"{under}/pictures", np.asarray(contact_sheet(pictures, captions)), step, dataformats="HWC")
    if texts is not None:
        rows = [texts.columns, ["---"] * len(texts.columns), *texts.rows]
        writer.add_text(f"{under}/texts", "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows), step)
    writer.flush()


def _in_wandb(
    run: Any, under: str, step: int, pictures: list[Image.Image], captions: list[str], texts: _Texts | None
) -> None:
    import wandb

    shown: dict[str, Any] = {}
    if pictures:
        shown[f"{under}/pictures"] = [
            wandb.Image(one, caption=said) for one, said in zip(pictures, captions, strict=True)
        ]
    if texts is not None:
        shown[f"{under}/texts"] = wandb.Table(columns=[*texts.columns], data=texts.rows, allow_mixed_types=True)
    run.log(shown, step=step)


def _in_trackio(
    run: Any, under: str, step: int, pictures: list[Image.Image], captions: list[list[str]], texts: _Texts | None
) -> None:
    import trackio

    shown: dict[str, Any] = {}
    if pictures:
        shown[f"{under}/pictures"] = trackio.Image(contact_sheet(pictures, captions), caption=f"step {step}")
    if texts is not None:
        shown[f"{under}/texts"] = trackio.Table(columns=texts.columns, data=texts.rows)
    run.log(shown, step=step)


def _cell(value: str | float | None) -> str:
    """A value in a Markdown table."""
    text = "" if value is None else value if isinstance(value, str) else f"{value:.4g}"
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", "<br>")
