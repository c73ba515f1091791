"""Images of every mode that Pillow reads come out as the colors that they show."""

from __future__ import annotations

import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmgrpo.data.image_loading import load_image
from mmgrpo.data.prompt_media import RowLocation
from mmgrpo.errors import DataError

RAMP = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (4, 1))
COLORS = [(200, 30, 60), (10, 120, 250)]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"


def pixels(image: object) -> np.ndarray:
    return np.asarray(load_image(image)).astype(int)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_16_bit_gray_is_scaled_to_8(tmp_path: Path, name: str):
    Image.fromarray(RAMP).save(tmp_path / name)
    expected = np.repeat((RAMP / 257).round()[..., None], 3, axis=2)  # 65535 / 257 = 255
    assert np.array_equal(pixels(tmp_path / name), expected)


@pytest.mark.parametrize(("white", "dtype"), [(200, np.uint8), (51400, np.uint16)])
def test_a_tiff_with_white_zero_is_inverted(white: int, dtype: type):
    buffer = BytesIO()
    Image.fromarray(np.array([[0, white]], dtype)).save(buffer, "TIFF")
    data = bytearray(buffer.getvalue())
    start = struct.unpack("<I", data[4:8])[0]  # of the directory: its number of entries, then 12 bytes for each
    for entry in range(start + 2, start + 2 + 12 * struct.unpack("<H", data[start : start + 2])[0], 12):
        if struct.unpack("<H", data[entry : entry + 2])[0] == 262:
            data[entry + 8 : entry + 10] = struct.pack("<H", 0)
    assert pixels(bytes(data))[0, :, 0].tolist() == [255, 55]


@pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B", "I;16N"])
def test_every_16_bit_mode_is_scaled(mode: str):
    assert pixels(Image.new(mode, (1, 1), 257 * 100)).tolist() == [[[100] * 3]]


def test_32_bit_integers_have_the_range_of_their_file_or_values(tmp_path: Path):
    low, high = (Image.fromarray(np.array([[0, top]], dtype=np.int32)) for top in (200, 51400))
    assert pixels(low)[0, :, 0].tolist() == [0, 200]
    assert pixels(high)[0, :, 0].tolist() == [0, 200]
    low.save(tmp_path / "dark.pgm")  # 200 of 65535
    assert pixels(tmp_path / "dark.pgm")[0, :, 0].tolist() == [0, 1]


@pytest.mark.parametrize("top", [1, 255])
def test_floats_have_a_range_of_1_or_255(tmp_path: Path, top: int):
    Image.fromarray((RAMP / 65535 * top).astype(np.float32)).save(tmp_path / "a.tif")
    assert np.array_equal(pixels(tmp_path / "a.tif")[..., 0], (RAMP / 257).round())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array([[0.0, np.nan]], np.float32), "got NaN or infinite values"),
        (np.array([[0.0, np.inf]], np.float32), "got NaN or infinite values"),
        (np.array([[-0.5, 0.5]], np.float32), "0 to 1 or 0 to 255, got -0.5 to 0.5"),
        (np.array([[0.0, 3000.0]], np.float32), "0 to 1 or 0 to 255, got 0 to 3000"),
        (np.array([[-1, 5]], np.int32), "0 to 255, got -1 to 5"),
        (np.array([[0, 70000]], np.int32), "0 to 65535, got 0 to 70000"),
    ],
)
def test_values_out_of_range_are_an_error(values: np.ndarray, reason: str):
    with pytest.raises(DataError, match=reason):
        load_image(Image.fromarray(values))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"])
def test_color_modes_show_their_colors(mode: str):
    image = Image.new("RGB", (2, 1))
    image.putdata(COLORS)
    source = image.convert("RGBA") if mode == "RGBa" else image
    tolerance = 25 if mode == "LAB" else 4  # 8 bits of LAB do not hold a saturated blue
    assert np.abs(pixels(source.convert(mode))[0] - COLORS).max() <= tolerance


@pytest.mark.parametrize("mode", ["1", "L", "LA", "La", "P", "PA"])
def test_gray_and_palette_modes_show_black_and_white(mode: str):
    image = Image.new("L", (2, 1))
    image.putdata([0, 255])
    source = image.convert("LA") if mode == "La" else image
    assert pixels(source.convert(mode))[0].tolist() == [[0] * 3, [255] * 3]


@pytest.mark.parametrize(
    ("mode", "hidden", "visible", "color"),
    [("1", 0, 1, 255), ("L", 10, 100, 100), ("I;16", 10, 25700, 100), ("P", 1, 0, 0), ("RGB", (1, 2, 3), (9,) * 3, 9)],
)
def test_a_transparent_value_is_white(mode: str, hidden: object, visible: object, color: int):
    image = Image.new(mode, (2, 1), visible)  # type: ignore[arg-type]
    if mode == "P":
        image.putpalette([0, 0, 0, 200, 10, 10])
    image.putpixel((1, 0), hidden)  # type: ignore[arg-type]
    buffer = BytesIO()
    image.save(buffer, format="PNG", transparency=hidden)
    assert pixels(buffer.getvalue())[0].tolist() == [[color] * 3, [255] * 3]


def test_orientation_is_applied_to_16_bit_images(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(RAMP).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(pixels(tmp_path / "a.png")[..., 0], np.rot90((RAMP / 257).round(), 2))


def test_postscript_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("ghostscript was started"))
    (tmp_path / "a.png").write_bytes(EPS)
    lazy = Image.open(tmp_path / "a.png")
    assert lazy.format == "EPS"
    for image in (tmp_path / "a.png", EPS, lazy):
        with pytest.raises(DataError, match=r"PostScript is not opened.*convert it to PNG"):
            load_image(image)
    with pytest.raises(DataError, match=r"row 3: .*PostScript is not opened"):
        RowLocation("row 3", tmp_path).medium("a.png", "image")
