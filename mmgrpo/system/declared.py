"""What installed packages declare in their entry points."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from types import MappingProxyType


def declared(group: str) -> Mapping[str, str]:
    """Names of a group of entry points and what each stands for: ``module:attribute``.

    Packages are looked through once for every ``sys.path``, which takes some ten milliseconds: one that is installed
    while the process runs is not seen.
    """
    return _declared(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _declared(group: str, _paths: tuple[str, ...]) -> Mapping[str, str]:
    return MappingProxyType({point.name: point.value for point in entry_points(group=group)})
