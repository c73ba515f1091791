"""Masked discrete diffusion: models that predict masked tokens, of texts or of image codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

from .settings import MaskedSettings

if TYPE_CHECKING:
    from .policy import MaskedPolicy

__all__ = ["MaskedPolicy", "MaskedSettings"]

__getattr__ = exports(__name__, {"MaskedPolicy": "mmgrpo.policies.masked.policy"})
