"""Rollouts with text rows and image rows.

Axes: B rows of all parts, T decisions of the longest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmgrpo.policy import Policy
from mmgrpo.types import Evaluation, Rollout
from mmgrpo.values import Value


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRows:
    """The rows of one kind.

    Attributes:
        draws: whether they are images.
        rollout: these rows alone.
        row_N: their indices in the merged rollout.
    """

    draws: bool
    rollout: Rollout
    row_N: Tensor

    def evaluated(
        self, policy: Policy, mask_BT: Tensor, rows: Collection[int], values: Collection[Value]
    ) -> Iterator[Evaluation]:
        """A policy's slices of the requested rows, with indices of the merged rollout, where its mask is True."""
        local = [n for n, row in enumerate(self.row_N.tolist()) if row in rows]
        if not local:
            return
        mask_NT = mask_BT[self.row_N][:, : self.rollout.shape[1]]
        for evaluation in policy.evaluate(replace(self.rollout, mask_BT=mask_NT), local, values=values):
            local_N = torch.tensor(local) if evaluation.rows is None else evaluation.rows.cpu()
            yield replace(evaluation, rows=self.row_N[local_N])


@dataclass(frozen=True, slots=True)
class MixedTrace:
    """The trace of a rollout of several policies.

    Attributes:
        parts: disjoint sets of rows.
    """

    parts: Sequence[PolicyRows]


def merge_rollouts(parts: Sequence[PolicyRows]) -> Rollout:
    """One rollout of all parts, in row order; matrices are padded to the longest.

    Only values that all parts have are kept.
    """
    T = max(part.rollout.shape[1] for part in parts)
    rollouts = [part.rollout for part in parts]
    order_B = torch.cat([part.row_N for part in parts]).argsort()

    def joined(matrices: Sequence[Tensor], value: int = 0) -> Tensor:
        padded = [pad(matrix_NT, (0, T - matrix_NT.shape[1]), value=value) for matrix_NT in matrices]
        return torch.cat(padded)[order_B]

    samples = [sample for rollout in rollouts for sample in rollout.samples]
    starts = torch.tensor([0, *(int(rollout.state_BT.max()) + 1 for rollout in rollouts[:-1])]).cumsum(0).tolist()
    common = set.intersection(*(set(rollout.values) for rollout in rollouts))
    tokens = [rollout.token_BT for rollout in rollouts if rollout.token_BT is not None]
    counts = [rollout.num_decisions(row) for rollout in rollouts for row in range(len(rollout.samples))]
    records = [record for rollout in rollouts for record in rollout.record_B or [None] * len(rollout.samples)]
    sources = [rollout.source_B for rollout in rollouts if rollout.source_B is not None]
    return Rollout(
        samples=[samples[row] for row in order_B.tolist()],
        prompt_index_B=torch.cat([rollout.prompt_index_B for rollout in rollouts])[order_B],
        old_logprob_BT=joined([rollout.old_logprob_BT for rollout in rollouts]),
        mask_BT=joined([rollout.mask_BT for rollout in rollouts]),
        state_BT=joined([rollout.state_BT + start for rollout, start in zip(rollouts, starts, strict=True)]),
        segment_BT=joined([rollout.segment_BT for rollout in rollouts]),
        trace=MixedTrace(parts),
        values={value: joined([rollout.values[value] for rollout in rollouts]) for value in common},
        token_BT=joined(tokens, -1) if len(tokens) == len(rollouts) else None,
        is_prefix=all(rollout.is_prefix for rollout in rollouts),
        num_decisions_B=torch.tensor(counts)[order_B],
        record_B=[records[row] for row in order_B.tolist()],
        source_B=torch.cat(sources)[order_B] if len(sources) == len(rollouts) else None,
        num_forwards=sum(rollout.num_forwards for rollout in rollouts),
        num_unbatched=sum(rollout.num_unbatched for rollout in rollouts),
    )
