"""Entry points of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from types import MappingProxyType


def entry_point_targets(group: str) -> Mapping[str, str]:
    """Returns the entry points of a group: name -> ``module:attribute``.

    The result is cached per ``sys.path``, because a search takes about ten milliseconds: a package that is installed
    while the process runs is not found.
    """
    return _targets(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _targets(group: str, _paths: tuple[str, ...]) -> Mapping[str, str]:
    return MappingProxyType({point.name: point.value for point in entry_points(group=group)})
