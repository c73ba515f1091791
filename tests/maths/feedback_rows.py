"""Feedback from a few numbers, for tests of estimators and filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mmgrpo.maths.feedback import Feedback, SampleColumn, Scoped, job_feedback
from mmgrpo.values import Value


def feedback_of(
    rewards: Sequence[float],
    groups: Sequence[int],
    *,
    mask: Sequence[Sequence[int]] | None = None,
    values: Mapping[Value, Tensor] | None = None,
    tokens: Sequence[Sequence[int]] | None = None,
    states: Sequence[Sequence[int]] | None = None,
    old_logprob: Sequence[Sequence[float]] | None = None,
    valid: Sequence[bool] | None = None,
    scoped: Mapping[str, Scoped] | None = None,
    sampled_by: Sequence[Sequence[int]] | None = None,
    partial: Sequence[bool] | None = None,
    named_rewards: Mapping[str, Sequence[float]] | None = None,
    step: int = 0,
) -> Feedback:
    """Rows of these rewards; without a mask each has as many decisions as the tokens or states say, else 3.

    ``named_rewards`` are the values of single rewards, by name; NaN where they do not apply.
    """
    B = len(rewards)
    trace = tokens or states or old_logprob or sampled_by
    T = len(trace[0]) if trace else 3
    mask_BT = torch.ones(B, T, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)
    shape = mask_BT.shape
    old_logprob_BT = torch.zeros(shape) if old_logprob is None else torch.tensor(old_logprob)
    reward_B, group_B = torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)
    valid_B = torch.ones(B, dtype=torch.bool) if valid is None else torch.tensor(valid)
    return Feedback(
        reward_B=reward_B,
        valid_B=valid_B,
        group_B=group_B,
        mask_BT=mask_BT,
        segment_BT=torch.zeros(shape, dtype=torch.long),
        state_BT=torch.arange(mask_BT.numel()).reshape(shape) if states is None else torch.tensor(states),
        old_logprob_BT=old_logprob_BT,
        finished_B=torch.ones(B, dtype=torch.bool),
        partial_B=None if partial is None else torch.tensor(partial),
        job=job_feedback(reward_B, valid_B, group_B, mask_BT, old_logprob_BT, values),
        token_BT=None if tokens is None else torch.tensor(tokens),
        values=values or {},
        scoped=scoped or {},
        rewards={name: _column(value_B) for name, value_B in (named_rewards or {}).items()},
        step=step,
        sampled_by_BT=None if sampled_by is None else torch.tensor(sampled_by),
    )


def _column(values: Sequence[float]) -> SampleColumn:
    value_B = torch.tensor(values, dtype=torch.float64)
    return SampleColumn(value_B=value_B, valid_B=~value_B.isnan())
