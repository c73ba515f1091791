"""Reward for the frames of a video that a conversation identifies as evidence and retrieves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

from mmgrpo.types import Sample, Score

from ..parsing.extraction import finite
from ..parsing.reference_values import find_reference_error, read_references

MOST_RETRIEVED = 8
"""Maximum number of frames of a round that retrieval is measured against."""

MAX_FRAMES = 100_000

_TIME = r"(\d{1,2}):(\d{2}):(\d{2})"
_STATED = re.compile(rf"{_TIME}(?:\s*-\s*{_TIME})?\s*:\s*(\d{{1,3}})")
_SCORES = re.compile(r"<score>(.*?)</score>", re.DOTALL)
_FRAMES_AT = re.compile(r"Frames at ([\d.s, ]+)\.")


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The scores of the frames of a video, their rate and first time, and the frames of the prompt."""

    scores: Sequence[int]
    fps: float
    start_s: float
    visible: frozenset[int]

    def index(self, seconds: float) -> int:
        """The frame at a time."""
        return min(max(round((seconds - self.start_s) * self.fps), 0), len(self.scores) - 1)

    def at_least(self, score: int) -> frozenset[int]:
        """The frames with a score."""
        return frozenset(index for index, value in enumerate(self.scores) if value >= score)


@final
class FrameEvidence:
    """Reward: how well a conversation scores the frames that it sees, plus how well it retrieves frames with evidence.

    A turn states scores of its frames, ``<score>00:00:05: 4, 00:00:20-00:00:30: 2</score>``, and frames are retrieved
    by tools that answer "Frames at 5.0s, 20.0s.", as ``video_tools`` do.

    Identification, a mean over the turns with scores: intersection over union of the frames scored 4 or more with those
    of this turn that have it; if one of the sets is empty, of 3 or more; turns where these are both empty do not count.
    Retrieval, a mean over the retrievals: the share of the frames not shown so far with 4 or more, at most 8, that it
    shows; without both, of 3 or more; else 0. A conversation without a retrieval has the identification twice.

    Example: ``{name: frame_evidence, gate: {reward: answer, at_least: 0.01, otherwise: zero}}``.
    Settings: ``column`` has ``{scores: [1, 4, ..], fps: 0.2, start: 5.0, visible: [0, 2]}``: the score of each frame, 1
    to 5, the frames per second, the time of the first, and the frames of the prompt.
    Range: 0 to 2.
    Source: Conan, arXiv:2510.20470, ms-swift/examples/train/grpo/plugin/plugin.py, Clue_Action_Factor, clue_accuracy
    and action_accuracy. Deviations: scores belong to the frames of their turn, in the code those of a turn without
    scores shift to the next.
    Traps: the reward is not gated by the answer: set ``gate``, as the code adds it to right answers alone.
    """

    deterministic = True

    def __init__(self, column: str = "frames") -> None:
        self.column = column

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        references = read_references("frame_evidence", samples, self.column, _evidence)
        return [
            _score(sample, reference) if reference is not None and sample.turn_ends else None
            for sample, reference in zip(samples, references, strict=True)
        ]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column does not describe frames; None if it does."""
        return find_reference_error(value, _evidence, "a mapping of scores, fps, start and visible")


def _score(sample: Sample, evidence: _Evidence) -> Score:
    visible: list[frozenset[int]] = [evidence.visible]
    for reply in sample.turn_replies:
        texts = [result.text for result in reply.results] if reply is not None else []
        times = [
            time for text in texts for listed in _FRAMES_AT.findall(text) for time in re.findall(r"\d+\.\d+", listed)
        ]
        visible.append(frozenset(evidence.index(float(time)) for time in times))
    stated = [_stated(text, frames, evidence) for text, frames in zip(sample.turn_texts, visible, strict=False)]
    identified = identification(stated, visible, evidence.scores)
    rounds = [frames for frames in visible[1:] if frames]
    retrieved = retrieval([evidence.visible, *rounds], evidence.scores) if rounds else identified
    return Score(identified + retrieved, {"reason": f"identification {identified:.3f}, retrieval {retrieved:.3f}"})


def identification(
    stated: Sequence[Mapping[int, int]], visible: Sequence[frozenset[int]], scores: Sequence[int]
) -> float:
    """The mean agreement of the stated scores of frames with the right ones.

    Args:
        stated: the stated scores of each turn by frame.
        visible: the frames of each turn.
        scores: the score of each frame.

    Returns:
        The mean over the turns with stated scores that count; 0 without any.
    """
    agreements: list[float] = []
    for turn, frames in zip(stated, visible, strict=False):
        if not turn:
            continue
        sets = [
            (
                {index for index in frames if scores[index] >= least},
                {index for index, score in turn.items() if score >= least},
            )
            for least in (4, 3)
        ]
        right, claimed = sets[0] if all(sets[0]) else sets[1]
        if right or claimed:
            agreements.append(len(right & claimed) / len(right | claimed))
    return sum(agreements) / len(agreements) if agreements else 0.0


def retrieval(visible: Sequence[frozenset[int]], scores: Sequence[int]) -> float:
    """The mean share of the evidence not shown so far that retrievals show.

    Args:
        visible: the frames of the prompt, then those of each retrieval.
        scores: the score of each frame.

    Returns:
        The mean over the retrievals; there is at least one.
    """
    shares: list[float] = []
    earlier: set[int] = set()
    for before, frames in pairwise(visible):
        earlier |= before
        share = 0.0
        for least in (4, 3):
            relevant = {index for index, score in enumerate(scores) if score >= least and index not in earlier}
            if relevant and any(scores[index] >= least for index in frames):
                share = len(frames & relevant) / min(len(relevant), MOST_RETRIEVED)
                break
        shares.append(share)
    return sum(shares) / len(shares)


def _stated(text: str, frames: frozenset[int], evidence: _Evidence) -> dict[int, int]:
    """The scores that a turn states for its frames."""
    match = _SCORES.search(text)
    result: dict[int, int] = {}
    for hours, minutes, seconds, *end, score in _STATED.findall(match.group(1)) if match else ():
        first = evidence.index(_seconds(hours, minutes, seconds))
        last = evidence.index(_seconds(*end)) if end[0] else first
        result |= {index: int(score) for index in range(first, last + 1) if index in frames}
    return result


def _seconds(hours: str, minutes: str, seconds: str) -> float:
    return int(hours) * 3600.0 + int(minutes) * 60 + int(seconds)


def _evidence(value: Any) -> _Evidence | None:
    if not isinstance(value, Mapping):
        return None
    scores, visible = _integers(value.get("scores")), _integers(value.get("visible"))
    fps, start_s = finite(value.get("fps")), finite(value.get("start", 0.0))
    if scores is None or visible is None or fps is None or fps <= 0 or start_s is None:
        return None
    if not 0 < len(scores) <= MAX_FRAMES or not all(0 <= index < len(scores) for index in visible):
        return None
    return _Evidence(tuple(scores), fps, start_s, frozenset(visible))


def _integers(value: Any) -> list[int] | None:
    """A list of integers; None for anything else."""
    if not isinstance(value, list | tuple):
        return None
    return list(value) if all(isinstance(item, int) and not isinstance(item, bool) for item in value) else None
