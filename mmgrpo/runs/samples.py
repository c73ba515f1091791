"""Samples as files: what a run keeps of them for people and for the report."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from torch import Tensor

from mmgrpo.data.clips import encoded, filmstrip
from mmgrpo.data.media import opened
from mmgrpo.data.sounds import at_rate, heard, wav
from mmgrpo.errors import DataError
from mmgrpo.types import Audio, Prompt, Sample, Scores

logger = logging.getLogger(__name__)

SAMPLES = "samples.jsonl"
FRAMES = "frames.png"
MAX_FILMSTRIPS = 16
FILMSTRIP_FRAMES = 8
FILMSTRIP_HEIGHT = 64  # px
MAX_SIDE = 448  # of a prompt's picture, in pixels
EXACT_SIDE = 96  # up to here every pixel is kept
MAX_HEARD_S, MAX_HEARD_HZ = 30.0, 16_000  # of a prompt's sound
REFERENCES = ("solution", "answer", "ground_truth")


def write_samples(
    folder: Path,
    samples: Sequence[Sample],
    scores: Scores,
    *,
    advantage_B: Tensor | None = None,
    shown: Path | None = None,
) -> Path:
    """Writes ``samples.jsonl``, a line per sample, with its picture, video or sound (WAV of 16 bit) beside it.

    Videos are MP4 files; the frames of the first ones stand below each other in ``frames.png``.

    With a text, and with what was made of something shown, come the prompt's pictures and sounds, each once, named by
    the hash of its content.

    Args:
        folder: where to; made if it is not there.
        samples: the samples.
        scores: what the rewards said of each.
        advantage_B: what each was worth in training.
        shown: where prompts' pictures and sounds go; None: ``images/`` next to the folder.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = shown or folder.parent / "images"
    prompt_facts: dict[int, dict[str, Any]] = {}
    with (folder / SAMPLES).open("w") as lines:
        for row, sample in enumerate(samples):
            line: dict[str, Any] = {
                **_save_media(folder, row, sample),
                **identity(sample),
                "rewards": {
                    name: float(scores.value_BR[row, r])
                    for r, name in enumerate(scores.names)
                    if bool(scores.valid_BR[row, r])
                },
            }
            explained = {name: said[row] for name, said in scores.explanations.items() if said[row] is not None}
            line |= {"explanations": explained} if explained else {}
            line |= {} if sample.failure is None else {"failure": sample.failure}
            if sample.text is not None or len(sample.prompt.images) or len(sample.prompt.audios):
                if id(sample.prompt) not in prompt_facts:
                    prompt_facts[id(sample.prompt)] = _prompt_facts(sample.prompt, folder, pictures)
                line |= prompt_facts[id(sample.prompt)]
            if sample.text is not None:
                line["finished"] = sample.finished
                line |= {} if sample.tokens is None else {"num_tokens": len(sample.tokens)}
                line |= {"turns": _turns(sample)} if sample.turn_texts else {}
                line |= {"environment_error": sample.environment_error} if sample.environment_error else {}
            if advantage_B is not None:
                line["advantage"] = float(advantage_B[row])
            lines.write(json.dumps(line) + "\n")
    if videos := [sample.video for sample in samples if sample.video][:MAX_FILMSTRIPS]:
        _stacked([filmstrip(one, most=FILMSTRIP_FRAMES, height=FILMSTRIP_HEIGHT) for one in videos]).save(
            folder / FRAMES
        )
    return folder


def _stacked(strips: Sequence[Image.Image]) -> Image.Image:
    """Strips below each other, a few pixels apart."""
    framed = [ImageOps.expand(strip, 4, "white") for strip in strips]
    sheet = Image.new("RGB", (max(strip.width for strip in framed), sum(strip.height for strip in framed)), "white")
    top = 0
    for strip in framed:
        sheet.paste(strip, (0, top))
        top += strip.height
    return sheet


def _turns(sample: Sample) -> list[dict[str, Any]]:
    """The turns of an exchange: the state that each was written in, where it is known, and what was written."""
    states = sample.turn_keys or [None] * len(sample.turn_texts)
    return [{"state": state, "text": text} for state, text in zip(states, sample.turn_texts, strict=True)]


def identity(sample: Sample) -> dict[str, Any]:
    """Which sample of a step it is, and its text if it has one, as lines of files name it."""
    return {"prompt": sample.prompt.text, "group": sample.group, "member": sample.member, "text": sample.text}


@dataclass(frozen=True, slots=True)
class Facts:
    """What one process has to say of its samples.

    Attributes:
        completions: tokens of each, and whether it ended.
        variety: ``diversity_metrics``.
        num_exchanges: samples that wrote turns to an environment.
        num_failed_exchanges: those of them whose environment failed.
    """

    completions: Sequence[tuple[int, bool]]
    variety: Mapping[str, float]
    num_exchanges: int
    num_failed_exchanges: int


def facts_of(samples: Sequence[Sample]) -> Facts:
    """The facts of one process's samples."""
    completions = [(len(sample.tokens), sample.finished) for sample in samples if sample.tokens is not None]
    exchanges = [sample for sample in samples if sample.turn_texts]
    num_failed = sum(sample.environment_error is not None for sample in exchanges)
    return Facts(completions, diversity_metrics(samples), len(exchanges), num_failed)


def sample_metrics(parts: Sequence[Facts], scores: Scores) -> dict[str, float]:
    """Lengths, ends and variety of the whole job's samples, and how many boxes they state."""
    everyones = [one for part in parts for one in part.completions]
    found = completion_metrics([length for length, _ in everyones], [finished for _, finished in everyones])
    varied = {key: sum(part.variety[key] for part in parts) / len(parts) for key in parts[0].variety}
    num_exchanges, num_failed = (
        sum(getattr(part, name) for part in parts) for name in ("num_exchanges", "num_failed_exchanges")
    )
    if num_exchanges and num_failed == num_exchanges:
        logger.warning("the environments of all %d exchanges of this step failed: nothing is trained", num_failed)
    failed = {"environment/failed_frac": num_failed / num_exchanges} if num_exchanges else {}
    return found | varied | failed | (box_metrics(scores) if everyones else {})


def completion_metrics(lengths: Sequence[int], finished: Sequence[bool]) -> dict[str, float]:
    """What a run logs of its completions, by TRL's names; ``clipped_frac`` is the share cut off by the length limit.

    Args:
        lengths: in tokens, the end token included.
        finished: whether each came to an end of its own.

    Returns:
        The metrics; none for no completions.
    """
    if not lengths:
        return {}
    return {
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_frac": finished.count(False) / len(finished),
    }


def diversity_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """How different the members of a group are, on average over whole groups.

    ``samples/distinct_frac`` is the share of distinct texts: (number of them - 1) / (members - 1), 0 where all are the
    same. ``samples/pixel_spread`` is the mean distance of a pixel from the group's mean, 0 to 1, of pictures reduced to
    32 x 32 in grey; of a video its middle frame.
    """
    in_groups = sorted(samples, key=lambda sample: sample.group)
    groups = [list(members) for _, members in groupby(in_groups, key=lambda sample: sample.group)]
    groups = [members for members in groups if len(members) > 1]
    texts = [[s.text for s in members] for members in groups if all(s.text is not None for s in members)]
    pictures = [[_small(s) for s in members] for members in groups]
    drawn = [np.stack(known) for group in pictures if len(known := [p for p in group if p is not None]) == len(group)]
    found = {}
    if texts:
        shares = [(len(set(members)) - 1) / (len(members) - 1) for members in texts]
        found["samples/distinct_frac"] = sum(shares) / len(shares)
    if drawn:
        spreads = [float(np.abs(members - members.mean(0)).mean()) for members in drawn]
        found["samples/pixel_spread"] = sum(spreads) / len(spreads)
    return found


def box_metrics(scores: Scores) -> dict[str, float]:
    """``samples/mean_boxes``, how many boxes an answer states; nothing where no reward explains itself by boxes."""
    boxed = ([one for one in said if one is not None and "boxes" in one] for said in scores.explanations.values())
    known = next((said for said in boxed if said), [])
    stated = [one.get("num_boxes", sum(box.get("role") == "stated" for box in one["boxes"])) for one in known]
    return {"samples/mean_boxes": sum(stated) / len(stated)} if stated else {}


def _small(sample: Sample) -> np.ndarray | None:
    frame = sample.image if sample.image is not None else sample.video[len(sample.video) // 2] if sample.video else None
    return None if frame is None else np.asarray(frame.convert("L").resize((32, 32)), dtype=np.float32) / 255


def _prompt_facts(prompt: Prompt, folder: Path, pictures: Path) -> dict[str, Any]:
    references: Mapping[str, Any] = {name: prompt.columns.get(name) for name in REFERENCES}
    reference = next((value for value in references.values() if isinstance(value, str | int | float)), None)
    saved = [_save_shown(pictures, image) for image in prompt.images]
    where = "" if pictures == folder else f"../{pictures.name}/"
    return {
        "images": [None if one is None else f"{where}{one.name}" for one in saved],
        "image_sizes": [None if one is None else list(one.size) for one in saved],
        "num_videos": len(prompt.videos),
        **({"sounds": [_save_heard(pictures, where, sound) for sound in prompt.audios]} if len(prompt.audios) else {}),
        "reference": None if reference is None else str(reference),
    }


@dataclass(frozen=True, slots=True)
class _Saved:
    """A prompt's picture as it was saved, and its size before it was reduced."""

    name: str
    size: tuple[int, int]


def _save_shown(folder: Path, image: Any) -> _Saved | None:
    """A prompt's picture, reduced; None if it is of a form that only the policy can open."""
    try:
        small = opened(image)
    except DataError:
        return None
    size = small.size
    small.thumbnail((MAX_SIDE, MAX_SIDE))
    exact = max(small.size) <= EXACT_SIDE
    buffer = io.BytesIO()
    small.save(buffer, "PNG" if exact else "JPEG", quality=85)
    name = f"{hashlib.sha256(buffer.getvalue()).hexdigest()[:16]}.{'png' if exact else 'jpg'}"
    folder.mkdir(exist_ok=True)
    if not (folder / name).exists():
        (folder / name).write_bytes(buffer.getvalue())
    return _Saved(name, size)


def _save_heard(folder: Path, where: str, sound: Any) -> str | None:
    """The name of a prompt's sound, its beginning, as one channel; None if only the policy can open it."""
    try:
        whole = heard(sound)
    except DataError:
        return None
    begun = Audio(whole.values[:, : int(MAX_HEARD_S * whole.sampling_rate)], whole.sampling_rate)
    data = wav(at_rate(begun, min(MAX_HEARD_HZ, whole.sampling_rate), mono=True))
    name = f"{hashlib.sha256(data).hexdigest()[:16]}.wav"
    folder.mkdir(exist_ok=True)
    if not (folder / name).exists():
        (folder / name).write_bytes(data)
    return f"{where}{name}"


def _save_media(folder: Path, row: int, sample: Sample) -> dict[str, str | None]:
    """The names under which a sample's media are saved: ``file``, and ``sound`` where that has one beside it."""
    seen, sound = _save_seen(folder, row, sample), f"{row:04d}.wav"
    if sample.audio is None:
        return {"file": seen}
    (folder / sound).write_bytes(wav(sample.audio))
    return {"file": sound} if seen is None else {"file": seen, "sound": sound}


def _save_seen(folder: Path, row: int, sample: Sample) -> str | None:
    """The name of what people look at, beside which an array lies as it is."""
    if sample.array is not None:
        np.save(folder / f"{row:04d}.npy", sample.array.numpy())
    if sample.image is not None:
        sample.image.save(folder / f"{row:04d}.png")
        return f"{row:04d}.png"
    if sample.video:
        (folder / f"{row:04d}.mp4").write_bytes(encoded(sample.video, sample.frame_rate))
        return f"{row:04d}.mp4"
    return f"{row:04d}.npy" if sample.array is not None else None
