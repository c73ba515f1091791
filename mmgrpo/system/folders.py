"""Where the folders of the package are: inside it once installed, at the top of a checkout."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
"""The folder ``mmgrpo``."""

TOP = PACKAGE if (PACKAGE / "policies").is_dir() else PACKAGE.parent
"""The folder of ``policies``, ``rewards``, ``configs``, ``examples``: the package once installed, else the checkout."""
CONFIGS = TOP / "configs"
