"""Optional packages of rewards, trackers and servers, and the commands that install them."""

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
    "bm25s": "search",
    "duckdb": "sql",
    "mcp": "mcp",
    "textarena": "games",
    "gymnasium": "gymnasium",
    "openenv": "openenv",
    "verifiers": "verifiers",
    "reasoning_gym": "reasoning-gym",
    "miniwob": "screens",
    "bitsandbytes": "quantization",
    "torchao": "quantization",
    "cache_dit": "cache-dit",
}
"""Module -> the extra that installs it; other modules come with every install."""

TRACKERS_KEY = "runtime.trackers"
"""The setting that lists trackers, each of which is a package."""

CHECKOUT = Path(__file__).parents[2]
"""The checkout of mmgrpo, if it has a pyproject.toml; else the folder of installed packages."""


def missing(package: str, feature: str) -> MissingPackageError:
    """Returns an error that names a missing package, the feature that needs it, and the install command.

    Args:
        package: top-level name of the missing module.
        feature: the feature that needs it, in the user's words.

    Returns:
        The error, to be raised.
    """
    return MissingPackageError(f"{feature} needs the package {package!r}: {install_command(package)}")


def install_command(package: str) -> str:
    """Returns the command that installs an optional package; mmgrpo itself is on no package index.

    Args:
        package: top-level name of the module.

    Returns:
        For a package of an extra: the commands for the checkout, or without a checkout pip with the requirements of the
        extra and its name. For any other package: pip with its name.
    """
    extra = EXTRA_OF.get(package)
    if extra is None:
        return f"pip install {package}, or in a checkout of mmgrpo uv run --with {package} mmgrpo ..."
    if (CHECKOUT / "pyproject.toml").is_file():
        return f"in {CHECKOUT}, uv sync --inexact --extra {extra}, or pip install -e '.[{extra}]'"
    return f"pip install {' '.join(_requirements(extra))} (the extra mmgrpo[{extra}])"


def _requirements(extra: str) -> list[str]:
    """Returns the requirements of an extra from the metadata of the installed package, quoted for a shell."""
    try:
        requirements = requires("mmgrpo") or []
    except PackageNotFoundError:
        requirements = []
    parts = [requirement.partition(";") for requirement in requirements]
    return [shlex.quote(name.strip()) for name, _, marker in parts if f"extra == '{extra}'" in marker.replace('"', "'")]


def require_installed(packages: Iterable[str], feature: str) -> None:
    """Raises MissingPackageError for the first missing module; imports none of them."""
    for package in packages:
        if not is_installed(package):
            raise missing(package, f"{feature}: {package}")


def required(module: str, feature: str) -> Any:
    """Imports an optional module.

    Args:
        module: dotted name.
        feature: the feature that needs it, in the user's words.

    Returns:
        The module.

    Raises:
        MissingPackageError: its package is not installed; the message has the install command.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise missing(package, feature) from error


def is_installed(package: str) -> bool:
    """Whether a top-level module is installed; does not import it."""
    try:
        return find_spec(package) is not None
    except ValueError:  # a loaded module without a specification, or one whose import is blocked
        return False
