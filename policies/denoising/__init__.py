"""Any stock diffusers pipeline as a policy: recorded once, replayed exactly."""

from mmgrpo.policies.denoising.policy import DenoisingPolicy
from mmgrpo.policies.denoising.settings import DenoisingSettings, LoraSettings

__all__ = ["DenoisingPolicy", "DenoisingSettings", "LoraSettings"]
