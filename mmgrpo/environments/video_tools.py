"""Tools that look at the videos of a prompt: frames by number, by time, and by a query, and regions of frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from PIL import Image

from mmgrpo.data.image_loading import load_image
from mmgrpo.data.media_options import options_of
from mmgrpo.data.videos import FILES, open_video
from mmgrpo.environment import Environment, SupportsCalls, Turn
from mmgrpo.environments.image_tools import FILTERS, within_pixels
from mmgrpo.environments.media_tools import MediaTools
from mmgrpo.environments.unused_settings import require_unset
from mmgrpo.errors import ConfigError
from mmgrpo.system.targets import import_python_target
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.types import Prompt

LIST_FPS = 2.0
"""Frame rate of a list of frames without ``sample_fps``, in frames per second, as in qwen-vl-utils."""

MAX_IMAGES = 64
"""Maximum number of images that the calls of a conversation return."""

Ranker = Callable[[Sequence[Image.Image], str], Sequence[float]]
"""Scores of frames for a query, the highest for the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoToolSettings:
    """Settings of video tools.

    Attributes:
        num_frames: frames that ``select_frames`` numbers, evenly spaced from the first to the last; None: every frame.
        max_frames: maximum number of frames in an answer.
        max_calls: maximum number of calls in a conversation.
        pixels: minimum and maximum number of pixels of a frame in an answer.
        resample: filter of enlarged and reduced frames: nearest, box, bilinear, hamming, bicubic or lanczos.
        candidates: maximum number of frames, evenly spaced, that ``search_frames`` ranks.
        clip_form: what ``view_clip`` returns: ``frames``, an image each, or ``video``, for models that take videos.

    Raises: ConfigError for a value that is not allowed.
    """

    num_frames: int | None = None
    max_frames: int = 8
    max_calls: int = 4
    pixels: Sequence[int] = (1, 2**18)
    resample: str = "bicubic"
    candidates: int = 128
    clip_form: Literal["frames", "video"] = "frames"

    def __post_init__(self) -> None:
        for name in ("num_frames", "max_frames", "max_calls", "candidates"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"{name} must be at least 1, got {number}")
        if self.max_frames * self.max_calls > MAX_IMAGES:
            raise ConfigError(
                f"max_frames x max_calls must be at most {MAX_IMAGES}, got {self.max_frames} x {self.max_calls}"
            )
        if self.clip_form not in ("frames", "video"):
            raise ConfigError(f"clip_form must be frames or video, got {self.clip_form!r}")
        if self.resample not in FILTERS:
            raise ConfigError(f"resample must be one of {', '.join(FILTERS)}, got {self.resample!r}")
        if len(self.pixels) != 2 or not 0 < self.pixels[0] <= self.pixels[1]:
            raise ConfigError(f"pixels must be [least, most], got {list(self.pixels)}")


@dataclass(frozen=True, slots=True)
class _Clip:
    """A video: the time of each frame in seconds, its duration, and a function that decodes frames by index."""

    times_F: Sequence[float]
    duration_s: float
    decode: Callable[[Sequence[int]], list[Image.Image]]


@final
class VideoTools:
    """The videos of one conversation, numbered from 1, and the functions that return their frames."""

    def __init__(
        self,
        videos: Sequence[Any],
        options: Sequence[Mapping[str, Any]],
        settings: VideoToolSettings,
        ranker: Ranker | None,
    ) -> None:
        """The videos of a prompt.

        Args:
            videos: the videos, paths, bytes or lists of frames; opened when they are used.
            options: options of each video in its row, of which ``sample_fps`` is the rate of a list of frames.
            settings: settings of the tools.
            ranker: for ``search_frames``.
        """
        self._videos, self._options = list(videos), list(options)
        self._settings, self._ranker = settings, ranker
        self._clips: dict[int, _Clip] = {}
        self._calls_left = settings.max_calls

    def select_frames(self, target_frames: list[int], target_video: int = 1) -> list[dict[str, Any]]:
        """Selects frames of a video by their numbers.

        Args:
            target_frames: at most {max_frames} numbers of frames, from 1 to {num_frames}, evenly spaced over the video.
            target_video: number of the video, from 1.

        Returns:
            The frames, in the order of the numbers.
        """
        clip = self._clip(target_video)
        F = len(clip.times_F)
        indices = list(range(F)) if self._settings.num_frames is None else _even(F, self._settings.num_frames)
        numbers = list(target_frames) if isinstance(target_frames, list | tuple) else []
        if not 1 <= len(numbers) <= self._settings.max_frames:
            raise ValueError(f"target_frames must be a list of 1 to {self._settings.max_frames} numbers")
        if not all(isinstance(number, int) and 1 <= number <= len(indices) for number in numbers):
            raise ValueError(f"frames are numbered from 1 to {len(indices)}, got {numbers!r:.100}")
        return self._answer(clip, [indices[number - 1] for number in numbers])

    def view_clip(
        self, start_time: float, end_time: float, num_frames: int | None = None, target_video: int = 1
    ) -> list[dict[str, Any]]:
        """Shows a part of a video by evenly spaced frames.

        Args:
            start_time: beginning of the part in seconds.
            end_time: its end in seconds.
            num_frames: number of frames, at most {max_frames}, which is the default.
            target_video: number of the video, from 1.

        Returns:
            The frames, in the order of time.
        """
        clip = self._clip(target_video)
        part = _part(clip, start_time, end_time)
        indices = [part[index] for index in _even(len(part), self._count(num_frames))]
        return self._video(clip, indices) if self._settings.clip_form == "video" else self._answer(clip, indices)

    def search_frames(
        self,
        query: str,
        start_time: float = 0.0,
        end_time: float | None = None,
        num_frames: int | None = None,
        target_video: int = 1,
    ) -> list[dict[str, Any]]:
        """Searches the frames of a video that show something.

        Args:
            query: a description of the object, scene or event.
            start_time: beginning of the part to search in seconds.
            end_time: its end in seconds; the end of the video by default.
            num_frames: number of frames, at most {max_frames}, which is the default.
            target_video: number of the video, from 1.

        Returns:
            The best frames, in the order of time.
        """
        clip = self._clip(target_video)
        if self._ranker is None or not isinstance(query, str) or not query.strip():
            raise ValueError("query must be a text that describes what to search")
        part = _part(clip, start_time, clip.duration_s if end_time is None else end_time)
        candidates = [part[index] for index in _even(len(part), self._settings.candidates)]
        scores = [float(score) for score in self._ranker(clip.decode(candidates), query)]
        if len(scores) != len(candidates):
            raise ValueError(f"the ranker gave {len(scores)} scores for {len(candidates)} frames")
        best = sorted(range(len(candidates)), key=lambda n: -scores[n])[: self._count(num_frames)]
        return self._answer(clip, [candidates[n] for n in sorted(best)])

    def zoom_frame(self, time: float, bbox_2d: list[float], target_video: int = 1) -> list[dict[str, Any]]:
        """Zooms in on a region of a frame of a video.

        Args:
            time: time of the frame in seconds.
            bbox_2d: left, top, right and bottom of the region, in thousandths of the frame's width and height.
            target_video: number of the video, from 1.

        Returns:
            The region as an image.
        """
        clip = self._clip(target_video)
        if not _is_number(time) or not 0 <= time < clip.duration_s:
            raise ValueError(f"time must be a number of seconds from 0 to {clip.duration_s:.1f}, got {time!r:.40}")
        index = max(n for n, begin in enumerate(clip.times_F) if begin <= time + 1e-6)
        (frame,) = clip.decode([index])
        return self._content([frame.crop(_box(bbox_2d, frame))], f"Region of the frame at {clip.times_F[index]:.1f}s.")

    def _clip(self, number: Any) -> _Clip:
        """An opened video. Raises ValueError for an unknown one, and if no call is left."""
        if self._calls_left <= 0:
            raise ValueError("the maximum number of calls is reached; answer now")
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= len(self._videos):
            raise ValueError(f"target_video must be from 1 to {len(self._videos)}, got {number!r:.60}")
        if number not in self._clips:
            fps = float(self._options[number - 1].get("sample_fps", LIST_FPS))
            self._clips[number] = _opened(self._videos[number - 1], fps)
        return self._clips[number]

    def _count(self, num_frames: Any) -> int:
        most = self._settings.max_frames
        if num_frames is None:
            return most
        if isinstance(num_frames, bool) or not isinstance(num_frames, int) or not 1 <= num_frames <= most:
            raise ValueError(f"num_frames must be an integer from 1 to {most}, got {num_frames!r:.60}")
        return num_frames

    def _answer(self, clip: _Clip, indices: Sequence[int]) -> list[dict[str, Any]]:
        distinct = sorted(set(indices))
        frames = dict(zip(distinct, clip.decode(distinct), strict=True))
        times = ", ".join(f"{clip.times_F[index]:.1f}s" for index in indices)
        return self._content([frames[index] for index in indices], f"Frames at {times}.")

    def _video(self, clip: _Clip, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The frames as a video, whose rate is that of the original time."""
        first_s, last_s = clip.times_F[indices[0]], clip.times_F[indices[-1]]
        rate = (len(indices) - 1) / (last_s - first_s) if len(indices) > 1 else len(clip.times_F) / clip.duration_s
        self._calls_left -= 1
        text = f"Part from {first_s:.1f}s to {last_s:.1f}s."
        return [
            {"type": "video", "video": self._sized(clip.decode(indices)), "sample_fps": rate},
            {"type": "text", "text": text},
        ]

    def _content(self, images: Sequence[Image.Image], text: str) -> list[dict[str, Any]]:
        """The answer to a call with images."""
        self._calls_left -= 1
        return [*({"type": "image", "image": image} for image in self._sized(images)), {"type": "text", "text": text}]

    def _sized(self, images: Sequence[Image.Image]) -> list[Image.Image]:
        """Images within the bounds of their pixels."""
        resample = FILTERS[self._settings.resample]
        return [within_pixels(image, self._settings.pixels, resample) for image in images]


TOOLS: Mapping[str, Callable[..., list[dict[str, Any]]]] = {
    "select_frames": VideoTools.select_frames,
    "view_clip": VideoTools.view_clip,
    "search_frames": VideoTools.search_frames,
    "zoom_frame": VideoTools.zoom_frame,
}


@final
class VideoToolsEnvironment(Environment, SupportsCalls):
    """Answers calls of video tools with frames or parts of the video; a turn without calls ends the conversation.

    Calls and errors have the format of ``ToolEnvironment``. Files are decoded as those of prompts
    (``mmgrpo.data.videos``). ``search_frames`` needs a ranker, a function that scores frames for a query, such as one
    of a CLIP model.

    Source: ``select_frames`` with ``target_frames``, numbered from 1, at most 8 at a time: Pixel Reasoner
    (arXiv:2505.15966; github.com/TIGER-AI-Lab/Pixel-Reasoner, experience_maker.py) and VR-Thinker (arXiv:2510.10518).
    ``query``, ``start_time``, ``end_time``, ``num_frames`` in seconds, at most 8 frames, and the time of each frame in
    the answer: ``seek_video_frames`` of TimeSearch-R (github.com/Time-Search/TimeSearch-R, video_tools.py). Deviations
    from the last: the best frames are those with the highest scores, where theirs are chosen by a determinantal point
    process over embeddings; wrong arguments are errors, where theirs are replaced by defaults.
    """

    gives_rewards = False

    def __init__(
        self,
        tools: Sequence[str] | Mapping[str, str] = ("select_frames", "view_clip"),
        *,
        ranker: Ranker | str | None = None,
        describe: bool = True,
        role: str = "tool",
        **settings: Any,
    ) -> None:
        """Checks the settings.

        Args:
            tools: names of ``TOOLS``; as a mapping, the names by which the model calls them.
            ranker: for ``search_frames``: a function of frames and a query that returns a score for each frame, or
                ``python:module:function``; environments call it from several threads.
            describe: whether ``reset`` appends the signatures to the prompt, as in ``ToolEnvironment``.
            role: role of the answers in the chat template; ``user`` for templates without tools.
            **settings: fields of ``VideoToolSettings``.

        Raises:
            ConfigError: a setting is not allowed, or would have no effect.
        """
        if "select_frames" not in tools:
            require_unset("video_tools", "add the tool select_frames", num_frames=settings.get("num_frames"))
        if "view_clip" not in tools:
            require_unset("video_tools", "add the tool view_clip", clip_form=settings.get("clip_form"))
        if "search_frames" not in tools:
            require_unset("video_tools", "add the tool search_frames", candidates=settings.get("candidates"))
        if ("search_frames" in tools) != (ranker is not None):
            raise ConfigError("search_frames needs a ranker, python:module:function, and no other tool uses it")
        self._settings = VideoToolSettings(**settings)
        self._ranker: Ranker | None = import_python_target(ranker) if isinstance(ranker, str) else ranker
        number = "the number of its frames" if self._settings.num_frames is None else str(self._settings.num_frames)
        texts = {"max_frames": str(self._settings.max_frames), "num_frames": number}
        self._tools = MediaTools("video", TOOLS, tools, self._state, texts=texts, describe=describe, role=role)

    def reset(self, prompt: Prompt) -> Turn:
        """The functions, if ``describe`` is set. Raises DataError for a prompt without a video."""
        return self._tools.reset(prompt)

    def step(self, text: str) -> Turn:
        """The frames of the tools that a text calls, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The frames of the called tools, in order, each with its text."""
        return self._tools.respond(message)

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """As ``ToolEnvironment.interrupted``."""
        return self._tools.interrupted(error)

    def _state(self, prompt: Prompt) -> VideoTools:
        return VideoTools(prompt.videos, options_of(prompt, "video"), self._settings, self._ranker)


def _opened(video: Any, list_fps: float) -> _Clip:
    if isinstance(video, FILES):
        file = open_video(video)
        duration_s = file.times_F[-1] + 1 / file.fps
        return _Clip(file.times_F, duration_s, lambda indices: list(file.frames_at([file.times_F[n] for n in indices])))
    frames = list(video)
    times_F = [number / list_fps for number in range(len(frames))]
    return _Clip(times_F, len(frames) / list_fps, lambda indices: [load_image(frames[n]) for n in indices])


def _even(total: int, count: int) -> list[int]:
    """At most ``count`` distinct indices below ``total``, evenly spaced from the first to the last."""
    return np.linspace(0, total - 1, min(count, total)).round().astype(int).tolist()


def _part(clip: _Clip, start_time: Any, end_time: Any) -> list[int]:
    """Indices of the frames of a part: those that begin in it, and the one that is visible at its beginning."""
    times = [start_time, end_time]
    if not all(map(_is_number, times)):
        raise ValueError(
            f"start_time and end_time must be numbers of seconds, got {start_time!r:.40}, {end_time!r:.40}"
        )
    if not 0 <= start_time < end_time or start_time >= clip.duration_s:
        limits = f"both within 0 to {clip.duration_s:.1f} s"
        raise ValueError(f"start_time must be below end_time, {limits}, got {start_time:g} to {end_time:g}")
    first = max(n for n, time in enumerate(clip.times_F) if time <= start_time + 1e-6)
    return [first, *(n for n in range(first + 1, len(clip.times_F)) if clip.times_F[n] <= end_time)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _box(bbox_2d: Any, frame: Image.Image) -> tuple[int, int, int, int]:
    """Pixels of a region in thousandths, at least one each way. Raises ValueError for no region."""
    values = list(bbox_2d) if isinstance(bbox_2d, list | tuple) else []
    if len(values) != 4 or not all(map(_is_number, values)):
        raise ValueError(f"bbox_2d must be 4 numbers, left, top, right and bottom, got {bbox_2d!r:.60}")
    left, top, right, bottom = (min(max(value, 0), 1000) for value in values)
    if left >= right or top >= bottom:
        raise ValueError(f"bbox_2d must have left < right and top < bottom within 0 to 1000, got {values!r:.60}")
    x, y = int(left * frame.width / 1000), int(top * frame.height / 1000)
    return x, y, max(math.ceil(right * frame.width / 1000), x + 1), max(math.ceil(bottom * frame.height / 1000), y + 1)
