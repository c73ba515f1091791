"""Models that generate an image token by token as policies: unified ones of transformers, and causal models over
codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

from .settings import ImageTokensSettings

if TYPE_CHECKING:
    from .policy import ImageTokensPolicy

__all__ = ["ImageTokensPolicy", "ImageTokensSettings"]

__getattr__ = exports(__name__, {"ImageTokensPolicy": "mmgrpo.policies.image_tokens.policy"})
