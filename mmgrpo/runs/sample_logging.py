"""Logs the samples of an evaluation to the trackers: images with their scores, and texts in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from mmgrpo.distributed.trackers import Trackers
from mmgrpo.runs.prompt_samples import captions_of, contact_sheet, image_of
from mmgrpo.types import Sample, Scores

MAX_LOGGED_SAMPLES = 16
"""Maximal number of samples of an evaluation in a tracker; the run folder keeps ``evaluation.saved_samples``."""
EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class _TextTable:
    """A table with prompt, text and the value of each reward."""

    columns: list[str]
    rows: list[Any]


def log_samples(trackers: Trackers, step: int, samples: Sequence[Sample], scores: Scores, *, task: str = "") -> None:
    """Logs the samples of an evaluation to every tracker of the run.

    Args:
        trackers: trackers of the run.
        step: step of the run.
        samples: images, videos (their middle frame is logged) or texts.
        scores: scores of the evaluation rewards.
        task: name of the task in a mixed run, which becomes part of the keys.
    """
    if not samples or not trackers.is_active:
        return
    images_rows = [(image, row) for row, sample in enumerate(samples) if (image := image_of(sample)) is not None]
    images, captions = [image for image, _ in images_rows], [captions_of(scores, row) for _, row in images_rows]
    table, prefix = _text_table(samples, scores), f"{EVALUATION}/{task}" if task else EVALUATION
    prompts = [samples[row].prompt.text for _, row in images_rows]

    def send(tracker: Any) -> None:
        if tracker.name == "tensorboard":
            _to_tensorboard(tracker.tracker, prefix, step, images, captions, table)
        elif tracker.name == "wandb":
            full_captions = [", ".join([p, *c]) for p, c in zip(prompts, captions, strict=True)]
            _to_wandb(tracker.tracker, prefix, step, images, full_captions, table)
        elif tracker.name == "trackio":
            _to_trackio(tracker.tracker, prefix, step, images, captions, table)

    trackers.call(send)


def _text_table(samples: Sequence[Sample], scores: Scores) -> _TextTable | None:
    text_rows = [row for row, sample in enumerate(samples) if sample.text is not None]
    if not text_rows:
        return None
    value_BR, valid_BR = scores.value_BR.tolist(), scores.valid_BR.tolist()
    values = [
        [v if is_valid else None for v, is_valid in zip(value_BR[r], valid_BR[r], strict=True)] for r in text_rows
    ]
    rows = [[samples[r].prompt.text, samples[r].text, *row] for r, row in zip(text_rows, values, strict=True)]
    return _TextTable(["prompt", "text", *scores.names], rows)


def _to_tensorboard(
    writer: Any, prefix: str, step: int, images: list[Image.Image], captions: list[list[str]], table: _TextTable | None
) -> None:
    if images:
        writer.add_image(f"{prefix}/images", np.asarray(contact_sheet(images, captions)), step, dataformats="HWC")
    if table is not None:
        rows = [table.columns, ["---"] * len(table.columns), *table.rows]
        writer.add_text(f"{prefix}/texts", "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows), step)
    writer.flush()


def _to_wandb(
    run: Any, prefix: str, step: int, images: list[Image.Image], captions: list[str], table: _TextTable | None
) -> None:
    import wandb

    values: dict[str, Any] = {}
    if images:
        values[f"{prefix}/images"] = [
            wandb.Image(image, caption=caption) for image, caption in zip(images, captions, strict=True)
        ]
    if table is not None:
        values[f"{prefix}/texts"] = wandb.Table(columns=[*table.columns], data=table.rows, allow_mixed_types=True)
    run.log(values, step=step)


def _to_trackio(
    run: Any, prefix: str, step: int, images: list[Image.Image], captions: list[list[str]], table: _TextTable | None
) -> None:
    import trackio

    values: dict[str, Any] = {}
    if images:
        values[f"{prefix}/images"] = trackio.Image(contact_sheet(images, captions), caption=f"step {step}")
    if table is not None:
        values[f"{prefix}/texts"] = trackio.Table(columns=table.columns, data=table.rows)
    run.log(values, step=step)


def _cell(value: str | float | None) -> str:
    """Formats a value for a Markdown table."""
    text = "" if value is None else value if isinstance(value, str) else f"{value:.4g}"
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", "<br>")
