from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mmgrpo.rewards.images.pixels import Brightness, JpegSize
from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt, Sample


def image_sample(image: Image.Image | None) -> Sample:
    return Sample(Prompt("anything"), group=0, member=0, image=image)


def noise() -> Image.Image:
    return Image.fromarray(np.random.RandomState(0).randint(0, 256, size=(32, 32, 3)).astype(np.uint8))


def test_jpeg_size_is_that_of_the_file(tmp_path: Path):
    noise().save(tmp_path / "noise.jpg", quality=95)
    kilobytes = (tmp_path / "noise.jpg").stat().st_size / 1000
    assert JpegSize()([image_sample(noise())]) == [-kilobytes]
    assert JpegSize(sign=1)([image_sample(noise())]) == [kilobytes]


def test_jpeg_size_prefers_plain_images_and_lower_quality():
    samples = [image_sample(Image.new("RGB", (32, 32), "teal")), image_sample(noise())]
    (plain, busy), (_, rough) = np.array(JpegSize()(samples)), np.array(JpegSize(quality=10)(samples))
    assert busy < rough < 0
    assert busy < plain < 0


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_jpeg_size_is_one_scale_for_all_modes(mode: str):
    gray = noise().convert("L")
    assert JpegSize()([image_sample(gray.convert(mode))]) == JpegSize()([image_sample(gray.convert("RGB"))])


def test_brightness_by_hand():
    halves = Image.fromarray(np.repeat(np.array([[0, 255]], dtype=np.uint8), 4, axis=0))
    dark = Image.new("RGB", (4, 4), (51, 51, 51))  # 51 / 255 = 0.2
    assert Brightness(0.7)([image_sample(dark), image_sample(halves)]) == pytest.approx([0.5, 0.8])
    assert Brightness()([image_sample(Image.new("L", (2, 2), 255))]) == [1.0]


def test_samples_without_an_image_are_not_scored():
    assert JpegSize()([image_sample(None)]) == [None]
    assert Brightness()([image_sample(None)]) == [None]


def test_invalid_settings_raise():
    with pytest.raises(ConfigError, match=r"-1 .* or 1 .*, got 2"):
        JpegSize(sign=2)
    with pytest.raises(ConfigError, match=r"1\.\.95, got 100"):
        JpegSize(quality=100)
    with pytest.raises(ConfigError, match=r"\[0, 1\], got 255"):
        Brightness(255)
