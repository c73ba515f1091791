"""The values that configuration files set themselves, without their includes."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

from mmgrpo.config.loading import find_config
from mmgrpo.system.yamls import parse_yaml_1_1


def written(name: str) -> dict[str, Any]:
    """What a shipped file itself says, without its includes."""
    return deepcopy(_read(name))


@cache
def _read(name: str) -> dict[str, Any]:
    return parse_yaml_1_1(find_config(name).read_text())
