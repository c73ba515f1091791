"""Sample files of a run, and metrics about samples."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from torch import Tensor

from mmgrpo.data.audio_loading import encode_wav, load_audio, resample_audio
from mmgrpo.data.clips import FRAME_RATE, encoded, filmstrip
from mmgrpo.data.image_loading import load_image
from mmgrpo.data.videos import FILES, open_video
from mmgrpo.errors import DataError
from mmgrpo.samples import MEDIA, TASK_TEMPLATE, Turn
from mmgrpo.types import Audio, Prompt, Sample, Scores

logger = logging.getLogger(__name__)

SAMPLES = "samples.jsonl"
FRAMES = "frames.png"
UNREADABLE = "unreadable"
MAX_FILMSTRIPS = 16
FILMSTRIP_FRAMES = 8
FILMSTRIP_HEIGHT = 64  # px
MAX_SIDE = 448  # px of a prompt's image
LOSSLESS_SIDE = 96  # up to this size the image is saved without loss
MAX_AUDIO_S, MAX_AUDIO_HZ = 30.0, 16_000  # of a prompt's audio
MAX_VIDEO_S, MAX_VIDEO_FRAMES = 30.0, 32  # of a prompt's video
REFERENCES = ("solution", "answer", "ground_truth")


def write_samples(
    folder: Path,
    samples: Sequence[Sample],
    scores: Scores,
    *,
    advantage_B: Tensor | None = None,
    prompt_media: Path | None = None,
) -> Path:
    """Writes ``samples.jsonl``, a line per sample, and the image, video (MP4) or audio (16-bit WAV) of each sample.

    ``frames.png`` has filmstrips of the first videos. Samples with a text, or whose prompt has media, come with the
    media of the prompt and of the environment's turns, each saved once under the hash of its content.

    Args:
        folder: the folder; created if missing.
        samples: the samples.
        scores: their scores.
        advantage_B: their advantages in training.
        prompt_media: folder for the media of prompts and turns; None: ``images/`` next to the folder.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    media_folder = prompt_media or folder.parent / "images"
    prompt_fields: dict[int, dict[str, Any]] = {}
    with (folder / SAMPLES).open("w") as lines:
        for row, sample in enumerate(samples):
            line: dict[str, Any] = {
                **_save_media(folder, row, sample),
                **identity(sample),
                **_origin(sample),
                "rewards": {
                    name: float(scores.value_BR[row, r])
                    for r, name in enumerate(scores.names)
                    if bool(scores.valid_BR[row, r])
                },
            }
            explanations = {name: notes[row] for name, notes in scores.explanations.items() if notes[row] is not None}
            line |= {"explanations": explanations} if explanations else {}
            line |= {} if sample.failure is None else {"failure": sample.failure}
            if sample.text is not None or any(len(getattr(sample.prompt, name)) for name in MEDIA.values()):
                if id(sample.prompt) not in prompt_fields:
                    prompt_fields[id(sample.prompt)] = _save_prompt(sample.prompt, folder, media_folder)
                line |= prompt_fields[id(sample.prompt)]
            if sample.text is not None:
                line["finished"] = sample.finished
                line |= {"partial": True} if sample.is_partial else {}
                line |= {} if sample.tokens is None else {"num_tokens": sample.num_tokens}
                line |= {"turns": _turns(sample, folder, media_folder)} if sample.turn_texts else {}
                line |= {"environment_error": sample.environment_error} if sample.environment_error else {}
            if advantage_B is not None:
                line["advantage"] = float(advantage_B[row])
            lines.write(json.dumps(line) + "\n")
    if videos := [sample.video for sample in samples if sample.video][:MAX_FILMSTRIPS]:
        _stacked([filmstrip(video, most=FILMSTRIP_FRAMES, height=FILMSTRIP_HEIGHT) for video in videos]).save(
            folder / FRAMES
        )
    return folder


def _stacked(strips: Sequence[Image.Image]) -> Image.Image:
    """Stacks strips vertically, a few pixels apart."""
    framed = [ImageOps.expand(strip, 4, "white") for strip in strips]
    sheet = Image.new("RGB", (max(strip.width for strip in framed), sum(strip.height for strip in framed)), "white")
    top = 0
    for strip in framed:
        sheet.paste(strip, (0, top))
        top += strip.height
    return sheet


def _turns(sample: Sample, folder: Path, media_folder: Path) -> list[dict[str, Any]]:
    """The turns of a conversation: state (None if unknown), text, reward, and the reply; of the last turn, which the
    policy does not read, if it has a text or media.
    """
    N = len(sample.turn_texts)
    states, rewards = sample.turn_keys or [None] * N, sample.turn_rewards or [None] * N
    replies = sample.turn_replies or [None] * N
    turns: list[dict[str, Any]] = []
    numbered = enumerate(zip(states, sample.turn_texts, rewards, replies, strict=True), 1)
    for number, (state, text, reward, reply) in numbered:
        turn: dict[str, Any] = {"state": state, "text": text}
        turn |= {} if reward is None else {"reward": reward}
        if reply is not None and (reply.text or reply.num_media):
            is_unread = {"unread": True} if number == N else {}
            turn["reply"] = {"text": reply.text, **_save_inputs(reply, folder, media_folder), **is_unread}
        turns.append(turn)
    return turns


def identity(sample: Sample) -> dict[str, Any]:
    """Returns the fields that identify a sample in log lines, and its text."""
    return {"prompt": sample.prompt.text, "group": sample.group, "member": sample.member, "text": sample.text}


def _origin(sample: Sample) -> dict[str, Any]:
    """The prompt template of a sample, unless it is that of its task, and group and member of the samples that it
    inserts."""
    is_of_task = sample.prompt_template in (None, TASK_TEMPLATE)
    origin = {} if is_of_task else {"prompt_template": sample.prompt_template}
    return {**origin, "after": [list(identity) for identity in sample.after]} if sample.after else origin


class ToolUse(NamedTuple):
    """The calls of a tool: their number, the number of failed ones, and their duration in seconds."""

    calls: int
    failures: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SampleStats:
    """Statistics of the samples of one process.

    Attributes:
        completions: number of tokens of each sample, and False if its length limit cut it off.
        diversity: ``diversity_metrics``.
        num_episodes: number of samples with turns in an environment.
        num_failed_episodes: number of them whose environment failed.
        tools: number of calls, number of failed calls and seconds of each tool.
    """

    completions: Sequence[tuple[int, bool]]
    diversity: Mapping[str, float]
    num_episodes: int
    num_failed_episodes: int
    tools: Mapping[str, ToolUse] = field(default_factory=dict)


def sample_stats(samples: Sequence[Sample]) -> SampleStats:
    """Returns the statistics of one process's samples."""
    completions = [(sample.num_tokens, not sample.is_truncated) for sample in samples if sample.tokens is not None]
    episodes = [sample for sample in samples if sample.turn_texts]
    num_failed = sum(sample.environment_error is not None for sample in episodes)
    results = [result for sample in samples for result in sample.tool_results]
    tools = _summed([(result.name or UNREADABLE, ToolUse(1, result.failed, result.seconds)) for result in results])
    return SampleStats(completions, diversity_metrics(samples), len(episodes), num_failed, tools)


def _summed(uses: Iterable[tuple[str, ToolUse]]) -> dict[str, ToolUse]:
    total: dict[str, ToolUse] = {}
    for name, use in uses:
        calls, failures, seconds = total.get(name, ToolUse(0, 0, 0.0))
        total[name] = ToolUse(calls + use.calls, failures + use.failures, seconds + use.seconds)
    return total


def tool_metrics(uses: Iterable[tuple[str, ToolUse]]) -> dict[str, float]:
    """Returns ``tools/NAME/calls``, ``tools/NAME/failures`` and ``time/tools/NAME_s``, the sums of each tool.

    Calls that cannot be read, or of a function that does not exist, have the name ``unreadable``.

    Args:
        uses: name and use of tools, of all processes.

    Returns:
        The metrics; empty without calls.
    """
    metrics: dict[str, float] = {}
    for name, use in sorted(_summed(uses).items()):
        metrics |= {f"tools/{name}/calls": float(use.calls), f"tools/{name}/failures": float(use.failures)}
        metrics[f"time/tools/{name}_s"] = use.seconds
    return metrics


def sample_metrics(parts: Sequence[SampleStats], scores: Scores) -> dict[str, float]:
    """Returns length, truncation and diversity metrics of the job's samples, and their mean number of boxes."""
    completions = [completion for part in parts for completion in part.completions]
    lengths = completion_metrics([length for length, _ in completions], [finished for _, finished in completions])
    diversity = {key: sum(part.diversity[key] for part in parts) / len(parts) for key in parts[0].diversity}
    num_episodes, num_failed = sum(part.num_episodes for part in parts), sum(part.num_failed_episodes for part in parts)
    if num_episodes and num_failed == num_episodes:
        logger.warning("the environments of all %d episodes of this step failed: nothing is trained", num_failed)
    failed = {"environment/failed_frac": num_failed / num_episodes} if num_episodes else {}
    failed |= tool_metrics(use for part in parts for use in part.tools.items())
    return lengths | diversity | failed | (box_metrics(scores) if completions else {})


def completion_metrics(lengths: Sequence[int], finished: Sequence[bool]) -> dict[str, float]:
    """Returns metrics of completions, with TRL's names; ``clipped_frac`` is the fraction cut off by the length limit.

    Args:
        lengths: numbers of tokens of the policy, including the end token.
        finished: whether each completion ends with an end token.

    Returns:
        The metrics; empty without completions.
    """
    if not lengths:
        return {}
    return {
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_frac": finished.count(False) / len(finished),
    }


def diversity_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Returns how different the members of a group are, averaged over complete groups.

    ``samples/distinct_frac`` is the fraction of distinct texts: (distinct - 1) / (members - 1), 0 if all are equal.
    ``samples/pixel_spread`` is the mean absolute difference of a pixel from the group's mean, 0 to 1, of images
    downscaled to 32 x 32 in gray; for a video its middle frame.
    """
    by_group = sorted(samples, key=lambda sample: sample.group)
    groups = [list(members) for _, members in groupby(by_group, key=lambda sample: sample.group)]
    groups = [members for members in groups if len(members) > 1]
    texts = [[s.text for s in members] for members in groups if all(s.text is not None for s in members)]
    thumbnails = [[_thumbnail(s) for s in members] for members in groups]
    stacks = [
        np.stack([t for t in group if t is not None]) for group in thumbnails if all(t is not None for t in group)
    ]
    metrics = {}
    if texts:
        shares = [(len(set(members)) - 1) / (len(members) - 1) for members in texts]
        metrics["samples/distinct_frac"] = sum(shares) / len(shares)
    if stacks:
        spreads = [float(np.abs(members - members.mean(0)).mean()) for members in stacks]
        metrics["samples/pixel_spread"] = sum(spreads) / len(spreads)
    return metrics


def box_metrics(scores: Scores) -> dict[str, float]:
    """Returns ``samples/mean_boxes``, the mean number of boxes in an answer; empty if no explanation has boxes."""
    by_reward = ([n for n in notes if n is not None and "boxes" in n] for notes in scores.explanations.values())
    explanations = next((notes for notes in by_reward if notes), [])
    counts = [n.get("num_boxes", sum(box.get("role") == "stated" for box in n["boxes"])) for n in explanations]
    return {"samples/mean_boxes": sum(counts) / len(counts)} if counts else {}


def _thumbnail(sample: Sample) -> np.ndarray | None:
    frame = sample.image if sample.image is not None else sample.video[len(sample.video) // 2] if sample.video else None
    return None if frame is None else np.asarray(frame.convert("L").resize((32, 32)), dtype=np.float32) / 255


def _save_prompt(prompt: Prompt, folder: Path, media_folder: Path) -> dict[str, Any]:
    """Saves a prompt's media; returns the fields of its samples' lines."""
    references: Mapping[str, Any] = {name: prompt.columns.get(name) for name in REFERENCES}
    reference = next((value for value in references.values() if isinstance(value, str | int | float)), None)
    return {
        **_save_inputs(prompt, folder, media_folder),
        "reference": None if reference is None else str(reference),
    }


def _save_inputs(source: Prompt | Turn, folder: Path, media_folder: Path) -> dict[str, Any]:
    """Saves the media of a prompt or of a turn of the environment; returns their fields."""
    saved = [_save_input_image(media_folder, image) for image in source.images]
    prefix = "" if media_folder == folder else f"../{media_folder.name}/"
    audio_names = [_save_input_audio(media_folder, prefix, audio) for audio in source.audios]
    video_names = [_save_input_video(media_folder, prefix, video) for video in source.videos]
    return {
        "images": [None if image is None else f"{prefix}{image.name}" for image in saved],
        "image_sizes": [None if image is None else list(image.size) for image in saved],
        "num_videos": len(source.videos),
        **({"videos": video_names} if any(video_names) else {}),
        **({"sounds": audio_names} if audio_names else {}),
    }


@dataclass(frozen=True, slots=True)
class _SavedImage:
    """File name of a saved image, and its original size."""

    name: str
    size: tuple[int, int]


def _save_input_image(folder: Path, image: Any) -> _SavedImage | None:
    """Saves an image, downscaled; returns None for a format that only the policy can open."""
    try:
        small = load_image(image)
    except DataError:
        return None
    size = small.size
    small.thumbnail((MAX_SIDE, MAX_SIDE))
    is_lossless = max(small.size) <= LOSSLESS_SIDE
    buffer = io.BytesIO()
    small.save(buffer, "PNG" if is_lossless else "JPEG", quality=85)
    return _SavedImage(_save_once(folder, buffer.getvalue(), "png" if is_lossless else "jpg"), size)


def _save_input_audio(folder: Path, prefix: str, audio: Any) -> str | None:
    """Saves the beginning of an audio in mono; returns None for a format that only the policy can open."""
    try:
        full = load_audio(audio)
    except DataError:
        return None
    beginning = Audio(full.values[:, : int(MAX_AUDIO_S * full.sampling_rate)], full.sampling_rate)
    data = encode_wav(resample_audio(beginning, min(MAX_AUDIO_HZ, full.sampling_rate), mono=True))
    return f"{prefix}{_save_once(folder, data, 'wav')}"


def _save_input_video(folder: Path, prefix: str, video: Any) -> str | None:
    """Saves frames of the beginning of a video; returns None for one that cannot be opened."""
    try:
        frames, duration_s = _first_frames(video)
        side = max(frames[0].size)
        width, height = (max(round(edge * min(MAX_SIDE / side, 1.0)), 1) for edge in frames[0].size)
        data = encoded([frame.resize((width, height)) for frame in frames], len(frames) / duration_s)
    except (DataError, ValueError, TypeError):  # of a medium in a form that only the policy reads
        return None
    return f"{prefix}{_save_once(folder, data, 'mp4')}"


def _first_frames(video: Any) -> tuple[list[Image.Image], float]:
    """Frames of a video, evenly spaced over its first seconds, and the duration of these."""
    if isinstance(video, FILES):
        file = open_video(video)
        duration_s = min(file.num_frames / file.fps, MAX_VIDEO_S)
        num_frames = min(max(int(duration_s * file.fps), 1), MAX_VIDEO_FRAMES)
        return list(file.frames_at([duration_s * number / num_frames for number in range(num_frames)])), duration_s
    chosen = np.linspace(0, len(video) - 1, min(len(video), MAX_VIDEO_FRAMES)).round().astype(int)
    duration_s = len(video) / getattr(video, "frame_rate", FRAME_RATE)
    return [load_image(video[index]) for index in chosen], duration_s


def _save_once(folder: Path, data: bytes, suffix: str) -> str:
    """Saves data under the hash of its content; returns the name."""
    name = f"{hashlib.sha256(data).hexdigest()[:16]}.{suffix}"
    folder.mkdir(exist_ok=True)
    if not (folder / name).exists():
        (folder / name).write_bytes(data)
    return name


def _save_media(folder: Path, row: int, sample: Sample) -> dict[str, str | None]:
    """Saves a sample's media; returns their names: ``file``, and ``sound`` for audio next to an image or video."""
    visual, audio = _save_visual(folder, row, sample), f"{row:04d}.wav"
    if sample.audio is None:
        return {"file": visual}
    (folder / audio).write_bytes(encode_wav(sample.audio))
    return {"file": audio} if visual is None else {"file": visual, "sound": audio}


def _save_visual(folder: Path, row: int, sample: Sample) -> str | None:
    """Saves a sample's array, image and video; returns the name of the one that people look at."""
    if sample.array is not None:
        np.save(folder / f"{row:04d}.npy", sample.array.numpy())
    if sample.image is not None:
        sample.image.save(folder / f"{row:04d}.png")
        return f"{row:04d}.png"
    if sample.video:
        (folder / f"{row:04d}.mp4").write_bytes(encoded(sample.video, sample.frame_rate))
        return f"{row:04d}.mp4"
    return f"{row:04d}.npy" if sample.array is not None else None
