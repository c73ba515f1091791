from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
from mmgrpo.rewards.images.textures import Color, GridArtifacts, Sharpness, grid_shares, lab
from PIL import Image, ImageFilter
from sklearn.datasets import load_digits, load_sample_images

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample
from tests.rewards.image_samples import drew, explanations, filmed, noise, numbers


def grid_scores(samples: Sequence[Sample]) -> list[float | None]:
    return numbers(GridArtifacts()(samples))


def halves(left: str, right: str) -> Image.Image:
    image = Image.new("RGB", (8, 4), left)
    image.paste(right, (6, 0, 8, 4))
    return image


def landscape() -> Image.Image:
    """Detail at every scale, as in photographs: noise whose amplitude falls with its frequency."""
    rng = np.random.RandomState(0)
    fy, fx = np.fft.fftfreq(256)[:, None], np.fft.rfftfreq(256)[None]
    shape = 1 / np.maximum(np.hypot(fy, fx), 1 / 256)
    field = np.fft.irfft2(np.fft.rfft2(rng.randn(256, 256)) * shape)
    field = (field - field.min()) / np.ptp(field) * 255
    return Image.fromarray(field.astype(np.uint8)).convert("RGB")


def with_grid(image: Image.Image, period: int, by: int) -> Image.Image:
    pixels = np.asarray(image).astype(int)
    pixels[:, ::period] += by
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def test_lab_of_known_colors() -> None:
    """Published values of the sRGB primaries under D65."""
    assert lab(np.array([255.0, 255, 255])) == pytest.approx([100, 0, 0], abs=0.02)
    assert lab(np.array([0.0, 0, 0])) == pytest.approx([0, 0, 0], abs=1e-9)
    assert lab(np.array([255.0, 0, 0])) == pytest.approx([53.24, 80.09, 67.20], abs=0.02)
    assert lab(np.array([0.0, 0, 255])) == pytest.approx([32.30, 79.19, -107.86], abs=0.02)


def test_color_is_a_share_of_the_pixels() -> None:
    picture = drew(halves("red", "blue"), color="#0000fe")  # 6 columns of 8 are red; a shade off is near enough
    assert Color("red")([picture]) == [0.75]
    assert Color()([picture]) == [0.25]
    assert Color("red", tolerance=300)([picture]) == [1.0]
    assert Color("red", target=0.5)([picture]) == [0.75]
    assert Color("red")([filmed([halves("red", "blue"), halves("blue", "red")])]) == [0.5]


def test_samples_without_image_or_color_are_not_scored() -> None:
    picture = halves("red", "blue")
    rows = [
        drew(None),
        drew(picture),
        drew(picture, color="sharp"),
        drew(picture, color=7),
        drew(picture, color="red"),
    ]
    assert Color()(rows) == [None, None, None, None, 0.75]


def test_sharpness_by_hand() -> None:
    """One white pixel in 7 x 7: the Laplacian is -4 * 255 there, 255 at its four neighbors, 0 elsewhere: mean 0."""
    image = Image.new("L", (7, 7))
    image.putpixel((3, 3), 255)
    variance = (16 + 4) * 255**2 / 49
    assert Sharpness(size=None)([drew(image)]) == pytest.approx([np.log10(1 + variance)])
    assert Sharpness(size=None)([drew(Image.new("L", (7, 7), 90))]) == [0.0]


def test_blur_lowers_sharpness_and_size_does_not_change_a_flat_image() -> None:
    sharp, soft = landscape(), landscape().filter(ImageFilter.GaussianBlur(2))
    high, low, nothing = Sharpness()([drew(sharp), drew(soft), drew(None)])
    assert nothing is None
    assert (high or 0) > (low or 0) + 0.5
    assert Sharpness(size=64)([drew(Image.new("RGB", (31, 90), "teal"))]) == [0.0]


@pytest.mark.parametrize("period", [2, 4, 8, 16])
def test_a_grid_on_an_image_is_detected_in_either_direction(period: int) -> None:
    clean, grid = landscape(), with_grid(landscape(), period, 40)
    plain, striped, turned = grid_scores([drew(clean), drew(grid), drew(grid.rotate(90, expand=True))])
    assert (plain or 0) < 0.1
    assert (striped or 0) > 0.15
    assert turned == pytest.approx(striped, abs=0.05)


def test_noise_and_flat_images_have_no_grid() -> None:
    white, flat = grid_scores([drew(noise(0, 256, 256)), drew(Image.new("RGB", (256, 256), "teal"))])
    assert (white or 0) < 0.1
    assert flat == 0.0


def test_a_pure_grid_is_all_grid_and_other_periods_are_none() -> None:
    stripes = np.zeros((128, 130))
    stripes[:, ::8] = 255
    assert grid_shares(stripes, 16) == pytest.approx({"lattice": 1}, abs=0.1)  # the local mean at the edges is the rest
    odd = np.tile((np.arange(130) % 11 < 5) * 255.0, (128, 1))
    assert grid_shares(odd, 16)["lattice"] < 0.2


PHOTOGRAPHS = [Image.fromarray(pixels) for pixels in load_sample_images().images]


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def enlarged(image: Image.Image, by: int, how: Image.Resampling) -> Image.Image:
    small = image.resize((image.width // by, image.height // by), Image.Resampling.LANCZOS)
    return small.resize((small.width * by, small.height * by), how)


def chequered(image: Image.Image, amplitude: int) -> Image.Image:
    pixels = np.asarray(image, dtype=np.int64)
    board_HW = np.indices(pixels.shape[:2]).sum(0) % 2 * 2 - 1
    return Image.fromarray((pixels + amplitude * board_HW[..., None]).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("photograph", PHOTOGRAPHS, ids=["temple", "flower"])
def test_photographs_have_no_grid_artifacts_and_their_grids_do(photograph: Image.Image) -> None:
    """Photographs with what generators and codecs do to them; the numbers were measured and are bounds."""
    rows = {
        "as it is": photograph,
        "good jpeg": jpeg(photograph, 95),
        "blocks": jpeg(photograph, 20),
        "coarse blocks": jpeg(photograph, 5),
        "pixels": enlarged(photograph, 8, Image.Resampling.NEAREST),
        "smooth pixels": enlarged(photograph, 8, Image.Resampling.BICUBIC),
        "chequered": chequered(photograph, 10),
    }
    result = dict(zip(rows, GridArtifacts()([drew(image) for image in rows.values()]), strict=True))
    value = {name: float(score or 0) for name, score in result.items()}
    assert value["as it is"] < 0.03
    assert value["good jpeg"] < 0.03
    assert value["blocks"] > 0.5
    assert value["coarse blocks"] > 0.7
    assert value["pixels"] > 0.7
    assert value["smooth pixels"] > 0.6
    assert value["chequered"] > 0.25
    (blocks, board) = (explanation or {} for explanation in explanations([result["blocks"], result["chequered"]]))
    assert blocks["parts"]["blocks"] > 0.5 > 0.01 > blocks["parts"]["lattice"]
    assert board["parts"]["lattice"] > 0.25 > 0.05 > board["parts"]["blocks"]


def test_sharpness_of_photographs_falls_with_blur_and_rises_with_grids() -> None:
    """Of its own size a chequered image is sharper than the photograph: the trap that grid_artifacts is for."""
    for photograph in PHOTOGRAPHS:
        blurred = [photograph.filter(ImageFilter.GaussianBlur(radius)) for radius in (0, 1, 2, 4)]
        result = numbers(Sharpness(size=None)([drew(image) for image in (*blurred, chequered(photograph, 10))]))
        sharp, *less, board = (value or 0 for value in result)
        assert board > sharp + 0.3
        assert all(before > after + 0.2 for before, after in pairwise([sharp, *less]))


def test_digits_are_no_grid_until_their_pixels_show() -> None:
    """Of 8 x 8 pixels, enlarged smoothly, or as squares of 32 pixels, of whose harmonics half are those of 16."""
    pixels_NHW = load_digits(return_X_y=True)[0][:4].reshape(-1, 8, 8)
    digits = [Image.fromarray((pixels * 255 / 16).astype(np.uint8)) for pixels in pixels_NHW]
    smooth = grid_scores([drew(digit.resize((300, 300), Image.Resampling.BICUBIC)) for digit in digits])
    square = grid_scores([drew(digit.resize((256, 256), Image.Resampling.NEAREST)) for digit in digits])
    assert max(value or 0 for value in smooth) < 0.05
    assert min(value or 0 for value in square) > 0.2


def test_small_images_are_scored_at_smaller_periods_or_not_at_all() -> None:
    stripes = with_grid(noise(0, 16, 16), 2, 100)
    result, nothing, empty = grid_scores([drew(stripes), drew(noise(0, 15, 15)), drew(None)])
    assert (result or 0) > 0.3
    assert nothing is None
    assert empty is None


def test_invalid_settings_raise() -> None:
    with pytest.raises(ConfigError, match="CSS name"):
        Color("reddish")
    with pytest.raises(ConfigError, match="positive"):
        Color("red", tolerance=0)
    with pytest.raises(ConfigError, match=r"\(0, 1\]"):
        Color("red", target=2)
    with pytest.raises(ConfigError, match="power of two"):
        GridArtifacts(period=12)
    with pytest.raises(ConfigError, match="at least 3"):
        Sharpness(size=1)
