"""Masked discrete diffusion: models that fill in what is hidden, of texts or of the codes of pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

from .settings import MaskedSettings

if TYPE_CHECKING:
    from .policy import MaskedPolicy

__all__ = ["MaskedPolicy", "MaskedSettings"]

__getattr__ = exports(__name__, {"MaskedPolicy": "mmgrpo.policies.masked.policy"})
