"""Video tools: the frames of their answers, times, limits, and errors that the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmgrpo.config.registry import resolve
from mmgrpo.data.clips import encoded
from mmgrpo.data.videos import open_video
from mmgrpo.environment import Turn
from mmgrpo.environments.video_tools import VideoToolsEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.tool_calls import AssistantMessage, FunctionCall, description
from mmgrpo.types import Prompt
from tests.environments.test_image_tools import error, pixels
from tests.test_tools import call

F, FPS = 20, 4


def frame(number: int) -> Image.Image:
    return Image.new("RGB", (32, 16), (12 * number, 0, 255 - 12 * number))


def levels(turn: Turn) -> list[int]:
    """The number of each frame, by its red."""
    return [round(float(pixels(turn, index)[..., 0].mean()) / 12) for index in range(len(turn.images))]


def redness(frames: Sequence[Image.Image], query: str) -> list[float]:
    """Scores frames: the redder, or for the query "blue" the less red."""
    reds = [float(np.asarray(image)[..., 0].mean()) for image in frames]
    return [-red for red in reds] if query == "blue" else reds


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("clips") / "clip.mp4"
    file.write_bytes(encoded([frame(number) for number in range(F)], FPS, side=2))
    return str(file)


def started(*videos: Any, **settings: Any) -> VideoToolsEnvironment:
    environment = VideoToolsEnvironment(**settings)
    environment.reset(Prompt("what happens", videos=videos))
    return environment


def test_frames_of_a_file_are_those_that_the_project_decodes(path: str) -> None:
    turn = started(path).step(call("select_frames", target_frames=[20, 1, 8, 8]))
    expected = open_video(path).frames()
    for image, index in zip(turn.images, (19, 0, 7, 7), strict=True):
        assert np.array_equal(np.asarray(image), np.asarray(expected[index]))
    assert (turn.text, turn.role, turn.done) == ("Frames at 4.8s, 0.0s, 1.8s, 1.8s.", "tool", False)


def quarters(number: int) -> Image.Image:
    """A frame of 40 x 20 whose right half has the red of its number."""
    image = Image.new("RGB", (40, 20), (0, 0, 255))
    image.paste((12 * number, 0, 0), (20, 0, 40, 20))
    return image


def test_zooms_show_regions_of_frames() -> None:
    """1.2 s is frame 2 at 2 frames per second; of 40 x 20 pixels, 500 to 760 are 20 to 31, 100 to 500 are 2 to 10."""
    zoom = started([quarters(number) for number in range(4)], tools=["zoom_frame"])
    turn = zoom.step(call("zoom_frame", time=1.2, bbox_2d=[500, 100, 760, 500]))
    assert (turn.text, turn.images[0].size, levels(turn)) == ("Region of the frame at 1.0s.", (11, 8), [2])
    sliver = zoom.step(call("zoom_frame", time=0, bbox_2d=[0, 0, 1, 1]))
    assert sliver.images[0].size == (1, 1)
    outside = zoom.step(call("zoom_frame", time=1.9, bbox_2d=[-50, -50, 9999, 9999]))
    assert outside.images[0].size == (40, 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time": 2, "bbox_2d": [0, 0, 9, 9]}, "time must be a number of seconds from 0 to 2.0"),
        ({"time": "1", "bbox_2d": [0, 0, 9, 9]}, "time must be number"),
        ({"time": 0, "bbox_2d": [9, 0, 9, 9]}, "left < right"),
        ({"time": 0, "bbox_2d": [0, 0, 9]}, "bbox_2d must be 4 numbers"),
        ({"time": 0, "bbox_2d": "0, 0, 9, 9"}, "bbox_2d must be array"),
    ],
)
def test_regions_outside_a_frame_are_errors_that_the_model_reads(arguments: dict[str, Any], message: str) -> None:
    zoom = started([quarters(number) for number in range(4)], tools=["zoom_frame"])
    assert message in error(zoom.step(call("zoom_frame", **arguments)))


def test_numbers_count_evenly_spaced_frames(path: str) -> None:
    """Of 20 frames 4 are at 0, 6.33, 12.67 and 19."""
    turn = started(path, num_frames=4).step(call("select_frames", target_frames=[1, 2, 3, 4]))
    assert levels(turn) == [0, 6, 13, 19]
    assert "numbered from 1 to 4" in error(started(path, num_frames=4).step(call("select_frames", target_frames=[5])))


def test_a_clip_has_the_frames_between_two_times(path: str) -> None:
    every = started(path).step(call("view_clip", start_time=1, end_time=2))
    assert (levels(every), every.text) == ([4, 5, 6, 7, 8], "Frames at 1.0s, 1.2s, 1.5s, 1.8s, 2.0s.")
    assert levels(started(path).step(call("view_clip", start_time=1, end_time=2, num_frames=3))) == [4, 6, 8]
    assert levels(started(path).step(call("view_clip", start_time=1.3, end_time=1.4))) == [5]  # visible since 1.25 s
    assert levels(started(path).step(call("view_clip", start_time=0, end_time=900, num_frames=2))) == [0, 19]


def test_a_clip_may_be_a_video(path: str) -> None:
    """From 1 s to 2 s are the frames 4 to 8, of which 3 at 1, 1.5 and 2 s make 2 frames per second."""
    environment = started(path, clip_form="video", pixels=[1, 128])
    turn = environment.step(call("view_clip", start_time=1, end_time=2, num_frames=3))
    (video,) = turn.videos
    assert (turn.text, turn.images, turn.results[0].num_videos) == ("Part from 1.0s to 2.0s.", [], 1)
    assert (len(video), video.frame_rate, video[0].size) == (3, 2.0, (16, 8))
    assert [round(float(np.asarray(image)[..., 0].mean()) / 12) for image in video] == [4, 6, 8]
    single = environment.step(call("view_clip", start_time=1.3, end_time=1.4)).videos[0]
    assert (len(single), single.frame_rate) == (1, FPS)
    assert len(environment.step(call("select_frames", target_frames=[1])).images) == 1
    with pytest.raises(ConfigError, match="clip_form of video_tools would have no effect: add the tool view_clip"):
        VideoToolsEnvironment(["select_frames"], clip_form="video")
    with pytest.raises(ConfigError, match="clip_form must be frames or video, got 'gif'"):
        VideoToolsEnvironment(clip_form="gif")


def test_lists_of_frames_have_the_rate_of_their_row() -> None:
    frames = [frame(number) for number in range(8)]
    turn = started(frames).step(call("view_clip", start_time=1, end_time=2))
    assert levels(turn) == [2, 3, 4]  # at 2 frames per second
    part = {"type": "video", "sample_fps": 4.0}
    environment = VideoToolsEnvironment()
    environment.reset(Prompt("what", videos=[frames], messages=[{"role": "user", "content": [part]}]))
    assert levels(environment.step(call("view_clip", start_time=1, end_time=1.5))) == [4, 5, 6]


def test_several_videos_have_numbers(path: str) -> None:
    environment = started([frame(3)], path)
    assert levels(environment.step(call("select_frames", target_frames=[1]))) == [3]
    assert levels(environment.step(call("select_frames", target_frames=[1, 2], target_video=2))) == [0, 1]


def test_searches_rank_frames_by_the_query(path: str) -> None:
    ranker = "python:tests.environments.test_video_tools:redness"
    environment = started(path, tools=["search_frames"], ranker=ranker, max_frames=3)
    assert levels(environment.step(call("search_frames", query="red"))) == [17, 18, 19]
    assert levels(environment.step(call("search_frames", query="blue", start_time=2.0, num_frames=2))) == [8, 9]
    assert levels(environment.step(call("search_frames", query="red", end_time=1.0, num_frames=1))) == [4]
    assert "query must be a text" in error(environment.step(call("search_frames", query=" ")))
    few = started(path, tools=["search_frames"], ranker=redness, candidates=2)
    assert levels(few.step(call("search_frames", query="red"))) == [0, 19]


def test_sizes_and_calls_are_limited(path: str) -> None:
    environment = started(path, pixels=(1, 128), max_calls=1)
    turn = environment.step(call("select_frames", target_frames=[1]) * 2)
    assert [image.size for image in turn.images] == [(16, 8)]
    assert "the maximum number of calls is reached" in turn.text
    assert "a list of 1 to 8 numbers" in error(started(path).step(call("select_frames", target_frames=[1] * 9)))


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("select_frames", {"target_frames": "1"}, "target_frames must be array"),
        ("select_frames", {"target_frames": [0]}, "frames are numbered from 1 to 20"),
        ("select_frames", {"target_frames": [1.5]}, "target_frames[0] must be integer, got 1.5"),
        ("select_frames", {"target_frames": [1], "target_video": 2}, "target_video must be from 1 to 1, got 2"),
        ("view_clip", {"start_time": 2, "end_time": 1}, "start_time must be below end_time, both within 0 to 5.0 s"),
        ("view_clip", {"start_time": 9, "end_time": 10}, "both within 0 to 5.0 s, got 9 to 10"),
        ("view_clip", {"start_time": float("nan"), "end_time": 1}, "must be numbers of seconds"),
        ("view_clip", {"start_time": "0:01", "end_time": 1}, "start_time must be number"),
        ("view_clip", {"start_time": 0, "end_time": 1, "num_frames": 99}, "num_frames must be an integer from 1 to 8"),
    ],
)
def test_errors_of_calls_are_answered(path: str, tool: str, arguments: dict[str, Any], message: str) -> None:
    environment = started(path, max_calls=1)
    assert message in error(environment.step(call(tool, **arguments)))
    assert len(environment.step(call("select_frames", target_frames=[1])).images) == 1  # an error is no call


def test_unreadable_videos_are_errors_that_the_model_reads(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    turn = started(str(tmp_path / "clip.mp4")).step(call("select_frames", target_frames=[1]))
    assert "cannot be opened as a video" in error(turn)


def test_signatures_have_the_limits(path: str) -> None:
    environment = VideoToolsEnvironment({"view_clip": "seek_video_frames", "select_frames": "select"}, num_frames=16)
    text = description(environment.reset(Prompt("what", videos=[path])).tools)
    assert '"name": "seek_video_frames"' in text
    assert "at most 8 numbers of frames, from 1 to 16, evenly spaced" in text
    assert "{" not in text.split('"description": "')[1].split('"')[0]


def test_prompts_without_videos_raise() -> None:
    with pytest.raises(DataError, match="has no video for video_tools: add a column 'video'"):
        VideoToolsEnvironment().reset(Prompt("what"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tools": ["play"]}, "one or more of select_frames, view_clip, search_frames, zoom_frame, got play"),
        ({"tools": ["search_frames"]}, "search_frames needs a ranker"),
        ({"ranker": redness}, "search_frames needs a ranker"),
        ({"max_frames": 32}, "max_frames x max_calls must be at most 64, got 32 x 4"),
        ({"num_frames": 0}, "num_frames must be at least 1, got 0"),
        ({"tools": ["view_clip"], "num_frames": 4}, "num_frames of video_tools would have no effect: add the tool"),
        ({"candidates": 4}, "candidates of video_tools would have no effect: add the tool search_frames"),
        ({"pixels": [4, 2]}, r"pixels must be \[least, most\]"),
        ({"resample": "sinc"}, "resample must be one of nearest"),
    ],
)
def test_invalid_settings_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("environments", "video_tools")(**settings)


def test_calls_that_the_response_template_reads_are_answered(path: str) -> None:
    message = AssistantMessage(
        "a call in a format of the model", [FunctionCall("select_frames", {"target_frames": [1]})]
    )
    turn = started(path, role="user").respond(message)
    assert (levels(turn), turn.role) == ([0], "user")
