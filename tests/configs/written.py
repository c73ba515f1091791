"""What files of configurations say by themselves."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import yaml

from mmgrpo.config.loading import find_config


def plain(text: str) -> Any:
    """What PyYAML makes of a text by default: of YAML 1.1, unlike what reads configurations."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def written(name: str) -> dict[str, Any]:
    """What a shipped file itself says, without its includes."""
    return deepcopy(_read(name))


@cache
def _read(name: str) -> dict[str, Any]:
    return plain((find_config(name)).read_text())
