"""Log-probabilities in the matrices of a rollout: scattered to their positions, and recomputed by an update's forward.

Axes: N rows of a slice, T decisions, M unmasked decisions of the slice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mmgrpo.policy import Policy
from mmgrpo.types import Rollout
from mmgrpo.values import Value


def scatter_to_mask(mask_NT: Tensor, number_M: Tensor) -> Tensor:
    """Numbers of the unmasked decisions, row by row, at their positions; 0 elsewhere.

    Shapes: bool (N, T), (M,) -> (N, T).
    """
    nothing_NT = torch.zeros(mask_NT.shape, device=number_M.device)
    return nothing_NT.masked_scatter(mask_NT.to(number_M.device), number_M)


@torch.no_grad()
def rescore(
    policy: Policy, rollout: Rollout, rows: Sequence[int] | None = None, *, values: Collection[Value]
) -> Rollout:
    """The rollout with log-probabilities and these values of some rows recomputed by an update's forward."""
    old_BT, value_BT = rollout.old_logprob_BT.clone(), {value: torch.zeros(rollout.shape) for value in values}
    for part in policy.evaluate(rollout, rows, values=values):
        assert part.rows is not None
        index = part.rows[:, None], torch.tensor(part.columns)[None]
        old_BT[index] = part.logprob_BT.cpu()
        for value, matrix_BT in value_BT.items():
            matrix_BT[index] = part.values[value].cpu()
    return replace(rollout, old_logprob_BT=old_BT, values={**rollout.values, **value_BT})
