"""The objective on one denoising step with four elements: golden numbers."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmgrpo.maths.aggregates import count, sample_sum, sequence_mean
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.surrogates import clipped, unclipped
from mmgrpo.types import Noise
from mmgrpo.values import DRIFT
from tests.maths.decision_rows import decisions_at


def inverse_step(noise: Noise, mask_BT: Tensor) -> Tensor:
    """1 / h, infinite where a step has no length."""
    return 1 / noise.step_BT


STD = 0.4
OLD_MEAN = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)
GAP = torch.tensor([0.01, 0.02, -0.01, 0.0], dtype=torch.float64)
LATENT = OLD_MEAN + STD * torch.tensor([0.5, -1.0, 0.25, 0.75], dtype=torch.float64)


def gaussian_logprob(mean: Tensor) -> Tensor:
    return (-((LATENT - mean) ** 2) / (2 * STD**2) - math.log(STD) - 0.5 * math.log(2 * math.pi)).mean()


def single_step(mean: Tensor, advantage: float) -> Decisions:
    def as_BT(value: Tensor | float) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float64).reshape(1, 1)

    return decisions_at(
        as_BT(gaussian_logprob(mean)),
        old_logprob_BT=as_BT(gaussian_logprob(OLD_MEAN)),
        advantage_BT=as_BT(advantage),
        std_BT=as_BT(STD),
        values={DRIFT: as_BT((mean - OLD_MEAN).square().mean() / (2 * STD**2))},
    )


@pytest.mark.parametrize(("advantage", "expected"), [(2.0, -2 * 0.9886585546), (-2.0, 2 * (1 - 1e-4))])
def test_flow_grpo_step(advantage: float, expected: float):
    # log-probs -0.2370228013 and -0.2484290513; the bound 1e-4 holds a ratio that fell on a bad decision
    decisions = single_step(OLD_MEAN + GAP, advantage)
    assert decisions.old_logprob_BT.item() == pytest.approx(-0.2370228013, abs=1e-10)
    assert decisions.logprob_BT.item() == pytest.approx(-0.2484290513, abs=1e-10)
    loss = Objective(surrogate=functools.partial(clipped, low=1e-4, high=1e-4), aggregate=sample_sum)(decisions)
    assert loss.value.item() == pytest.approx(expected, abs=1e-9)
    metrics = loss.diagnostics.as_metrics()
    assert metrics["policy/ratio_mean"] == pytest.approx(0.9886585546, abs=1e-10)
    assert metrics["policy/clip_low_frac"] == (1.0 if advantage < 0 else 0.0)
    assert metrics["policy/clip_high_frac"] == 0.0


def test_grpo_guard_step():
    # r = exp((log r + b) std) with b = 4.6875e-4, times 1/h = 4
    mask_BT, step_BT = torch.ones(1, 1, dtype=torch.bool), torch.full((1, 1), 0.25)
    noise = Noise(std_BT=torch.full((1, 1), STD), step_BT=step_BT, level_BT=step_BT)
    objective = Objective(surrogate=unclipped, aggregate=sample_sum, step_weight=inverse_step, normalize_ratio=True)
    weight_BT = objective.weights(mask_BT, count(mask_BT), noise)
    decisions = replace(single_step(OLD_MEAN + GAP, -1.0), weight_BT=weight_BT)
    assert decisions[DRIFT].item() == pytest.approx(4.6875e-4, abs=1e-12)
    loss = objective(decisions)
    assert loss.value.item() == pytest.approx(4 * 0.9956345564, abs=1e-9)
    assert loss.diagnostics.as_metrics()["policy/ratio_mean"] == pytest.approx(0.9956345564, abs=1e-10)


def test_gspo_on_denoising_steps_is_gspo_on_tokens():
    # two steps whose ratios are 1.1 and 0.9 share the ratio sqrt(0.99)
    logprob_BT = torch.tensor([[1.1, 0.9]], dtype=torch.float64).log().requires_grad_()
    decisions = decisions_at(
        logprob_BT,
        old_logprob_BT=torch.zeros(1, 2, dtype=torch.float64),
        advantage_BT=torch.full((1, 2), 3.0, dtype=torch.float64),
        weight_BT=torch.full((1, 2), 0.5),
    )
    ppo = functools.partial(clipped, low=0.2, high=0.2)
    loss = Objective(surrogate=ppo, aggregate=sequence_mean, ratio_level="sequence")(decisions)
    (grad_BT,) = torch.autograd.grad(loss.value, logprob_BT)
    assert loss.value.item() == pytest.approx(-3 * math.sqrt(0.99))
    torch.testing.assert_close(grad_BT, torch.full_like(grad_BT, -3 * math.sqrt(0.99) / 2))
