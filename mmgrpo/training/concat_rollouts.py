"""Rollouts of one policy as one: rows one after the other, each scored by the rollout that it came with."""

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
    """The trace of rollouts that were joined; each is scored by itself.

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
        bare_B: bool, the rows that stand behind the prompt of their group as it is: their states are the same in every
            part, so that equal ones get one id; None, and where states are not prefixes (``Rollout.is_prefix``): states
            of different parts are different.
        policy: scores the rows of all parts together, if it can; otherwise who reads the trace finds ``Parts`` in it.

    Returns:
        The rollout.
    """
    if len(rollouts) == 1:
        return rollouts[0]
    T = max(one.shape[1] for one in rollouts)
    known = set.intersection(*(set(one.values) for one in rollouts))
    noises = [one.noise for one in rollouts if one.noise is not None]
    tokens = [one.token_BT for one in rollouts if one.token_BT is not None]
    return Rollout(
        samples=[sample for one in rollouts for sample in one.samples],
        prompt_index_B=torch.cat([one.prompt_index_B for one in rollouts]),
        old_logprob_BT=_padded([one.old_logprob_BT for one in rollouts], T),
        mask_BT=_padded([one.mask_BT for one in rollouts], T),
        state_BT=_shared_states(rollouts, T, bare_B),
        segment_BT=_padded([one.segment_BT for one in rollouts], T),
        trace=policy.concat_traces([one.trace for one in rollouts])
        if isinstance(policy, SupportsTraceConcat)
        else RolloutParts(rollouts),
        noise=_joined_noise(noises, T) if len(noises) == len(rollouts) else None,
        values={value: _padded([one.values[value] for one in rollouts], T) for value in known},
        origin_B=_cat_or_none([one.origin_B for one in rollouts], [len(one.samples) for one in rollouts]),
        recomputed_B=_recomputed(rollouts),
        age_B=_cat_or_none([one.age_B for one in rollouts], [len(one.samples) for one in rollouts]),
        token_BT=_padded(tokens, T, value=-1) if len(tokens) == len(rollouts) else None,
        is_prefix=all(one.is_prefix for one in rollouts),
        num_decisions_B=torch.tensor([one.num_decisions(row) for one in rollouts for row in range(len(one.samples))]),
        record_B=[record for one in rollouts for record in one.record_B or [None] * len(one.samples)],
        num_forwards=sum(one.num_forwards for one in rollouts),
        num_unbatched=sum(one.num_unbatched for one in rollouts),
    )


def sampling_rows(
    identities: Sequence[tuple[int, int]], taken: Mapping[tuple[int, int], Branch], num_decisions: int
) -> Tensor:
    """Which row drew each decision: the row itself, but for what it took over from another.

    Args:
        identities: group and member of each of B rows.
        taken: what a group's member goes on from; those that go on from nothing are not there, nor is what a row took
            over from one that is not among the rows told from what it drew itself.
        num_decisions: T.

    Returns:
        Integer (B, T), rows.
    """
    row_of = {identity: row for row, identity in enumerate(identities)}
    by_BT = torch.arange(len(identities))[:, None].repeat(1, num_decisions)
    for row, (group, member) in enumerate(identities):
        branch, reach = taken.get((group, member)), num_decisions
        while branch is not None and (group, branch.member) in row_of:
            reach = min(reach, branch.after)
            by_BT[row, :reach] = row_of[group, branch.member]
            branch = taken.get((group, branch.member))
    return by_BT


def _shared_states(rollouts: Sequence[Rollout], num_decisions: int, bare_B: Tensor | None) -> Tensor:
    """State ids over all parts."""
    samples = [sample for one in rollouts for sample in one.samples]
    offsets, start = [], 0
    for one in rollouts:
        offsets.append(start - int(one.state_BT.min()))
        start += int(one.state_BT.max() - one.state_BT.min()) + 1
    state_BT = _padded([one.state_BT + offset for one, offset in zip(rollouts, offsets, strict=True)], num_decisions)
    tokens = [one.token_BT for one in rollouts if one.token_BT is not None]
    if bare_B is None or len(tokens) < len(rollouts) or not all(one.is_prefix for one in rollouts):
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


def _recomputed(rollouts: Sequence[Rollout]) -> Tensor | None:
    found = _cat_or_none([one.recomputed_B for one in rollouts], [len(one.samples) for one in rollouts])
    return None if found is None else found.bool()


def _cat_or_none(parts: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Vectors after each other, zeros where there is none; None where there are none at all."""
    if all(part is None for part in parts):
        return None
    filled = [torch.zeros(B, dtype=torch.long) if p is None else p for p, B in zip(parts, sizes, strict=True)]
    return torch.cat(filled)
