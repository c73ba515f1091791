"""Images of every Pillow mode in RGB: depth scaled to 8 bits, transparency on white."""

from __future__ import annotations

import numpy as np
from PIL import Image

MAX_8_BIT, MAX_16_BIT = 255, 65535
WHITE_IS_ZERO = "white_is_zero"
"""Key of ``Image.info`` of gray TIFF images whose 0 is white; Pillow inverts those of 8 bits alone."""
DEEP_FORMATS = ("PNG", "PPM")
"""File formats with 16 bits in mode ``I``: Pillow scales PPM to them, and its versions before 11 read PNG so."""


def in_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB, 8 bits a channel; transparent pixels are blended with white.

    ``I;16`` has the range 0 to 65535. ``I`` has that range if the file is a PNG or PPM, or if a value is above 255,
    else 0 to 255. ``F`` has the range 0 to 1 if no value is above 1, else 0 to 255.

    Raises: ValueError for NaN, infinite or negative values, and for values above the range.
    """
    if image.mode == "F" or image.mode.startswith("I"):
        return _gray(image)
    if image.mode == "La":
        image = image.convert("LA")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


def _gray(image: Image.Image) -> Image.Image:
    """A gray image of 16 or 32 bits a pixel in RGB."""
    value_HW = np.asarray(image).astype(np.float64)
    low, high = float(value_HW.min()), float(value_HW.max())
    top = _range_of(image, high)
    if not (low >= 0 and high <= top):  # NaN is neither
        allowed = "0 to 1 or 0 to 255" if image.mode == "F" else f"0 to {top}"
        values = f"{low:g} to {high:g}" if np.isfinite(value_HW).all() else "NaN or infinite values"
        raise ValueError(f"an image of mode {image.mode} must have values from {allowed}, got {values}; rescale it")
    gray_HW = (value_HW * (MAX_8_BIT / top)).round().astype(np.uint8)
    if image.info.get(WHITE_IS_ZERO):
        gray_HW = MAX_8_BIT - gray_HW
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        gray_HW[value_HW == transparent] = MAX_8_BIT
    return Image.fromarray(gray_HW).convert("RGB")


def _range_of(image: Image.Image, high: float) -> int:
    """The value that is white."""
    if image.mode == "F":
        return 1 if high <= 1 else MAX_8_BIT
    is_deep = image.mode != "I" or image.format in DEEP_FORMATS or high > MAX_8_BIT
    return MAX_16_BIT if is_deep else MAX_8_BIT
