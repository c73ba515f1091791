"""A robot that pushes a block to a goal on a table, many episodes at a time.

Axes: B episodes, S = 4 numbers of a state: x and y of the pusher, x and y of the block. The table is [-1, 1]^2.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOAL, DECOY = (-0.25, 0.65), (0.25, 0.65)
"""Where the block should be pushed to, and where many push it."""
TOLERANCE = 0.1
"""Maximum distance of the block from the goal at the end."""
REACH = 0.2
"""Distance of the centers where pusher and block touch."""
SPEED = 0.1
"""How far the pusher moves in a step at full speed; less than ``REACH``, so that it passes through nothing."""


def step(state_BS: Tensor, action_BA: Tensor) -> Tensor:
    """The state after one step.

    The pusher moves by SPEED times its action; a block that it would overlap is moved away from it until they touch,
    without friction, so a push that is not straight lets the block slip aside. The table's edge holds both.

    Shapes: (B, 4), (B, 2) -> (B, 4).   Units: positions; actions in [-1, 1], held there.
    """
    pusher = (state_BS[:, :2] + SPEED * action_BA.clamp(-1, 1)).clamp(-1, 1)
    apart = state_BS[:, 2:] - pusher
    distance = apart.norm(dim=1, keepdim=True)
    touched = pusher + apart / distance.clamp(min=1e-6) * distance.clamp(min=REACH)
    return torch.cat([pusher, touched.clamp(-1, 1)], dim=1)


def distance_to_goal(state_BS: Tensor) -> Tensor:
    """How far the block is from the goal. Shapes: (..., 4) -> (...)."""
    return (state_BS[..., 2:] - torch.tensor(GOAL)).norm(dim=-1)


def starts(num: int, seed: int) -> Tensor:
    """States that episodes begin in: the block before the goal, the pusher between the two, so that it has to go round.

    Shapes: -> (num, 4).
    """
    uniform = torch.rand(num, 4, generator=torch.Generator().manual_seed(seed))
    low, high = torch.tensor([[-0.6, 0.15, -0.6, -0.5], [0.6, 0.6, 0.6, -0.1]])
    return low + (high - low) * uniform
