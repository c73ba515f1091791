"""What a person types: ``mmgrpo train CONFIG [a.b=c ...]`` and its companions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

if TYPE_CHECKING:
    from mmgrpo.cli.commands import app

__all__ = ["app"]

__getattr__ = exports(__name__, {"app": "mmgrpo.cli.commands"})
