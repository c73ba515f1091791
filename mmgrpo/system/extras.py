"""Packages that only some rewards, trackers and servers need, and what installs them."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
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


TRACKERS_KEY = "tracking.trackers"
"""The setting that names trackers, each of which is a package."""

CHECKOUT = Path(__file__).parents[2]
"""The checkout that mmgrpo is imported from, if it has a pyproject.toml; else the folder of installed packages."""


def missing(package: str, wanted_by: str) -> MissingPackageError:
    """The error that says what needs a package and how to install it.

    Args:
        package: top-level name of the module that is not there.
        wanted_by: what needs it, in the user's words.

    Returns:
        The error, to be raised.
    """
    return MissingPackageError(f"{wanted_by} needs the package {package!r}: {install_command(package)}")


def install_command(package: str) -> str:
    """What installs an optional package into this installation of mmgrpo, which is on no package index.

    Args:
        package: top-level name of the module.

    Returns:
        Of a package of an extra: the commands for the checkout that mmgrpo is imported from; where it is not imported
        from a checkout, pip with the requirements of that extra. Of any other package: pip with its name.
    """
    extra = EXTRA_OF.get(package)
    if extra is None:
        return f"pip install {package}, or in a checkout of mmgrpo uv run --with {package} mmgrpo ..."
    if (CHECKOUT / "pyproject.toml").is_file():
        return f"in {CHECKOUT}, uv sync --inexact --extra {extra}, or pip install -e '.[{extra}]'"
    return f"pip install {' '.join(_requirements(extra))}"


def _requirements(extra: str) -> list[str]:
    """The requirements of an extra, quoted for a shell, as the metadata of the installed package has them."""
    try:
        listed = requires("mmgrpo") or []
    except PackageNotFoundError:
        listed = []
    parted = [requirement.partition(";") for requirement in listed]
    return [
        shlex.quote(name.strip()) for name, _, marker in parted if f"extra == '{extra}'" in marker.replace('"', "'")
    ]


def require_installed(packages: Iterable[str], wanted_by: str) -> None:
    """Raises MissingPackageError for the first of these modules that is not installed; imports none of them."""
    for package in packages:
        if not is_installed(package):
            raise missing(package, f"{wanted_by}: {package}")


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
