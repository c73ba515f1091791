"""The network, and the Gaussians that its predictions make of the steps from noise to actions.

Axes: B rows, S numbers of a state, H actions of a chunk, A = 2 numbers of an action, K denoising steps, D width.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from diffusion_policy.chunk_settings import ChunkSettings
from diffusion_policy.simulator import GOAL, REACH
from mmgrpo.maths.transitions import SAMPLERS, DenoisingStep, Kernel, Level

STATE, ACTION = 4, 2


class Denoiser(nn.Module):
    """What the clean chunk is, given a noisy one, its noise level and what the robot sees."""

    def __init__(self, settings: ChunkSettings) -> None:
        super().__init__()
        D, HA = settings.width, settings.chunk_length * ACTION
        self.enter = nn.Linear(HA + STATE + 3, D)
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(2))
        self.leave = nn.Linear(D, HA)

    def forward(self, noisy_BHA: Tensor, state_BS: Tensor, angle: float) -> Tensor:
        """The clean chunk. Shapes: (B, H, A), (B, S), the level's angle 0 to pi / 2 -> (B, H, A)."""
        level = torch.tensor([angle, math.sin(4 * angle), math.cos(4 * angle)]).expand(len(noisy_BHA), 3)
        inputs = torch.cat([noisy_BHA.flatten(1), features(state_BS), level.to(state_BS)], dim=1)
        hidden = nn.functional.silu(self.enter(inputs))
        for layer in self.layers:
            hidden = hidden + nn.functional.silu(layer(hidden))
        return self.leave(hidden).reshape(noisy_BHA.shape)


def features(state_BS: Tensor) -> Tensor:
    """From pusher to block and from block to goal, in units of their reach. Shapes: (B, S) -> (B, S)."""
    pusher, block = state_BS[:, :2], state_BS[:, 2:]
    return torch.cat([block - pusher, block.new_tensor(GOAL) - block], dim=1) / REACH


def levels(settings: ChunkSettings) -> list[Level]:
    """The K + 1 noise levels of a chunk, from pure noise to none."""
    K = settings.denoising_steps
    shares = [1 - k / K for k in range(K + 1)]
    if settings.levels == "flow":
        return [Level(alpha=1 - share, sigma=share) for share in shares]
    return [Level(alpha=math.cos(share * math.pi / 2), sigma=math.sin(share * math.pi / 2)) for share in shares]


def steps(settings: ChunkSettings) -> list[DenoisingStep]:
    """The K steps between the levels."""
    at = levels(settings)
    return [DenoisingStep(level=level, next_level=after, second_sigma=at[1].sigma) for level, after in pairwise(at)]


def kernels(settings: ChunkSettings) -> list[Kernel]:
    """The Gaussian of each step: the sampler's, with a std of at least ``min_std``, the last step's among them.

    Units: actions.   Source: DPPO, arXiv:2409.00588, and its code (irom-princeton/dppo, min_sampling_denoising_std).
    """
    sampler_kernels = [SAMPLERS[settings.sampler](step, strength=settings.strength) for step in steps(settings)]
    return [replace(kernel, std=max(kernel.std, settings.min_std)) for kernel in sampler_kernels]
