"""Decisions for terms, surrogates and selections, from log-probabilities and the fields that a test is about.

Axes: B rows, T decisions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmgrpo.maths.decisions import Decisions


def decisions_at(logprob_BT: Tensor, **fields: Any) -> Decisions:
    """Decisions with these fields.

    By default they are on-policy, with an advantage of 0 and a weight of 1, all trained, in one segment.
    """
    defaults: dict[str, Any] = {
        "old_logprob_BT": logprob_BT.detach(),
        "advantage_BT": torch.zeros_like(logprob_BT),
        "mask_BT": torch.ones_like(logprob_BT, dtype=torch.bool),
        "weight_BT": torch.ones_like(logprob_BT),
        "segment_BT": torch.zeros_like(logprob_BT, dtype=torch.long),
    }
    return Decisions(logprob_BT=logprob_BT, **{**defaults, **fields})


def group_at(rewards: list[float]) -> Decisions:
    """One group with these rewards, each row of one decision at a log-ratio of 0."""
    reward_B1 = torch.tensor(rewards)[:, None]
    zero_B1 = torch.zeros_like(reward_B1)
    return decisions_at(zero_B1, reward_BT=reward_B1, group_BT=zero_B1.long())
