"""Packages that only some rewards, trackers and servers need, and what installs them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from mmgrpo.errors import MissingPackageError

EXTRA_OF: Mapping[str, str] = {
    "sklearn": "rewards",
    "scipy": "rewards",
    "threadpoolctl": "rewards",
    "rapidfuzz": "rewards",
    "math_verify": "math",
    "latex2sympy2_extended": "math",
    "rapidocr": "ocr",
    "onnxruntime": "ocr",
    "pytesseract": "ocr",
    "fastapi": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
    "tensorboard": "trackers",
    "wandb": "trackers",
    "trackio": "trackers",
    "deepspeed": "deepspeed",
}
"""Module -> the extra of this package that brings it; what is not here comes with every install."""


def missing(package: str, wanted_by: str) -> MissingPackageError:
    """The error that says what needs a package and how to install it.

    Args:
        package: top-level name of the module that is not there.
        wanted_by: what needs it, in the user's words.

    Returns:
        The error, to be raised.
    """
    extra = EXTRA_OF.get(package)
    what, option = (f"'mmgrpo[{extra}]'", f"--extra {extra}") if extra else (package, f"--with {package}")
    cure = f"pip install {what}, or in a clone uv run {option} mmgrpo ..."
    return MissingPackageError(f"{wanted_by} needs the package {package!r}: {cure}")


def required(module: str, wanted_by: str) -> Any:
    """An optional module, imported now.

    Args:
        module: its dotted name.
        wanted_by: what needs it, in the user's words.

    Returns:
        The module.

    Raises:
        MissingPackageError: its package is not installed; the message names what to install.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise missing(package, wanted_by) from error


def is_installed(package: str) -> bool:
    """Whether a module of that top-level name can be found, without importing it."""
    try:
        return find_spec(package) is not None
    except ValueError:  # a module that is there without a specification, or is kept from being imported
        return False
