"""Numbers of the shipped methods, worked out by hand, a module for each mechanism.

A module has any of

- ``CREDIT``: of a method, rows and the advantage of each of their decisions;
- ``LOSSES``: of a method, rows and the loss;
- ``ELSEWHERE``: methods whose numbers are in a test of their own, for what is no advantage and no loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from tests.configs.method_steps import Step


def _joined(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in iter_modules(__path__, f"{__name__}."):
        members = getattr(import_module(module.name), name, {})
        for member in members:
            if member in found:
                raise ValueError(f"{module.name}: {member} has a number already")
            found[member] = members[member] if isinstance(members, Mapping) else None
    return found


CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = _joined("CREDIT")
LOSSES: dict[str, tuple[Step, float]] = _joined("LOSSES")
ELSEWHERE = set(_joined("ELSEWHERE"))
