"""Answers to the rows of the papers' recipes, and what each is paid by hand: a module for each kind of reward.

A module has ``PAID``: of a recipe, columns of the row, what was written, in how many tokens, what it is paid in all;
``ROUTED``: those whose rewards each judge some of the rows;
or ``ELSEWHERE``: recipes whose rewards another test pays, as they ask a model or see pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

Answer = tuple[Mapping[str, Any], str, int, float]

_MODULES = [import_module(module.name) for module in iter_modules(__path__, f"{__name__}.")]

PAID: dict[str, list[Answer]] = {name: paid for one in _MODULES for name, paid in getattr(one, "PAID", {}).items()}
ELSEWHERE = {name for one in _MODULES for name in getattr(one, "ELSEWHERE", ())}
ROUTED = {name for one in _MODULES for name in getattr(one, "ROUTED", ())}
