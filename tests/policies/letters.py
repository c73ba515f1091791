"""The policy of ``docs/learn/smallest-policy.md``: four letters, each from a table, all equally likely at first."""

from __future__ import annotations

import re
from typing import Any

from mmgrpo.config.loading import CONFIGS

PAGE = CONFIGS.resolve().parent / "docs/learn/smallest-policy.md"


def letters() -> Any:
    """A LetterPolicy."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)
    return names["LetterPolicy"]()
