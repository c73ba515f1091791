"""Weights of denoising steps, by hand and against the schedule their paper uses."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch

from mmgrpo.errors import ShapeError
from mmgrpo.maths.steps import STEP_WEIGHTS, noise_std_weight
from mmgrpo.maths.transitions import DenoisingStep, Level, flow_sde, kernel_mean, log_sde, velocity_to_prediction
from mmgrpo.methods.ratios.grpo_guard import inverse_step_weight
from mmgrpo.methods.sampling.sage_grpo import equal_gradient_weight
from mmgrpo.methods.sampling.tempflow_grpo import scaled_noise_std_weight
from mmgrpo.types import Noise

NOISE = Noise(
    std_BT=torch.tensor([[0.2, 0.6, 0.4, 0.0], [0.2, 0.6, 0.4, 0.0]], dtype=torch.float64),
    step_BT=torch.tensor([[0.1, 0.25, 0.5, 0.0], [0.1, 0.25, 0.5, 0.0]], dtype=torch.float64),
    level_BT=torch.tensor([[0.9, 0.8, 0.55, 0.05], [0.9, 0.8, 0.55, 0.05]], dtype=torch.float64),
)
NUMBERS = {"scaled_noise_std": {"factor": 1.0}}
MASK_BT = torch.tensor([[True, True, True, False], [False, True, True, False]])


def test_inverse_step_by_hand() -> None:
    """1 / 0.1, 1 / 0.25 (GRPO-Guard's 4 at sqrt(h) = 0.5), 1 / 0.5; the unmasked h = 0 leaves no infinity."""
    expected = torch.tensor([[10.0, 4.0, 2.0, 0.0], [0.0, 4.0, 2.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(inverse_step_weight(NOISE, MASK_BT), expected, rtol=1e-15, atol=0)


def test_noise_std_by_hand() -> None:
    """Means over the masked decisions: (0.2 + 0.6 + 0.4) / 3 = 0.4 and (0.6 + 0.4) / 2 = 0.5."""
    expected = torch.tensor([[0.5, 1.5, 1.0, 0.0], [0.0, 1.2, 0.8, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(noise_std_weight(NOISE, MASK_BT), expected)


def test_noise_std_of_samples_without_random_decisions_is_zero() -> None:
    mask_BT = torch.tensor([[False, False, False, True], [False, False, False, False]])
    assert (noise_std_weight(NOISE, mask_BT) == 0).all()


def test_noise_std_is_the_fixed_factor_on_the_schedule_that_factor_was_made_for() -> None:
    """SD3: ten steps of shift 3, Flow-SDE of 0.7, the last step untrained; mean std 0.4440, and 2.25 = 1 / 0.4444."""
    timesteps = torch.linspace(1000.0, 8.928571827709675, 10, dtype=torch.float64) / 1000
    sigmas = [*(3 * timesteps / (1 + 2 * timesteps)).tolist(), 0.0]
    levels = [Level(alpha=1 - sigma, sigma=sigma) for sigma in sigmas]
    steps = [DenoisingStep(level=a, next_level=b, second_sigma=sigmas[1]) for a, b in pairwise(levels)]
    std_1T = torch.tensor([[flow_sde(step, strength=0.7).std for step in steps]], dtype=torch.float64)
    noise = Noise(std_BT=std_1T, step_BT=torch.ones_like(std_1T), level_BT=torch.ones_like(std_1T))
    mask_1T = torch.ones(1, 10, dtype=torch.bool)
    mask_1T[0, -1] = False
    fixed_1T = scaled_noise_std_weight(noise, mask_1T, factor=2.25)
    torch.testing.assert_close(noise_std_weight(noise, mask_1T), fixed_1T, rtol=0.01, atol=0)


def test_fixed_noise_std_by_hand() -> None:
    expected = torch.tensor([[0.45, 1.35, 0.9, 0.0], [0.0, 1.35, 0.9, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(scaled_noise_std_weight(NOISE, MASK_BT, factor=2.25), expected)


def test_equal_gradient_by_hand() -> None:
    """N = (0.1 + 0.04 * 0.1 / 1.8) / 0.2 = 0.511111, (0.25 + 0.36 * 0.2 / 1.6) / 0.6 = 0.491667, and for the third
    (0.5 + 0.16 * 0.45 / 1.1) / 0.4 = 1.413636. The median of three is the first, of the last two the lower one."""
    expected = torch.tensor([[1.0, 1.0395480, 0.3615577, 0.0], [0.0, 1.0, 0.3478028, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(equal_gradient_weight(NOISE, MASK_BT), expected, rtol=1e-6, atol=0)


def test_equal_gradient_equalizes_the_gradients_of_the_sampler() -> None:
    """d mean / d velocity of the sampler itself, by autograd, over its std and times the weight, is one number."""
    levels = [Level(alpha=1 - sigma, sigma=sigma) for sigma in (0.95, 0.8, 0.5, 0.2)]
    steps = [DenoisingStep(level=a, next_level=b, second_sigma=0.8) for a, b in pairwise(levels)]
    kernels = [log_sde(step, strength=0.5) for step in steps]
    norms = []
    for step, kernel in zip(steps, kernels, strict=True):
        velocity = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        x = torch.tensor(1.0, dtype=torch.float64)
        kernel_mean(kernel, velocity_to_prediction(x, velocity, step.level)).backward()
        norms.append(abs(float(velocity.grad)) / kernel.std)  # type: ignore[arg-type]
    noise = Noise(
        std_BT=torch.tensor([[kernel.std for kernel in kernels]], dtype=torch.float64),
        step_BT=torch.tensor([[step.length for step in steps]], dtype=torch.float64),
        level_BT=torch.tensor([[step.level.sigma for step in steps]], dtype=torch.float64),
    )
    weight_BT = equal_gradient_weight(noise, torch.ones(1, 3, dtype=torch.bool))
    alike_T = weight_BT[0] * torch.tensor(norms, dtype=torch.float64)
    torch.testing.assert_close(alike_T, torch.full_like(alike_T, sorted(norms)[1]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", STEP_WEIGHTS)
def test_a_mask_of_another_shape_raises(name: str) -> None:
    for mask in (MASK_BT[:, :3], MASK_BT.int()):
        with pytest.raises(ShapeError, match="mask_BT must be bool"):
            STEP_WEIGHTS[name](NOISE, mask, **NUMBERS.get(name, {}))


@pytest.mark.parametrize("name", STEP_WEIGHTS)
def test_noise_of_masked_decisions_does_not_matter(name: str) -> None:
    spoiled = Noise(
        std_BT=NOISE.std_BT.where(MASK_BT, torch.nan),
        step_BT=NOISE.step_BT.where(MASK_BT, torch.inf),
        level_BT=NOISE.level_BT.where(MASK_BT, torch.nan),
    )
    weight = partial(STEP_WEIGHTS[name], **NUMBERS.get(name, {}))
    torch.testing.assert_close(weight(spoiled, MASK_BT), weight(NOISE, MASK_BT), rtol=0, atol=0)
