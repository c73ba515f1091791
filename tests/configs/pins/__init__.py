"""Numbers of the shipped methods, worked out by hand, a module for each mechanism.

``ELSEWHERE`` of a module: methods whose numbers are in a test of their own, for what is no advantage and no loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def _joined(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in iter_modules(__path__, f"{__name__}."):
        members = getattr(import_module(module.name), name, {})
        for member in members:
            if member in found:
                raise ValueError(f"{module.name}: {member} has a number already")
            found[member] = members[member] if isinstance(members, Mapping) else None
    return found


ELSEWHERE = set(_joined("ELSEWHERE"))
