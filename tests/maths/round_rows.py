"""Rounds of a strategy from a few rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmgrpo.maths.strategies import Request, Round


def round_of(
    requests: Sequence[Request],
    rewards: Sequence[float | None],
    finished: Sequence[bool] | None = None,
    **fields: Any,
) -> Round:
    """The rows of these requests, in their order and that of the members, each with one of the rewards.

    By default each row has one decision and is finished.
    """
    rows = [(n, request.prompt, member) for n, request in enumerate(requests) for member in request.members]
    request_B, prompt_B, member_B = torch.tensor(rows, dtype=torch.long).reshape(-1, 3).unbind(1)
    return Round(
        requests=requests,
        request_B=request_B,
        prompt_B=prompt_B,
        member_B=member_B,
        reward_B=torch.tensor([0.0 if reward is None else reward for reward in rewards], dtype=torch.float64),
        valid_B=torch.tensor([reward is not None for reward in rewards]),
        finished_B=torch.tensor([True] * len(rows) if finished is None else finished),
        **{"length_B": torch.ones(len(rows), dtype=torch.long), **fields},  # pyrefly: ignore[bad-argument-type]
    )
