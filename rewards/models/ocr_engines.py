"""Local OCR engines; each returns the detected lines with their positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.system.extras import required

from ..parsing.boxes import Box, CoordinateFrame

MAX_RATIO = 4
"""Images with a larger aspect ratio are padded with white, because engines upscale the shorter side, which takes
minutes for thin strips.
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text and its box, in pixels of the image; None if the engine gives no box."""

    text: str
    box: Box | None


Engine = Callable[[Image.Image], Sequence[Line]]


def rapidocr(languages: tuple[str, ...], device: torch.device) -> Engine:
    """RapidOCR 3: PP-OCR models from its wheel, run by ONNX Runtime with as many threads as torch.

    It is not thread-safe, so calls are serialized. CUDA needs the package onnxruntime-gpu.

    Raises: ConfigError for several languages.
    """
    if len(languages) > 1:
        raise ConfigError(f"rapidocr reads with one model; name one of its languages or none, got {list(languages)}")
    package, runtime = (required(name, "engine rapidocr") for name in ("rapidocr", "onnxruntime"))
    settings: dict[str, Any] = {
        "Global.log_level": "critical",
        "EngineConfig.onnxruntime.intra_op_num_threads": torch.get_num_threads(),
        "EngineConfig.onnxruntime.use_cuda": device.type == "cuda"
        and "CUDAExecutionProvider" in runtime.get_available_providers(),
        "EngineConfig.onnxruntime.cuda_ep_cfg.device_id": device.index or 0,
    }
    if languages:
        settings["Rec.lang_type"] = languages[0]
    engine = package.RapidOCR(params=settings)
    lock = Lock()

    def read(image: Image.Image) -> list[Line]:
        with lock:
            result = engine(_padded(image))
        quads = result.boxes if result.boxes is not None else ()
        return [Line(text, _around(quad, image)) for text, quad in zip(result.txts or (), quads, strict=True)]

    return _tried(read, "rapidocr")


def easyocr(languages: tuple[str, ...], device: torch.device) -> Engine:
    """EasyOCR, which downloads its weights on first use."""
    reader: Any = required("easyocr", "engine easyocr").Reader(list(languages or ["en"]), gpu=device.type == "cuda")
    lock = Lock()

    def read(image: Image.Image) -> list[Line]:
        with lock:
            detections = reader.readtext(np.asarray(_padded(image)))
        return [Line(text, _around(quad, image)) for quad, text, _ in detections]

    return _tried(read, "easyocr")


def pytesseract(languages: tuple[str, ...], device: torch.device) -> Engine:
    """The program ``tesseract``, started for every image, with its language codes: eng, deu, chi_sim."""
    package = required("pytesseract", "engine pytesseract")

    def read(image: Image.Image) -> list[Line]:
        data = package.image_to_data(_padded(image), lang="+".join(languages) or None, output_type=package.Output.DICT)
        rows = zip(data["text"], data["left"], data["top"], data["width"], data["height"], strict=True)
        return [
            Line(text, _around([(left, top), (left + width, top + height)], image))
            for text, left, top, width, height in rows
            if text.strip()
        ]

    return _tried(read, "pytesseract")


ENGINES: dict[str, Callable[[tuple[str, ...], torch.device], Engine]] = {
    "rapidocr": rapidocr,
    "easyocr": easyocr,
    "pytesseract": pytesseract,
}


def _tried(engine: Engine, name: str) -> Engine:
    """Check that the engine reads a word. Raises RewardError otherwise, because some engines only log missing
    models.
    """
    trial = Image.new("RGB", (320, 96), "white")
    ImageDraw.Draw(trial).text((24, 20), "WORD", fill="black", font=ImageFont.load_default(48))
    read = " ".join(line.text for line in engine(trial))
    if "word" not in read.casefold():
        raise RewardError(f"{name} read {read!r} from an image of WORD; check whether its models are complete")
    return engine


def _padded(image: Image.Image) -> Image.Image:
    """Pad a strip with white on the right or below."""
    least = -(-max(image.size) // MAX_RATIO)
    if min(image.size) >= least:
        return image
    canvas = Image.new("RGB", (max(image.width, least), max(image.height, least)), "white")
    canvas.paste(image)
    return canvas


def _around(corners: Any, image: Image.Image) -> Box:
    """The axis-aligned bounding box of points."""
    x, y = np.asarray(corners, dtype=np.float64).reshape(-1, 2).T.tolist()
    return Box(min(x), min(y), max(x), max(y), CoordinateFrame("original", *image.size))
