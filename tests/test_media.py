"""Images, opened from every form they come in."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmgrpo.data.image_loading import LazyImages, decode_image_text, load_image
from mmgrpo.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 5, 3), dtype=np.uint8)


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Image.fromarray(PIXELS).save(tmp_path / "a picture.png")
    return tmp_path / "a picture.png"


def test_every_form_gives_the_same_image(path: Path):
    data = path.read_bytes()
    text = base64.b64encode(data).decode()
    forms = [
        Image.fromarray(PIXELS),
        path,
        str(path),
        path.as_uri(),
        data,
        bytearray(data),
        {"bytes": data, "path": None},
        {"bytes": None, "path": str(path)},
        text,
        f"data:image/png;base64,{text}",
    ]
    for form in forms:
        image = load_image(form)
        assert image.mode == "RGB"
        assert np.array_equal(np.asarray(image), PIXELS), form


def test_orientation_is_applied_once(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned 90 degrees clockwise
    Image.fromarray(PIXELS).save(tmp_path / "turned.png", exif=exif)
    once = load_image(tmp_path / "turned.png")
    assert np.array_equal(np.asarray(once), np.rot90(PIXELS, -1))
    assert np.array_equal(np.asarray(load_image(once)), np.rot90(PIXELS, -1))


def test_every_mode_is_converted_to_rgb_with_white_transparency():
    gray = load_image(Image.fromarray(PIXELS[..., 0]))
    assert np.array_equal(np.asarray(gray), np.repeat(PIXELS[..., :1], 3, axis=2))
    layer = Image.new("RGBA", (3, 1), (200, 0, 0, 255))
    layer.putpixel((1, 0), (200, 0, 0, 0))
    layer.putpixel((2, 0), (255, 0, 0, 51))  # 51 / 255 = 0.2 of red over 0.8 of white
    assert np.asarray(load_image(layer)).tolist() == [[[200, 0, 0], [255, 255, 255], [255, 204, 204]]]


def test_the_given_image_is_left_as_it_is():
    image = Image.fromarray(PIXELS)
    load_image(image).putpixel((0, 0), (0, 0, 0))
    assert np.array_equal(np.asarray(image), PIXELS)


def test_unreadable_images_are_named(path: Path, tmp_path: Path):
    (tmp_path / "cut.png").write_bytes(png(Image.effect_noise((64, 64), 50))[:1000])
    (tmp_path / "text.png").write_text("not a picture")
    cases = [
        (tmp_path / "absent.png", r"absent.png cannot be opened as an image \(FileNotFoundError"),
        (str(tmp_path / "cut.png"), r"cut.png cannot be opened as an image \(OSError: .*truncated"),
        (str(tmp_path / "text.png"), r"text.png cannot be opened as an image \(UnidentifiedImageError"),
        ({"bytes": b"12345", "path": None}, "a mapping of bytes, path.* cannot be opened"),
        ("https://example.org/a.png", "is a URL and nothing is fetched; download it"),
        ("data:image/png;base64,AAA", "is declared as base64 but is not"),
        ("data:image/png;base64", "holds no data"),
        ({"bytes": None, "path": None}, "must be a PIL image, a path, .* got a mapping of bytes, path"),
        (7, "must be a PIL image, a path, .* got a int"),
    ]
    for image, message in cases:
        with pytest.raises(DataError, match=message):
            load_image(image)


def test_only_images_count_as_base64():
    assert decode_image_text("a/folder/of/words" * 10) is None
    assert (
        decode_image_text(base64.b64encode(b"some text that is long enough to be taken for an image").decode()) is None
    )


def test_lazy_images_open_on_access(path: Path):
    gallery = LazyImages([path, "absent.png", Image.fromarray(PIXELS)])
    assert len(gallery) == 3
    assert [image.size for image in gallery[::2]] == [(5, 3), (5, 3)]
    assert np.array_equal(np.asarray(gallery[0]), PIXELS)
    with pytest.raises(DataError, match=r"absent.png cannot be opened"):
        list(gallery)
