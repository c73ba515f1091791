"""Clips, gates and weights the scores of rewards for a step; the raw scores are not changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmgrpo.config.rewards import gate_order
from mmgrpo.scoring.named_rewards import Gate, NamedReward
from mmgrpo.types import Scope, Scores


def shape_scores(scores: Scores, rewards: Sequence[NamedReward], step: int) -> tuple[Scores, dict[str, float]]:
    """The shaped scores at a step; clips and weights apply to samples, gates also to their parts.

    Args:
        scores: raw scores, in the order of the rewards.
        rewards: settings of each reward.
        step: counted from 0.

    Returns:
        The shaped values, masks and weights, and the metrics: for every reward with such settings,
        ``reward/NAME/clipped_frac`` and ``gated_frac`` (fractions of all samples whose value clipping changed or a
        closed gate removed) and ``weight`` (at this step).

    Raises:
        ConfigError: gates that name no reward, or depend on each other in a cycle.
    """
    value_BR, valid_BR, metrics = scores.value_BR.clone(), scores.valid_BR.clone(), {}
    scopes = dict(scores.scopes)
    for r, reward in enumerate(rewards):
        if reward.clip is not None:
            value_BR[:, r] = scores.value_BR[:, r].clamp(*reward.clip).where(scores.valid_BR[:, r], 0.0)
            changed_B = value_BR[:, r] != scores.value_BR[:, r]
            metrics[f"reward/{reward.name}/clipped_frac"] = float(changed_B.float().mean())
        if reward.schedule is not None:
            metrics[f"reward/{reward.name}/weight"] = reward.weight_at(step)
    for name, gated in _gated(
        scores, {gated_reward.name: gated_reward.gate for gated_reward in rewards if gated_reward.gate is not None}
    ).items():
        r = scores.names.index(name)
        shut_B = gated.closed_B & scores.valid_BR[:, r]
        value_BR[:, r] = value_BR[:, r].where(~gated.closed_B, 0.0)
        valid_BR[:, r] &= ~gated.absent_B
        metrics[f"reward/{name}/gated_frac"] = float(shut_B.float().mean())
        if name in scopes:
            scopes[name] = _gated_scopes(scopes[name], gated)
    weight_R = torch.tensor([reward.weight_at(step) for reward in rewards], dtype=torch.float32)
    return replace(scores, value_BR=value_BR, valid_BR=valid_BR, weight_R=weight_R, scopes=scopes), metrics


@dataclass(frozen=True, slots=True)
class _Gated:
    """Where a gate is closed, and where its reward is absent because of it."""

    closed_B: Tensor
    absent_B: Tensor


def _gated_scopes(scopes: Sequence[Sequence[Scope] | None], gated: _Gated) -> list[Sequence[Scope] | None]:
    """Gated scopes: unchanged where the gate is open, else zeros, or None where the reward is absent."""
    return [
        None
        if absent or sample_scopes is None
        else [replace(scope, value=0.0) if closed and scope.value is not None else scope for scope in sample_scopes]
        for sample_scopes, closed, absent in zip(scopes, gated.closed_B.tolist(), gated.absent_B.tolist(), strict=True)
    ]


def _gated(scores: Scores, gates: Mapping[str, Gate]) -> dict[str, _Gated]:
    """Evaluate the gates in dependency order: a reward with a closed gate opens no other gate."""
    gated: dict[str, _Gated] = {}
    for name in gate_order(scores.names, {name: gate.reward for name, gate in gates.items()}):
        gate = gates[name]
        other = scores.names.index(gate.reward)
        valid_B = scores.valid_BR[:, other]
        open_B = valid_B & (scores.value_BR[:, other] >= gate.at_least)
        if gate.reward in gated:
            open_B = open_B & ~gated[gate.reward].closed_B
        gated[name] = _Gated(~open_B, ~open_B if gate.otherwise == "skip" else ~valid_B)
    return gated
