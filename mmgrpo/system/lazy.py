"""What is imported at its first use, so that formulas, signatures and settings are read without torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _FirstUse(ModuleType):
        """Stands for a module, which the first attribute asked for imports."""

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self.__name__), name)

    torch = _FirstUse("torch")


def exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package (PEP 562) that imports a name from its home when it is asked for.

    Args:
        package: name of the package, for the message of an unknown name.
        homes: name -> the module that defines it.

    Returns:
        What the package calls ``__getattr__``.
    """

    def found(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return found
