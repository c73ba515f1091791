"""Imports on first use, so that formulas, signatures and settings can be read without torch, numpy and pillow."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as numpy
    import PIL.Image as PIL_Image
    import torch as torch
else:

    class _FirstUse(ModuleType):
        """A substitute for a module that imports it on the first attribute access."""

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self.__name__), name)

    torch = _FirstUse("torch")
    numpy = _FirstUse("numpy")
    PIL_Image = _FirstUse("PIL.Image")


def exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the ``__getattr__`` of a package (PEP 562) that imports a name from its module on first access.

    Args:
        package: name of the package, for the error message.
        homes: name -> the module that defines it.

    Returns:
        The function to assign to ``__getattr__``.
    """

    def import_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return import_name
