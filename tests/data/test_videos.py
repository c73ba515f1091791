"""Video files: the times of their frames, upright pixels, and errors for other files."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.data.unreadable_rows import media_fault
from mmgrpo.data.videos import frames_of_video, open_video
from mmgrpo.errors import DataError

STEP = 20  # gray level by which each frame is brighter than the one before it


def write_video(
    path: Path,
    num: int = 10,
    *,
    codec: str = "libx264",
    rate: Fraction | int = 25,
    size: tuple[int, int] = (32, 24),
    layout: str = "yuv420p",
    times: Sequence[int] = (),
    rotation: int = 0,
) -> Path:
    """Frames of gray ``STEP`` n with a white band at the top; ``times`` are hundredths of a second."""
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, layout
        if times:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 100)
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(num):
            pixels = np.full((size[1], size[0], 3), STEP * number % 256, np.uint8)
            pixels[:6] = 255
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=layout)
            if times:
                frame.pts, frame.time_base = times[number], Fraction(1, 100)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def levels(frames: Sequence[Image.Image]) -> list[int]:
    """Which frame each one is, by the gray of its center."""
    return [round(np.asarray(frame)[frame.height // 2 + 2, frame.width // 2, 0] / STEP) for frame in frames]


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [
        ("a.mp4", "libx264", 25),
        ("a.mp4", "mpeg4", 25),
        ("a.webm", "libvpx-vp9", 30),
        ("a.mkv", "libx264", Fraction(30000, 1001)),
        ("a.avi", "mpeg4", 12),
    ],
)
def test_every_frame_has_its_time(tmp_path: Path, name: str, codec: str, rate: Fraction | int):
    video = open_video(str(write_video(tmp_path / name, codec=codec, rate=rate)))
    assert (video.num_frames, video.size) == (10, (32, 24))
    assert video.fps == pytest.approx(float(rate))
    assert video.times_F == pytest.approx([n / float(rate) for n in range(10)], abs=1e-3)
    assert levels(video.frames()) == list(range(10))
    assert levels(list(video.frames_at([4 / float(rate), 7 / float(rate)]))) == [4, 7]


def test_frames_of_a_variable_rate_are_those_on_the_screen(tmp_path: Path):
    video = open_video(str(write_video(tmp_path / "a.mp4", 6, times=[0, 10, 20, 100, 110, 200])))
    assert video.times_F == pytest.approx([0, 0.1, 0.2, 1.0, 1.1, 2.0])
    assert levels(list(video.frames_at([0, 0.15, 0.5, 0.99, 1.0, 1.5, 3.0]))) == [0, 1, 2, 2, 3, 4, 5]


def test_a_gif_has_the_times_of_its_frames(tmp_path: Path):
    frames = [Image.new("RGB", (20, 20), (60 * n, 0, 0)) for n in range(4)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=[100, 100, 500, 100])
    video = open_video(str(tmp_path / "a.gif"))
    assert video.times_F == pytest.approx([0, 0.1, 0.2, 0.7])
    assert [np.asarray(frame)[5, 5, 0] for frame in video.frames()] == pytest.approx([0, 60, 120, 180], abs=6)


def test_frames_are_upright_and_of_any_size(tmp_path: Path):
    turned = frames_of_video(str(write_video(tmp_path / "turned.mp4", 2, rotation=90)))[0]
    assert turned.size == (24, 32)  # the white band at the top is at the left after a quarter turn to the left
    assert np.asarray(turned)[30, 2, 0] > 200 > 100 > np.asarray(turned)[30, 20, 0]
    odd = frames_of_video(str(write_video(tmp_path / "odd.mp4", 2, size=(63, 47), layout="yuv444p")))
    assert odd[0].size == (63, 47)


def test_bytes_are_read_as_a_file_is(tmp_path: Path):
    path = write_video(tmp_path / "a.mp4")
    assert levels(frames_of_video(path.read_bytes())) == levels(frames_of_video(str(path)))


def broken(folder: Path) -> dict[str, tuple[Path, str]]:
    """Files that are no video, by what they are, each with the reason."""
    avi, webm = write_video(folder / "a.avi", 30, codec="mpeg4"), write_video(folder / "a.webm", 30, codec="libvpx")
    for path in (avi, webm):
        (folder / f"cut{path.suffix}").write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])
    (folder / "text.mp4").write_text("no video")
    (folder / "empty.mp4").touch()
    (folder / "list.mp4").write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{avi}\n#EXT-X-ENDLIST\n")
    with wave.open(str(folder / "a.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(1600))
    with av.open(str(folder / "sound.mp4"), "w") as file:
        stream: Any = file.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        file.mux([*stream.encode(frame), *stream.encode()])
    return {
        "cut off": (folder / "cut.webm", "it is cut off"),
        "cut off, no index": (folder / "cut.avi", "InvalidDataError|it is cut off"),
        "text": (folder / "text.mp4", "InvalidDataError"),
        "empty": (folder / "empty.mp4", "InvalidDataError"),
        "absent": (folder / "absent.mp4", "FileNotFoundError"),
        "a playlist of other files": (folder / "list.mp4", "InvalidDataError"),
        "sound": (folder / "a.wav", "it is of none of the formats mov"),
        "sound in a container of videos": (folder / "sound.mp4", "it holds audio only"),
    }


def test_files_that_are_no_video_raise_with_their_name(tmp_path: Path):
    for path, reason in broken(tmp_path).values():
        with pytest.raises(DataError, match=rf"{path.name} cannot be opened as a video \(.*({reason})"):
            open_video(str(path))


def test_too_many_pixels_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = str(write_video(tmp_path / "a.mp4"))
    monkeypatch.setattr("mmgrpo.data.videos.MAX_PIXELS", 10 * 32 * 24 - 1)
    with pytest.raises(DataError, match=r"has 10 frames of 32 x 24 pixels, more than 7679"):
        frames_of_video(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 32 * 24 - 1)
    with pytest.raises(DataError, match=r"32 x 24 pixels are more than 767"):
        open_video(path)


def test_a_broken_video_is_a_fault_of_its_row(tmp_path: Path):
    write_video(tmp_path / "a.mp4")
    (tmp_path / "b.mp4").write_bytes((tmp_path / "a.mp4").read_bytes()[:500])
    rows = [f'{{"prompt": "p", "video": "{name}.mp4"}}' for name in "ab"]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    first, second = load_prompts(tmp_path / "rows.jsonl")
    assert media_fault(first) is None
    assert "b.mp4 cannot be opened as a video" in (media_fault(second) or "")
