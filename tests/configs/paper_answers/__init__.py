"""Answers to rows of the papers' recipes with their rewards, worked out by hand: a module for each kind of reward.

A module has ``ANSWERS``: of a recipe, columns of the row, the answer, its number of tokens, its total reward;
``ROUTED``: recipes whose rewards each score some of the rows;
or ``ELSEWHERE``: recipes whose rewards another test covers, since they call a model or read images.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

Answer = tuple[Mapping[str, Any], str, int, float]

_MODULES = [import_module(module.name) for module in iter_modules(__path__, f"{__name__}.")]

ANSWERS: dict[str, list[Answer]] = {
    name: answers for module in _MODULES for name, answers in getattr(module, "ANSWERS", {}).items()
}
ELSEWHERE = {name for module in _MODULES for name in getattr(module, "ELSEWHERE", ())}
ROUTED = {name for module in _MODULES for name in getattr(module, "ROUTED", ())}
