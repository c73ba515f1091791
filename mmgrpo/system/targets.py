"""Import of ``module:attribute`` targets on use, and of the user's ``python:module:attribute`` targets.

The working directory may contain other people's files, so mmgrpo's imports do not search it: a ``peft.py`` there is not
used. Only ``python:`` targets may be modules of the working directory, and installed packages take precedence.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from mmgrpo.errors import ConfigError, MissingPackageError
from mmgrpo.system.extras import missing
from mmgrpo.system.training_scripts import training_line

PYTHON = "python:"


def is_python_target(name: str) -> bool:
    """Whether a name has the form ``python:module:attribute``, which refers to the user's code."""
    return name.startswith(PYTHON)


def import_python_target(name: str) -> Any:
    """Imports ``python:module:attribute``; its module may be in the working directory.

    Args:
        name: with or without ``python:``.

    Returns:
        The object.

    Raises:
        ConfigError: the name is malformed, the object does not exist, or its module trains when it is imported.
        MissingPackageError: importing it needs a package that is not installed.
    """
    working_directory = str(Path.cwd())
    if working_directory not in sys.path:
        sys.path.append(working_directory)  # permanently: such modules import others when they are called
    target = name.removeprefix(PYTHON)
    module_name, _, attribute = target.partition(":")
    file = _file_of(module_name)
    if file is not None and (line := training_line(file.read_text(encoding="utf-8", errors="replace"))) is not None:
        raise ConfigError(
            f"{target!r}: {file.name} trains when it is imported (line {line}): move {attribute} to a separate module, "
            f"such as {module_name}_functions.py, or the training under if __name__ == '__main__':"
        )
    try:
        return import_attribute(target)
    except MissingPackageError as error:
        if file is None:
            raise
        raise MissingPackageError(f"{error}; or move {attribute} to a module without that import") from error


def _file_of(module_name: str) -> Path | None:
    """The file of a module that is not imported yet, and that is no part of a package; None: there is none."""
    if not module_name or "." in module_name or module_name in sys.modules:
        return None
    spec = importlib.util.find_spec(module_name)
    file = None if spec is None or spec.origin is None else Path(spec.origin)
    return file if file is not None and file.suffix == ".py" and file.name != "__init__.py" else None


def import_attribute(target: str) -> Any:
    """Imports "module:attribute".

    Args:
        target: the module and the attribute.

    Returns:
        The object.

    Raises:
        ConfigError: the target is malformed or does not exist.
        MissingPackageError: importing it needs a package that is not installed.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{target!r} must have the form module:attribute")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.split(".")[0] != error.name.split(".")[0]:
            raise missing(error.name.partition(".")[0], target) from error
        raise ConfigError(f"{target!r} cannot be imported: {error}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        path = getattr(module, "__file__", None) or "built in"
        raise ConfigError(f"{target!r} does not exist: {error} ({path})") from error
