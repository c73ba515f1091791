"""Paths of the top folders: inside the package once installed, at the top of a checkout."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
"""The folder ``mmgrpo``."""

TOP = PACKAGE if (PACKAGE / "policies").is_dir() else PACKAGE.parent
"""Folder that contains ``policies``, ``rewards``, ``configs``, ``examples``: the installed package or the checkout."""
CONFIGS = TOP / "configs"
