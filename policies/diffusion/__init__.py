"""Any stock diffusers pipeline as a policy: recorded once, replayed exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

from .settings import DenoisingSettings, LoraSettings

if TYPE_CHECKING:
    from .policy import DenoisingPolicy

__all__ = ["DenoisingPolicy", "DenoisingSettings", "LoraSettings"]

__getattr__ = exports(__name__, {"DenoisingPolicy": "mmgrpo.policies.diffusion.policy"})
