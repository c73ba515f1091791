"""What a person types: ``mmgrpo train CONFIG [a.b=c ...]`` and its companions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

if TYPE_CHECKING:
    from mmgrpo.cli.commands import app

__all__ = ["app"]

# read where torch is loaded: threads that wait in spins take the cores from whoever works on them
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__getattr__ = exports(__name__, {"app": "mmgrpo.cli.commands"})
