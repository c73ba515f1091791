"""A first run to edit: ``mmgrpo init`` writes a configuration, a reward and prompts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from mmgrpo.config.registry import did_you_mean, suggestion
from mmgrpo.errors import OutputError, UnknownNameError
from mmgrpo.system.files import output_errors
from mmgrpo.system.folders import TOP
from mmgrpo.system.targets import import_attribute

STARTERS = TOP / "examples" / "starters"
"""A folder for each kind of first run; ``mmgrpo init`` copies it."""


def starter_kinds() -> list[str]:
    """The kinds of first runs."""
    return sorted(path.name for path in STARTERS.iterdir() if (path / "run.yaml").is_file())


def write_starter_files(folder: Path, kind: str) -> list[Path]:
    """Writes a first run: ``run.yaml``, ``my_rewards.py``, its prompts and their images; replaces no file.

    Args:
        folder: output folder; created if missing.
        kind: one of ``starter_kinds()``.

    Returns:
        The files and folders in it.

    Raises:
        UnknownNameError: there is no such kind.
        OutputError: one of the files exists, or they cannot be written.
    """
    kinds = starter_kinds()
    if kind not in kinds:
        near = did_you_mean(kind, kinds)
        raise UnknownNameError(f"--kind {kind} is unknown{near}; the kinds are {', '.join(kinds)}")
    paths = [folder / path.name for path in sorted((STARTERS / kind).iterdir()) if path.name != "__pycache__"]
    if existing := [path.name for path in paths if path.exists()]:
        raise OutputError(f"{folder} has {' and '.join(existing)} already; use another folder: mmgrpo init FOLDER")
    with output_errors(folder):
        shutil.copytree(
            STARTERS / kind,
            folder,
            copy_function=shutil.copyfile,  # without the modes of the installed files
            ignore=shutil.ignore_patterns("__pycache__"),
            dirs_exist_ok=True,
        )
    return paths


CONVERTERS: Mapping[str, str] = {"trl": "mmgrpo.trl.conversion:converted"}
"""Library -> the function that converts one of its files."""


def write_converted_run(library: str, source: Path, command: str | None = None) -> Path:
    """Writes ``run.yaml`` with the run of another library; replaces no file.

    Args:
        library: key of ``CONVERTERS``.
        source: a script or a YAML file of the library; nothing of it is executed.
        command: the arguments of the command line that the script reads; None: it reads none.

    Returns:
        The path of ``run.yaml``, in the working directory.

    Raises:
        UnknownNameError: there is no such library.
        ConfigError: the source has values that are computed, or that do not fit together.
        OutputError: ``run.yaml`` exists, or cannot be written.
    """
    if library not in CONVERTERS:
        raise UnknownNameError(f"--from {library} is unknown{suggestion(library, CONVERTERS)}")
    path = Path("run.yaml")
    if path.exists():
        raise OutputError("run.yaml exists already; rename it, or call the command in another folder")
    text = import_attribute(CONVERTERS[library])(source, command)
    with output_errors(path):
        path.write_text(text, encoding="utf-8")
    return path
