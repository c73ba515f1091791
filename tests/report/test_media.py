"""Pictures and videos, as they travel in the page."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from mmgrpo.data.clips import decoded as clip_frames
from mmgrpo.data.clips import encoded
from tests.policies.families import daily
from tests.report.folder import STEPS, sample, write_lines
from tests.report.page import decoded, render


@pytest.mark.nightly
def test_large_images_are_reduced_until_the_page_is_small(run: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    for step in STEPS:
        for request in range(6):
            Image.fromarray(noise).save(run / f"samples/step-{step:06d}/{request:04d}.png")
    page = render(run)
    images = [decoded(attrs["src"]) for attrs in page.attributes("img")]
    # 30 images share 4.8 MB; a file is about 197 kB, which is more than 160 kB
    assert {image.format for image in images} == {"WEBP"}
    assert "30 images are reduced" in page.texts("p", "lead")[0]
    assert (run / "report.html").stat().st_size < 8_000_000


@pytest.mark.first_case
@pytest.mark.parametrize(("side", "exact"), [(16, True), (128, False)])
def test_videos_keep_moving(run: Path, side: int, exact: bool) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (4, side, side, 3), dtype=np.uint8)
    frames = [Image.fromarray(frame) for frame in noise]
    for step in STEPS:
        folder = run / f"samples/step-{step:06d}"
        frames[0].save(folder / "0.webp", save_all=True, append_images=frames[1:], duration=125, lossless=True)
        write_lines(folder / "samples.jsonl", [sample("0.webp", r, 1.0) for r in range(6)])
    for attrs in render(run).attributes("img"):
        images = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(decoded(attrs["src"]))]
        assert len(images) == 4
        assert not exact or np.array_equal(np.stack(images), noise)
        assert not np.array_equal(images[0], images[1])


@pytest.mark.nightly
@pytest.mark.parametrize(("side", "exact"), daily([(16, True), (256, False)], (16, True)))
def test_mp4_files_are_played_with_their_frames_at_hand(run: Path, side: int, exact: bool) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (12, side, side, 3), dtype=np.uint8)
    data = encoded([Image.fromarray(frame) for frame in noise], 6.0, quality=16 if exact else 0)
    small = encoded([Image.new("L", (16, 16))], 6.0)
    for step in STEPS:
        folder = run / f"samples/step-{step:06d}"
        (folder / "0.mp4").write_bytes(data)
        (folder / "1.mp4").write_bytes(small)
        write_lines(folder / "samples.jsonl", [sample("1.mp4" if r else "0.mp4", r, 1.0) for r in range(6)])
    page = render(run)
    players = page.attributes("video")
    assert len(players) == 6 * 2 + 6 * len(STEPS)
    assert {(attrs["muted"], attrs["loop"]) for attrs in players} == {("", "")}
    assert "media-src data:" in (run / "report.html").read_text()
    assert (run / "report.html").stat().st_size < 8_000_000
    large = sorted(players, key=lambda attrs: len(attrs["src"]))[-2 - len(STEPS) :]
    for attrs in large[:2]:
        head, carried = attrs["src"].split(",", 1)
        assert head == "data:video/mp4;base64"
        content = base64.b64decode(carried, validate=True)
        assert (content == data) is exact
        frames, rate = clip_frames(content, max_pixels=2**26)
        assert (len(frames), rate) == (12, 6.0)
        strip = decoded(attrs["data-frames"])
        assert strip.width == 8 * (strip.height + 2) - 2
