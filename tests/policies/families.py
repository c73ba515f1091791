"""Which tiny models a test that is for all of them takes each time; the others it takes by night."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

EVERYDAY = {
    "denoising": ("sd15", "sd3", "flux", "wan"),
    "language": ("llama", "qwen2", "qwen2.5-vl", "qwen3-vl"),
    "masked": ("eurobert", "amused"),
    "image_tokens": ("janus",),
    "reading": ("sdxl", "qwen-image", "cogvideox"),  # the four of every day have tests of their own beside it
}


def families(of: str, names: Iterable[str]) -> list[Any]:
    """The parameters of a test, a family each; those that are not of every day have the mark ``nightly``."""
    known = tuple(names)
    assert set(EVERYDAY[of]) <= set(known)
    return [pytest.param(name, marks=() if name in EVERYDAY[of] else pytest.mark.nightly) for name in known]
