"""Videos as MP4 files, and as sheets of their frames."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from mmgrpo.data.clips import decoded, encoded, filmstrip
from mmgrpo.errors import DataError

PIXELS = 2**26


def noise(*, side: int = 16, count: int = 4) -> list[Image.Image]:
    """Frames whose every pixel is black or white."""
    values = np.random.default_rng(0).integers(0, 2, (count, side, side), dtype=np.uint8) * 255
    return [Image.fromarray(frame) for frame in values]


@pytest.mark.parametrize(("side", "larger"), [(16, 256), (17, 272), (256, 256)])
def test_frames_are_restored(side: int, larger: int) -> None:
    frames = noise(side=side)
    back, rate = decoded(encoded(frames, 7.5), max_pixels=PIXELS)
    assert rate == 7.5
    assert [frame.size for frame in back] == [(larger, larger)] * 4
    for frame, restored in zip(frames, back, strict=True):
        if side < 256:  # each pixel became a square, which H.264 keeps
            gray = restored.convert("L").resize((side, side), Image.Resampling.BOX)
            assert np.abs(np.asarray(gray, dtype=int) - np.asarray(frame, dtype=int)).max() <= 4


def test_a_file_is_a_function_of_its_frames_and_of_even_size() -> None:
    frames = [frame.crop((0, 0, 9, 5)) for frame in noise()]
    assert encoded(frames) == encoded(frames)
    back, rate = decoded(encoded(frames, side=2), max_pixels=PIXELS)
    assert back[0].size == (10, 6)
    assert rate == 8.0


def test_only_requested_frames_are_unpacked() -> None:
    data = encoded(noise(count=9), side=2)
    assert len(decoded(data, max_pixels=3 * 16 * 16)[0]) == 3
    with pytest.raises(DataError, match="16 x 16 pixels is too large"):
        decoded(data, max_pixels=255)


@pytest.mark.parametrize(
    "broken",
    [
        lambda data: b"",
        lambda data: data[:200],
        lambda data: data[:8] + bytes(len(data) - 8),
        lambda data: b"#EXTM3U\nhttp://localhost/a.mp4\n",
        lambda data: data.replace(b"avc1", b"zzzz"),
    ],
)
def test_files_that_are_no_video_raise(broken: Callable[[bytes], bytes]) -> None:
    with pytest.raises(DataError, match="the video"):
        decoded(broken(encoded(noise())), max_pixels=PIXELS)


def test_missing_frames_or_different_sizes_raise() -> None:
    for frames in ([], [*noise(), *noise(side=8)]):
        with pytest.raises(DataError, match="frames of one size"):
            encoded(frames)


def test_a_strip_shows_the_first_frame_and_the_last() -> None:
    frames = [Image.new("L", (4, 2), 10 * number) for number in range(9)]
    strip = np.asarray(filmstrip(frames, most=3, height=4, gap=1))[..., 0]
    assert strip.shape == (4, 3 * 8 + 2)
    assert strip[0].tolist() == [*[0] * 8, 255, *[40] * 8, 255, *[80] * 8]
    assert filmstrip(frames, most=20, height=2, gap=0).size == (36, 2)
