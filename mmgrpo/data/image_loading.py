"""Loads images of prompts: PIL images, paths, bytes, base64 texts and the mappings that datasets store."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Literal, final, overload
from urllib.parse import unquote, unquote_to_bytes, urlparse

from PIL import Image, ImageOps, UnidentifiedImageError

from mmgrpo.data.image_modes import WHITE_IS_ZERO, in_rgb
from mmgrpo.errors import DataError

UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""Exceptions of Pillow for a file that is missing, cut off, too large or no image."""

EXTERNAL_FORMATS = frozenset(("EPS", "WMF", "BUFR", "GRIB", "HDF5", "MPEG"))
"""Formats that are never opened: Pillow starts ghostscript for EPS, and has no decoder for the others."""

PHOTOMETRIC = 262
"""Tag of TIFF files that is 0 where 0 is white."""

_POSTSCRIPT = (b"%!PS", b"\xc5\xd0\xd3\xc6")  # also with a binary preview before it

_LOCAL_HOPS = frozenset(("file", "local", "zip", "tar", "gzip", "bz2", "xz", "lzma", "zstd", "lz4"))
"""Protocols within an fsspec chain that read local files."""

_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}+={0,2}+\s*+")


PictureFormat = Literal["png", "jpeg"]


def data_url(image: Image.Image, form: PictureFormat) -> str:
    """An image as a ``data:`` URL: PNG (lossless) or JPEG of quality 95."""
    buffer = BytesIO()
    image.convert("RGB").save(buffer, format=form.upper(), **({"quality": 95} if form == "jpeg" else {}))
    return f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def load_image(image: object) -> Image.Image:
    """The decoded image, upright and in RGB.

    The EXIF orientation is applied; transparency is blended with white; more than 8 bits a channel are scaled to 8
    (``in_rgb``).

    Args:
        image: a PIL image; a path (``file://`` too); the bytes of a file; its base64 text or ``data:`` URL; or a
            mapping that holds ``bytes`` or ``path``, as datasets store images.

    Returns:
        A new image; the argument is not changed.

    Raises:
        DataError: the image cannot be opened (the message has its path, if any), or is a URL; URLs are not fetched.
    """
    source = _image_source(image)
    try:
        if isinstance(source, Image.Image):
            require_decoder(source)
            return in_rgb(apply_orientation(source))
        with open_image_file(BytesIO(source) if isinstance(source, bytes) else source) as opened:
            return in_rgb(apply_orientation(opened))
    except UNREADABLE as error:
        raise DataError(unreadable_message(image, error)) from error


def load_images(value: object) -> list[Image.Image]:
    """The images of a value, one or a sequence, each loaded by ``load_image``; an empty list for None."""
    if value is None:
        return []
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return [load_image(image) for image in value]
    return [load_image(value)]


def load_image_column(columns: Mapping[str, object], name: str) -> list[Image.Image]:
    """The images in a column of a row, loaded by ``load_images``.

    Raises: DataError if an image cannot be opened; the message explains how to resolve paths relative to the data file.
    """
    value = columns.get(name)
    try:
        return load_images(value)
    except DataError as error:
        if not isinstance(value, str | list):
            raise
        raise DataError(
            f"column '{name}': {error}; prompts.image_columns: [{name}] resolves paths relative to the data file"
        ) from error


@final
class LazyImages(Sequence[Image.Image]):
    """Images that are loaded on each access."""

    def __init__(self, images: Sequence[object]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, index: int) -> Image.Image: ...
    @overload
    def __getitem__(self, index: slice) -> LazyImages: ...
    def __getitem__(self, index: int | slice) -> Image.Image | LazyImages:
        return LazyImages(self._images[index]) if isinstance(index, slice) else load_image(self._images[index])


def open_image_file(source: str | Path | BytesIO) -> Image.Image:
    """The image of a file, opened but not decoded.

    Raises: DecompressionBombError for more pixels than ``Image.MAX_IMAGE_PIXELS``, where Pillow only warns;
    UnidentifiedImageError for a file that is no image, or in a format of ``EXTERNAL_FORMATS``.
    """
    try:
        image = Image.open(source, formats=_formats())
    except UnidentifiedImageError as error:
        if _head(source).startswith(_POSTSCRIPT):
            raise UnidentifiedImageError(_EPS) from error
        raise
    try:
        require_pixels(*image.size)
    except Image.DecompressionBombError:
        image.close()
        raise
    return image


def require_decoder(image: Image.Image) -> None:
    """Raises UnidentifiedImageError for an open image of a format that is never decoded, such as EPS."""
    if getattr(image, "format", None) in EXTERNAL_FORMATS:
        raise UnidentifiedImageError(_EPS if image.format == "EPS" else f"{image.format} files are not opened")


def _formats() -> list[str]:
    """Formats that are opened: all of Pillow and its plugins except ``EXTERNAL_FORMATS``."""
    Image.init()
    return [name for name in Image.ID if name not in EXTERNAL_FORMATS]


def _head(source: str | Path | BytesIO) -> bytes:
    if isinstance(source, BytesIO):
        return bytes(source.getbuffer()[:4])
    with open(source, "rb") as file:
        return file.read(4)


_EPS = "PostScript is not opened, since reading it runs ghostscript; convert it to PNG"


def require_pixels(width: int, height: int) -> None:
    """Raises DecompressionBombError for more pixels than Pillow opens without a warning."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise Image.DecompressionBombError(f"{width} x {height} pixels are more than {limit}; it may be a bomb")


def apply_orientation(image: Image.Image) -> Image.Image:
    """The image rotated by its EXIF orientation, with its mode and the format of its file."""
    upright = ImageOps.exif_transpose(image)
    upright.format = image.format
    if getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == 0:
        upright.info[WHITE_IS_ZERO] = True  # the tag itself belongs to the file
    return upright


def decode_image_text(text: str) -> bytes | None:
    """The bytes of an image from a ``data:`` URL or a base64 text; None for any other text.

    Raises: DataError for a ``data:`` URL that is cut off.
    """
    if text.startswith("data:"):
        head, comma, data = text.partition(",")
        try:
            payload = base64.b64decode(data, validate=True) if head.endswith(";base64") else unquote_to_bytes(data)
        except binascii.Error as error:
            raise DataError(f"the image {text[:40]}... is declared as base64 but is not: {error}") from error
        if not comma or not payload:
            raise DataError(f"the image {text[:40]} is a data: URL that holds no data; is it cut off?")
        return payload
    if not _BASE64.fullmatch(text):
        return None
    try:
        data = base64.b64decode(text)
        open_image_file(BytesIO(data)).close()
    except (*UNREADABLE, binascii.Error):
        return None
    return data


def path_from_text(text: str) -> str:
    """The path of a text with or without the prefix ``file://``."""
    return unquote(urlparse(text).path) if text.startswith("file://") else text


def is_url(text: str) -> bool:
    """Whether a text is the URL of a file on the network or inside an archive."""
    return "://" in text and not text.startswith(("data:", "file://"))


def is_fetched(text: str) -> bool:
    """Whether reading a path or URL uses the network: a URL, or an fsspec chain with one
    (``zip://a.png::http://...``)."""
    *outer, last = text.split("::")
    schemes = [hop.partition("://")[0] for hop in outer] + ([last.partition("://")[0]] if "://" in last else [])
    return is_url(text) and not all(scheme.lower() in _LOCAL_HOPS for scheme in schemes)


def require_local_file(text: str) -> str:
    """The path of a local file, with or without the prefix ``file://``.

    Raises: DataError for a URL, since URLs are not fetched, and for a path that is no regular file, such as a pipe.
    """
    path = path_from_text(text)
    if not os.path.exists(path) and is_url(text):
        raise DataError(f"{text[:200]} is a URL and nothing is fetched; download it and give its path")
    if os.path.exists(path) and not os.path.isfile(path):
        raise DataError(f"{text[:200]} is no ordinary file; give the path of one")
    return path


def unreadable_message(image: object, error: Exception) -> str:
    """The error message for an image that cannot be opened."""
    name = str(image)[:200] if isinstance(image, str | Path) else f"the image ({_describe(image)})"
    reason = f"{type(error).__name__}: {error}"[:200]
    return f"{name} cannot be opened as an image ({reason}); replace it or leave its row out"


def _image_source(image: object) -> Image.Image | bytes | Path:
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, Path):
        return Path(require_local_file(str(image)))
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, Mapping):
        stored = image.get("bytes") or image.get("path")
        if stored is not None:
            return _image_source(stored)
    if isinstance(image, str):
        data = None if os.path.exists(path_from_text(image)) else decode_image_text(image)
        return Path(require_local_file(image)) if data is None else data
    raise DataError(
        f"an image must be a PIL image, a path, bytes, base64 or a mapping with 'bytes' or 'path', got "
        f"{_describe(image)}"
    )


def _describe(image: object) -> str:
    if isinstance(image, bytes | bytearray | memoryview):
        return f"{len(image)} bytes"
    if isinstance(image, Mapping):
        return f"a mapping of {', '.join(map(str, image)) or 'nothing'}"
    return f"a {type(image).__name__}"
