"""Losses and advantages of methods for denoising policies on a step small enough to work out by hand.

The step has D = 4 elements, s = 0.8, h = 0.25, so std = s sqrt(h) = 0.4. The behavior policy had the mean
(0.1, -0.2, 0.3, 0) and sampled the noise (0.5, -1, 0.25, 0.75); the mean of the current policy differs by
(0.01, 0.02, -0.01, 0). Two samples took this step, one with advantage 1 and one with advantage -1. With A = 1 no bound
acts on a ratio below 1: l = -r. With A = -1 a bound acts: l = 1 - low. The loss is their mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from mmgrpo.algorithm import objective_of
from mmgrpo.config.loading import find_config, read_layers
from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.divergences import GAUSSIAN_DIVERGENCES, Moments
from mmgrpo.maths.gaussian import DENSITIES, REDUCTIONS
from mmgrpo.maths.objectives import Decisions
from mmgrpo.types import Noise, Scores
from mmgrpo.values import DRIFT, REFERENCE, from_reference
from tests.configs.method_steps import config_of
from tests.uniform import credit_of

STD, STEP = 0.4, 0.25
OLD_MEAN = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)
SAMPLE = OLD_MEAN + STD * torch.tensor([0.5, -1.0, 0.25, 0.75], dtype=torch.float64)
MEAN = OLD_MEAN + torch.tensor([0.01, 0.02, -0.01, 0.0], dtype=torch.float64)

REWARDS = [[1.0, 2.0, 3.0, 6.0], [0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 1.0, 1.0]]
"""Of three groups of four samples."""

DEAD = [0.0, 0.0, 0.0, 0.0]
OVER_BATCH = [[-1.192498, -0.596249, 0.0, 1.788748], DEAD, [-0.149062, -0.149062, 0.149062, 0.149062]]
GROUP_STD = [[-0.92582, -0.46291, 0.0, 1.38873], DEAD, [-0.866025, -0.866025, 0.866025, 0.866025]]
GROUP_STD_EPS = [[-0.925777, -0.462889, 0.0, 1.388666], DEAD, [-0.865725, -0.865725, 0.865725, 0.865725]]
POPULATION = [[-1.068988, -0.534494, 0.0, 1.603482], DEAD, [-0.9996, -0.9996, 0.9996, 0.9996]]
"""Advantages of these: over the deviation of the batch; of the group, without and with eps; of the population."""


def assert_loss(name: str, expected: float, *, num_clipped: int = 1) -> None:
    """The loss of the two samples, and the number of decisions that the lower bound clips."""
    policy = read_layers(find_config(f"methods/{name}"))["policy"]
    config = config_of(name).objective
    objective = objective_of(config)
    density, reduce = DENSITIES[policy["density"]], REDUCTIONS[policy["reduction"]]
    old_logprob, logprob = (reduce(density(SAMPLE, mean, STD).sum(0, keepdim=True), 4) for mean in (OLD_MEAN, MEAN))
    current, old = (Moments(mean=mean, velocity=mean, std=STD, step=STEP) for mean in (MEAN, OLD_MEAN))
    mask_BT = torch.ones(2, 1, dtype=torch.bool)
    totals = Totals(num_samples=2, num_decisions=2)
    std_BT = torch.full((2, 1), STD, dtype=torch.float64)
    noise = Noise(std_BT=std_BT, step_BT=torch.full_like(std_BT, STEP), level_BT=torch.ones_like(std_BT))
    values = {DRIFT: GAUSSIAN_DIVERGENCES["gaussian"](current, old).mean().expand(2, 1)}
    if REFERENCE in objective.views:  # the reference is the behavior policy
        divergence = config.kl.divergence or ""
        values[from_reference(divergence)] = GAUSSIAN_DIVERGENCES[divergence](current, old).mean().expand(2, 1)
    decisions = objective.modulated(
        Decisions(
            logprob_BT=logprob.expand(2, 1),
            old_logprob_BT=old_logprob.expand(2, 1),
            advantage_BT=torch.tensor([[1.0], [-1.0]], dtype=torch.float64),
            mask_BT=mask_BT,
            weight_BT=objective.weights(mask_BT, totals, noise),
            segment_BT=torch.zeros(2, 1, dtype=torch.long),
            mean_weight_BT=objective.mean_weights(mask_BT, totals),
            std_BT=std_BT,
            values=values,
        ),
        {},
    )
    loss = objective(decisions)
    assert float(loss.value) == pytest.approx(expected, rel=1e-6)
    assert (int(loss.diagnostics.clip_low_count), int(loss.diagnostics.clip_high_count)) == (num_clipped, 0)


def assert_advantages(name: str, expected: Sequence[Sequence[float]]) -> None:
    """The advantages of ``REWARDS``; of one group of three all are 0."""
    reward_BR = torch.tensor(REWARDS).reshape(12, 1)
    credit = credit_of(_scores(reward_BR), 4, config_of(name).advantage)
    torch.testing.assert_close(credit.advantage_B.reshape(3, 4), torch.tensor(expected), rtol=0, atol=2e-6)
    assert credit.zero_std_frac == pytest.approx(1 / 3)


def assert_clamped_to_five(name: str) -> None:
    """The one right sample of 64 has over the deviation of its group 63 / 64 / 0.125, about 7.9."""
    reward_BR = torch.zeros(64, 1)
    reward_BR[0] = 1.0
    assert float(credit_of(_scores(reward_BR), 64, config_of(name).advantage).advantage_B.max()) == 5.0


def _scores(reward_BR: torch.Tensor) -> Scores:
    valid_BR = torch.ones_like(reward_BR).bool()
    return Scores(names=("reward",), weight_R=torch.ones(1), value_BR=reward_BR, valid_BR=valid_BR)
