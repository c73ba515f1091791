"""A model that both writes and draws as one policy: some prompts ask it for a text, others for a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

from .settings import UnifiedSettings

if TYPE_CHECKING:
    from .policy import UnifiedPolicy

__all__ = ["UnifiedPolicy", "UnifiedSettings"]

__getattr__ = exports(__name__, {"UnifiedPolicy": "mmgrpo.policies.unified.policy"})
