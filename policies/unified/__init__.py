"""A model that generates both texts and images as one policy: some prompts ask for a text, others for an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

from .settings import UnifiedSettings

if TYPE_CHECKING:
    from .policy import UnifiedPolicy

__all__ = ["UnifiedPolicy", "UnifiedSettings"]

__getattr__ = exports(__name__, {"UnifiedPolicy": "mmgrpo.policies.unified.policy"})
