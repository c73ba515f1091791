"""Rollouts of one policy as one: rows one after the other, each scored by the rollout that it came with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmgrpo.types import Noise, Rollout


@dataclass(frozen=True, slots=True)
class Parts:
    """The trace of rollouts that were joined; each is scored by itself.

    Attributes:
        rollouts: in the order of their rows.
    """

    rollouts: Sequence[Rollout]


def joined(rollouts: Sequence[Rollout]) -> Rollout:
    """The rows of several rollouts of one policy, one after the other; matrices are padded to the longest.

    Of values those stay that all of them know. Who reads the trace finds ``Parts`` in it.
    """
    if len(rollouts) == 1:
        return rollouts[0]
    T = max(one.shape[1] for one in rollouts)
    known = set.intersection(*(set(one.values) for one in rollouts))
    offsets, start = [], 0
    for one in rollouts:
        offsets.append(start - int(one.state_BT.min()))
        start += int(one.state_BT.max() - one.state_BT.min()) + 1
    noises = [one.noise for one in rollouts if one.noise is not None]
    return Rollout(
        samples=[sample for one in rollouts for sample in one.samples],
        prompt_index_B=torch.cat([one.prompt_index_B for one in rollouts]),
        old_logprob_BT=_padded([one.old_logprob_BT for one in rollouts], T),
        mask_BT=_padded([one.mask_BT for one in rollouts], T),
        state_BT=_padded([one.state_BT + offset for one, offset in zip(rollouts, offsets, strict=True)], T),
        segment_BT=_padded([one.segment_BT for one in rollouts], T),
        trace=Parts(rollouts),
        noise=_joined_noise(noises, T) if len(noises) == len(rollouts) else None,
        values={value: _padded([one.values[value] for one in rollouts], T) for value in known},
        origin_B=_cat_or_none([one.origin_B for one in rollouts], [len(one.samples) for one in rollouts]),
        age_B=_cat_or_none([one.age_B for one in rollouts], [len(one.samples) for one in rollouts]),
        num_forwards=sum(one.num_forwards for one in rollouts),
        num_alone=sum(one.num_alone for one in rollouts),
    )


def _joined_noise(parts: Sequence[Noise], num_decisions: int) -> Noise:
    names = ("std_BT", "step_BT", "level_BT")
    return Noise(**{name: _padded([getattr(part, name) for part in parts], num_decisions) for name in names})


def _padded(parts: Sequence[Tensor], num_columns: int) -> Tensor:
    """Matrices below each other, zeros after the columns that they have."""
    return torch.cat([torch.nn.functional.pad(part, (0, num_columns - part.shape[1])) for part in parts])


def _cat_or_none(parts: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Vectors after each other, zeros where there is none; None where there are none at all."""
    if all(part is None for part in parts):
        return None
    filled = [torch.zeros(B, dtype=torch.long) if p is None else p for p, B in zip(parts, sizes, strict=True)]
    return torch.cat(filled)
