"""Rollouts of one policy as one: rows one after the other, each scored by its original rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmgrpo.maths.prefixes import prefix_states
from mmgrpo.maths.strategies import Branch
from mmgrpo.policy import Policy, SupportsTraceConcat
from mmgrpo.types import Noise, Rollout


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """The trace of concatenated rollouts; each is scored separately.

    Attributes:
        rollouts: in the order of their rows.
    """

    rollouts: Sequence[Rollout]


def concat_rollouts(
    rollouts: Sequence[Rollout], *, bare_B: Tensor | None = None, policy: Policy | None = None
) -> Rollout:
    """The rows of several rollouts of one policy, one after the other; matrices are padded to the longest.

    Of values those stay that all of them know.

    Args:
        rollouts: the parts.
        bare_B: bool, the rows with the unchanged prompt of their group: their states are the same in every
            part, so that equal ones get one id; None, and where states are not prefixes (``Rollout.is_prefix``): states
            of different parts are different.
        policy: scores the rows of all parts together, if it can; otherwise who reads the trace finds ``Parts`` in it.

    Returns:
        The rollout.
    """
    if len(rollouts) == 1:
        return rollouts[0]
    T = max(part.shape[1] for part in rollouts)
    common_values = set.intersection(*(set(part.values) for part in rollouts))
    noises = [part.noise for part in rollouts if part.noise is not None]
    tokens = [part.token_BT for part in rollouts if part.token_BT is not None]
    return Rollout(
        samples=[sample for part in rollouts for sample in part.samples],
        prompt_index_B=torch.cat([part.prompt_index_B for part in rollouts]),
        old_logprob_BT=_padded([part.old_logprob_BT for part in rollouts], T),
        mask_BT=_padded([part.mask_BT for part in rollouts], T),
        state_BT=_shared_states(rollouts, T, bare_B),
        segment_BT=_padded([part.segment_BT for part in rollouts], T),
        trace=policy.concat_traces([part.trace for part in rollouts])
        if isinstance(policy, SupportsTraceConcat)
        else RolloutParts(rollouts),
        noise=_joined_noise(noises, T) if len(noises) == len(rollouts) else None,
        values={value: _padded([part.values[value] for part in rollouts], T) for value in common_values},
        source_B=_cat_or_none([part.source_B for part in rollouts], [len(part.samples) for part in rollouts]),
        earlier_BT=_earlier(rollouts, T),
        recomputed_B=_recomputed(rollouts),
        age_B=_cat_or_none([part.age_B for part in rollouts], [len(part.samples) for part in rollouts]),
        token_BT=_padded(tokens, T, value=-1) if len(tokens) == len(rollouts) else None,
        is_prefix=all(part.is_prefix for part in rollouts),
        num_decisions_B=torch.tensor(
            [part.num_decisions(row) for part in rollouts for row in range(len(part.samples))]
        ),
        record_B=[record for part in rollouts for record in part.record_B or [None] * len(part.samples)],
        num_forwards=sum(part.num_forwards for part in rollouts),
        num_unbatched=sum(part.num_unbatched for part in rollouts),
    )


def sampling_rows(
    identities: Sequence[tuple[int, int]], taken: Mapping[tuple[int, int], Branch], num_decisions: int
) -> Tensor:
    """The row that sampled each decision: the row itself, except for a prefix shared with another.

    Args:
        identities: group and member of each of B rows.
        taken: the branch that a group's member continues; other members are missing, and a prefix of a row that is not
            among the rows counts as sampled by the member.
        num_decisions: T.

    Returns:
        Integer (B, T), rows.
    """
    row_of = {identity: row for row, identity in enumerate(identities)}
    sampler_BT = torch.arange(len(identities))[:, None].repeat(1, num_decisions)
    for row, (group, member) in enumerate(identities):
        branch, reach = taken.get((group, member)), num_decisions
        while branch is not None and (group, branch.member) in row_of:
            reach = min(reach, branch.after)
            sampler_BT[row, :reach] = row_of[group, branch.member]
            branch = taken.get((group, branch.member))
    return sampler_BT


def _shared_states(rollouts: Sequence[Rollout], num_decisions: int, bare_B: Tensor | None) -> Tensor:
    """State ids over all parts."""
    samples = [sample for part in rollouts for sample in part.samples]
    offsets, start = [], 0
    for part in rollouts:
        offsets.append(start - int(part.state_BT.min()))
        start += int(part.state_BT.max() - part.state_BT.min()) + 1
    state_BT = _padded([part.state_BT + offset for part, offset in zip(rollouts, offsets, strict=True)], num_decisions)
    tokens = [part.token_BT for part in rollouts if part.token_BT is not None]
    if bare_B is None or len(tokens) < len(rollouts) or not all(part.is_prefix for part in rollouts):
        return state_BT
    keys = [
        (True, sample.group) if bare else (False, root)
        for sample, bare, root in zip(samples, bare_B.tolist(), state_BT[:, 0].tolist(), strict=True)
    ]
    number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    token_BT = _padded(tokens, num_decisions, value=-1)
    exists_BT = token_BT >= 0
    return prefix_states(token_BT.clamp(min=0), exists_BT, torch.tensor([number[key] for key in keys]))


def _joined_noise(parts: Sequence[Noise], num_decisions: int) -> Noise:
    names = ("std_BT", "step_BT", "level_BT")
    return Noise(**{name: _padded([getattr(part, name) for part in parts], num_decisions) for name in names})


def _padded(parts: Sequence[Tensor], num_columns: int, *, value: int = 0) -> Tensor:
    """Matrices below each other, a value after the columns that they have."""
    return torch.cat([torch.nn.functional.pad(part, (0, num_columns - part.shape[1]), value=value) for part in parts])


def _earlier(rollouts: Sequence[Rollout], num_columns: int) -> Tensor | None:
    if all(part.earlier_BT is None for part in rollouts):
        return None
    parts = [torch.zeros_like(part.mask_BT) if part.earlier_BT is None else part.earlier_BT for part in rollouts]
    return _padded(parts, num_columns)


def _recomputed(rollouts: Sequence[Rollout]) -> Tensor | None:
    recomputed_B = _cat_or_none([part.recomputed_B for part in rollouts], [len(part.samples) for part in rollouts])
    return None if recomputed_B is None else recomputed_B.bool()


def _cat_or_none(parts: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Vectors after each other, zeros where there is none; None where there are none at all."""
    if all(part is None for part in parts):
        return None
    filled = [torch.zeros(B, dtype=torch.long) if p is None else p for p, B in zip(parts, sizes, strict=True)]
    return torch.cat(filled)
