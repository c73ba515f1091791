"""The scores of the rewards of a shipped method, and the advantages from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.scoring import NamedReward
from mmgrpo.training.build import build_rewards
from mmgrpo.training.compute_advantages import combine_rewards, group_advantages
from mmgrpo.types import Prompt, Sample, Scores
from tests.configs.method_steps import config_of
from tests.rewards.grouped import column_score, plain

Rows = Sequence[Sequence[float]]


def texts_of_group(*texts: str, **fields: Sequence[Any]) -> list[Sample]:
    """A group with these texts, where the right answer is 7; other fields are lists, a value per sample."""
    return [
        Sample(
            Prompt("q", columns={"answer": "7"}),
            group=0,
            member=member,
            text=text,
            **{name: values[member] for name, values in fields.items()},
        )
        for member, text in enumerate(texts)
    ]


def scores_of(name: str, samples: Sequence[Sample]) -> Rows:
    """The scores of the method's rewards, a row per sample."""
    rewards = _rewards(config_of(name))
    return list(zip(*(plain(reward.function(samples)) for reward in rewards), strict=True))


def assert_combined(
    name: str,
    scores: Rows,
    rewards: Sequence[float],
    *,
    advantages: Sequence[float] = (),
    groups: Sequence[int] | None = None,
) -> None:
    """The combined reward of each sample and, if stated, its advantage.

    Args:
        name: the method.
        scores: of each sample, a column per reward.
        rewards: expected, of each sample.
        advantages: expected, of each sample; empty: not checked.
        groups: of each sample; None: all are of one.
    """
    config = config_of(name)
    functions, chain = _rewards(config), Algorithm.of(config).advantages
    value_BR = torch.tensor(scores)
    columns = Scores(
        names=tuple(reward.name for reward in functions),
        weight_R=torch.tensor([reward.weight for reward in functions]),
        value_BR=value_BR,
        valid_BR=torch.ones_like(value_BR).bool(),
    )
    group_B = torch.tensor(groups or [0] * len(scores))
    total_B = combine_rewards(columns, group_B, reward_functions=functions, chain=chain, step=0).reward_B
    torch.testing.assert_close(total_B, torch.tensor(rewards, dtype=torch.float64), rtol=0, atol=2e-6)
    if advantages:
        advantage_B = group_advantages(columns, group_B, chain).advantage_B
        torch.testing.assert_close(advantage_B, torch.tensor(advantages), rtol=0, atol=3e-6)


def assert_rewards(
    name: str, samples: Sequence[Sample], rewards: Sequence[float], *, advantages: Sequence[float] = ()
) -> None:
    """The combined reward of each sample of a group and, if stated, its advantage."""
    assert_combined(name, scores_of(name, samples), rewards, advantages=advantages)


def _rewards(config: RunConfig) -> list[NamedReward]:
    return build_rewards(config.rewards) or [NamedReward(label, column_score) for label in ("first", "second")]
