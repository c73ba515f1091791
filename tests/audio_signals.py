"""Audio whose every number a test can compute."""

from __future__ import annotations

import math

import torch

from mmgrpo.types import Audio


def tone(
    hertz: float = 440.0, *, rate: int = 8000, duration_s: float = 0.5, amplitude: float = 0.5, channels: int = 1
) -> Audio:
    """A sine; the second channel of two is its negative, so that their mean is silence."""
    time_N = torch.arange(round(rate * duration_s), dtype=torch.float64) / rate
    sine_N = amplitude * torch.sin(2 * math.pi * hertz * time_N)
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)[:channels, None]
    return Audio((signs * sine_N).float(), rate)


def silence(*, rate: int = 8000, duration_s: float = 0.5) -> Audio:
    """Zeros."""
    return Audio(torch.zeros(1, round(rate * duration_s)), rate)
