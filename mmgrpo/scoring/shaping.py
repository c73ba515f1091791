"""How what the rewards said counts at a step: clipped, gated, weighted. The scores themselves stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmgrpo.config.rewards import gate_order
from mmgrpo.scoring.named_rewards import Gate, NamedReward
from mmgrpo.types import Scope, Scores


@dataclass(frozen=True, slots=True)
class Shaped:
    """What is trained on.

    Attributes:
        scores: values, masks and weights that count.
        metrics: of every reward that has them, ``reward/NAME/clipped_frac`` and ``gated_frac`` (shares of all samples
            whose value clipping changed, or a closed gate took) and ``weight`` (of this step).
    """

    scores: Scores
    metrics: Mapping[str, float]


def shaped(scores: Scores, rewards: Sequence[NamedReward], step: int) -> Shaped:
    """The scores as they count at a step; clips and weights are of whole samples, gates of their parts too.

    Args:
        scores: what the rewards said, in the rewards' order.
        rewards: how each counts.
        step: counted from 0.

    Returns:
        The scores that count, and what became of them.

    Raises:
        ConfigError: gates that name no reward, or depend on each other in a circle.
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
    for name, gated in _gated(scores, {one.name: one.gate for one in rewards if one.gate is not None}).items():
        r = scores.names.index(name)
        shut_B = gated.closed_B & scores.valid_BR[:, r]
        value_BR[:, r] = value_BR[:, r].where(~gated.closed_B, 0.0)
        valid_BR[:, r] &= ~gated.absent_B
        metrics[f"reward/{name}/gated_frac"] = float(shut_B.float().mean())
        if name in scopes:
            scopes[name] = _gated_scopes(scopes[name], gated)
    weight_R = torch.tensor([reward.weight_at(step) for reward in rewards], dtype=torch.float32)
    counting = replace(scores, value_BR=value_BR, valid_BR=valid_BR, weight_R=weight_R, scopes=scopes)
    return Shaped(counting, metrics)


@dataclass(frozen=True, slots=True)
class _Gated:
    """Where a gate is closed, and where its reward does not exist because of it."""

    closed_B: Tensor
    absent_B: Tensor


def _gated_scopes(scopes: Sequence[Sequence[Scope] | None], gated: _Gated) -> list[Sequence[Scope] | None]:
    """What is said of parts behind a gate: as it is where it is open, else zeros, or nothing where that is absent."""
    return [
        None
        if absent or said is None
        else [replace(scope, value=0.0) if closed and scope.value is not None else scope for scope in said]
        for said, closed, absent in zip(scopes, gated.closed_B.tolist(), gated.absent_B.tolist(), strict=True)
    ]


def _gated(scores: Scores, gates: Mapping[str, Gate]) -> dict[str, _Gated]:
    """Each gate after those that it depends on: behind a closed gate a reward opens no other."""
    found: dict[str, _Gated] = {}
    for name in gate_order(scores.names, {name: gate.reward for name, gate in gates.items()}):
        gate = gates[name]
        other = scores.names.index(gate.reward)
        known_B = scores.valid_BR[:, other]
        open_B = known_B & (scores.value_BR[:, other] >= gate.at_least)
        if gate.reward in found:
            open_B = open_B & ~found[gate.reward].closed_B
        found[name] = _Gated(~open_B, ~open_B if gate.otherwise == "skip" else ~known_B)
    return found
