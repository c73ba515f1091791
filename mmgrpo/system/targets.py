"""What ``module:attribute`` names, imported on use; and ``python:module:attribute``, of the user's own.

The working directory is where a stranger may have put files, so no import of ours sees it: a ``peft.py`` there is not
used. Only modules that are asked for by ``python:`` may lie there, and what is installed comes before them.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from mmgrpo.errors import ConfigError
from mmgrpo.system.extras import missing

PYTHON = "python:"


def is_own(name: str) -> bool:
    """Whether a name is ``python:module:attribute``, something of the user's own."""
    return name.startswith(PYTHON)


def own_attribute(name: str) -> Any:
    """What ``python:module:attribute`` names; its module may lie in the working directory.

    Args:
        name: with or without ``python:``.

    Returns:
        The object, its module imported now.

    Raises:
        ConfigError: the name is malformed or nothing is there.
        MissingPackageError: importing it needs a package that is not installed.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # for good: such modules import others of theirs when they are called
    return import_attribute(name.removeprefix(PYTHON))


def import_attribute(target: str) -> Any:
    """The object at "module:attribute".

    Args:
        target: where it is.

    Returns:
        The object, its module imported now.

    Raises:
        ConfigError: the target is malformed or does not exist.
        MissingPackageError: importing it needs a package that is not installed.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{target!r} must be module:attribute")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.split(".")[0] != error.name.split(".")[0]:
            raise missing(error.name.partition(".")[0], target) from error
        raise ConfigError(f"{target!r} cannot be imported: {error}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        where = getattr(module, "__file__", None) or "built in"
        raise ConfigError(f"{target!r} does not exist: {error} ({where})") from error
