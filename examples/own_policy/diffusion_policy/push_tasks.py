"""The prompts and the demonstrations of the policy: starts of episodes, and demonstrations that often miss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diffusion_policy.simulator import DECOY, GOAL, REACH, starts, step
from mmgrpo import Example, Prompt
from mmgrpo.errors import DataError

NUM_STEPS = 48
UNDECIDED = 0.05
"""Distance from the middle at which the pusher goes around on either side; farther out it takes the shorter way."""
TRAINING, HELD_OUT, DEMONSTRATED = 1, 2, 3
"""Seeds of the starts: no start of one is a start of another."""


def training_starts(num: int = 512) -> list[Prompt]:
    """Starts that GRPO draws episodes from."""
    return [prompt_of(state) for state in starts(num, TRAINING)]


def held_out_starts(num: int = 256) -> list[Prompt]:
    """Starts for the evaluation."""
    return [prompt_of(state) for state in starts(num, HELD_OUT)]


def demonstrations(num: int = 2000, *, right: float = 0.4, spread: float = 0.03, jitter: float = 0.2) -> list[Example]:
    """Episodes of people who push well, of whom a share of ``right`` push to the goal and the others to the decoy.

    Each goes around the block on a random side. An example has the observation and the actions of each step, side
    by side.

    Args:
        num: how many.
        right: share of those that push to the goal.
        spread: standard deviation of where they aim.
        jitter: standard deviation of the noise on every action.

    Returns:
        Examples whose array is (steps, 4 + 2).
    """
    generator = torch.Generator().manual_seed(DEMONSTRATED)
    start_states = starts(num, DEMONSTRATED)
    is_right = torch.rand(num, 1, generator=generator) < right
    aim = torch.where(is_right, torch.tensor(GOAL), torch.tensor(DECOY))
    aim = aim + spread * torch.randn(num, 2, generator=generator)
    side = torch.randint(2, (num, 1), generator=generator) * 2.0 - 1
    state, records = start_states, []
    for _ in range(NUM_STEPS):
        action = expert(state, aim, side) + jitter * torch.randn(num, 2, generator=generator)
        records.append(torch.cat([state, action.clamp(-1, 1)], dim=1))
        state = step(state, action)
    return [
        Example(prompt_of(start), array=array)
        for start, array in zip(start_states, torch.stack(records, dim=1), strict=True)
    ]


def expert(state_BS: Tensor, aim_B2: Tensor, side_B1: Tensor) -> Tensor:
    """Goes around the block to the side opposite to the aim, and pushes; stays once the block has arrived.

    Shapes: (B, 4), (B, 2), (B, 1) of +1 and -1 -> (B, 2), at most full speed.
    """
    pusher, block = state_BS[:, :2], state_BS[:, 2:]
    ahead = aim_B2 - block
    left = ahead.norm(dim=1, keepdim=True)
    ahead = ahead / left.clamp(min=1e-6)
    offset = pusher - block
    away = offset.norm(dim=1, keepdim=True).clamp(min=1e-6)
    across = torch.stack([-ahead[:, 1], ahead[:, 0]], dim=1)
    longitudinal, lateral = -(offset * ahead).sum(1, keepdim=True), (offset * across).sum(1, keepdim=True)
    side_B1 = torch.where(lateral.abs() > UNDECIDED, lateral.sign(), side_B1)
    outward = offset / away
    round_it = side_B1 * torch.stack([-outward[:, 1], outward[:, 0]], dim=1) + 4 * (REACH + 0.06 - away) * outward
    push = (ahead - 8 * lateral * across) * (0.2 + left / 0.15).clamp(max=1)
    goes = torch.where((longitudinal > 0) & (lateral.abs() < longitudinal), push, round_it)
    return goes / goes.norm(dim=1, keepdim=True).clamp(min=1) * (left > 0.04)


def prompt_of(state: Tensor) -> Prompt:
    """The question of an episode: its first state, as numbers for the policy and in words for people."""
    x, y, block_x, block_y = (round(value, 4) for value in state.tolist())
    return Prompt(
        f"block at ({block_x:.2f}, {block_y:.2f}), pusher at ({x:.2f}, {y:.2f})",
        columns={"start": [x, y, block_x, block_y]},
    )


def state_of(prompt: Prompt) -> Tensor:
    """The first state of an episode. Shapes: -> (4,). Raises DataError for a prompt without one."""
    start = prompt.columns.get("start")
    if not isinstance(start, list | tuple) or len(start) != 4 or not all(math.isfinite(number) for number in start):
        raise DataError(f"the column start holds x and y of the pusher and of the block, got {start!r:.80}")
    return torch.tensor(start, dtype=torch.float32)
