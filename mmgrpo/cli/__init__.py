"""The command line interface: ``mmgrpo train CONFIG [a.b=c ...]`` and the other commands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

if TYPE_CHECKING:
    from mmgrpo.cli.command_line import app

__all__ = ["app"]

# OpenMP reads these when torch loads: waiting threads spin for microseconds; milliseconds would slow busy cores
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__getattr__ = exports(__name__, {"app": "mmgrpo.cli.command_line"})
