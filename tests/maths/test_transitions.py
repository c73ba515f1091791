"""Samplers against published numbers, published formulas and the exact marginals of Gaussian data."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.maths.gaussian import DENSITIES, gaussian_logdensity
from mmgrpo.maths.transitions import (
    SAMPLERS,
    DenoisingStep,
    Kernel,
    Level,
    Prediction,
    cps,
    dance_sde,
    ddim,
    epsilon_to_prediction,
    flow_sde,
    kernel_mean,
    log_sde,
    secant_to_prediction,
    v_to_prediction,
    velocity_to_prediction,
    wan_sde,
    x0_to_prediction,
)

X, V, EPS = (torch.tensor(value, dtype=torch.float64) for value in (1.0, 0.5, 0.3))
SDE_SAMPLERS = (flow_sde, dance_sde, wan_sde, log_sde)


def flow(sigma: float) -> Level:
    return Level(alpha=1 - sigma, sigma=sigma)


def vp(alphabar: float) -> Level:
    return Level(alpha=math.sqrt(alphabar), sigma=math.sqrt(1 - alphabar))


def ve(sigma: float) -> Level:
    return Level(alpha=1.0, sigma=sigma)


def flow_step(sigma: float, next_sigma: float, second_sigma: float = 0.95) -> DenoisingStep:
    return DenoisingStep(level=flow(sigma), next_level=flow(next_sigma), second_sigma=second_sigma)


def close(actual: Tensor | float, expected: Tensor | float, tolerance: float = 1e-9) -> None:
    actual, expected = (torch.as_tensor(value, dtype=torch.float64) for value in (actual, expected))
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


# sampler, strength, sigma, sigma', second sigma, density -> std, mean, next latent, log-density,
# for x = 1, v = 0.5, eps = 0.3, as the released codes compute them.
GOLDEN = {
    "flow_sde": ((flow_sde, 0.7, 0.8, 0.6, 0.95), "gaussian", (0.6260990337, 0.6305, 0.8183297101, -0.4956918136)),
    "flow_sde at 1": ((flow_sde, 0.7, 1.0, 0.9, 0.9), "gaussian", (0.7, 0.705, 0.915, -0.6072635893)),
    "cps": ((cps, 0.8, 0.8, 0.6, 0.95), "squared_error", (0.5706339098, 0.4439512163, 0.6151413892, -0.0293060753)),
    "wan_sde": ((wan_sde, 1.0, 0.8, 0.6, 0.95), "gaussian", (0.3398823326, 0.82058, 0.9225446998, 0.1152172687)),
    "dance_sde": ((dance_sde, 0.3, 0.8, 0.6, 0.95), "gaussian", (0.1341640786, 0.887625, 0.9278742236, 1.0447532273)),
    # 0.09 (ln(0.3 / 0.2) - 0.1) = 0.0274918598; half of that times the score -1.375 is added to 0.95
    "log_sde": ((log_sde, 0.3, 0.8, 0.7, 0.95), "gaussian", (0.1658066939, 0.9310993464, 0.9808413546, 0.8329941308)),
    # 0.25 (ln(0.1 / 0.003) - 0.1) = 0.8516394745, score -1
    "log_sde at 1": (
        (log_sde, 0.5, 1.0, 0.9, 0.9),
        "gaussian",
        (0.9228431472, 0.5241802628, 0.801033207, -0.8836425363),
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_flow_steps(case: str) -> None:
    (sampler, strength, sigma, next_sigma, second), density, expected = GOLDEN[case]
    kernel = sampler(flow_step(sigma, next_sigma, second), strength=strength)
    mean = kernel_mean(kernel, velocity_to_prediction(X, V, flow(sigma)))
    sample = mean + kernel.std * EPS
    logdensity = DENSITIES[density](sample, mean, kernel.std)
    for actual, value in zip((kernel.std, mean, sample, logdensity), expected, strict=True):
        close(actual, value)


def test_golden_ddim_step() -> None:
    """x = 1, predicted noise 0.2, alphabar 0.5 -> 0.6, eta 1, eps 0.3."""
    prediction = epsilon_to_prediction(X, torch.tensor(0.2, dtype=torch.float64), vp(0.5))
    kernel = ddim(DenoisingStep(level=vp(0.5), next_level=vp(0.6), second_sigma=0.7), strength=1.0)
    mean = kernel_mean(kernel, prediction)
    close(prediction.x0, 1.2142135624)
    close(kernel.std, 0.3651483717)
    close(mean, 1.0438053371)
    close(mean + kernel.std * EPS, 1.1533498486)
    close(gaussian_logdensity(mean + kernel.std * EPS, mean, kernel.std), 0.0435129771)


@pytest.mark.parametrize(("sigma", "h", "strength"), list(product((0.25, 0.6, 0.95), (0.01, 0.2), (0.1, 0.7, 1.3))))
def test_sde_means_are_the_published_ones(sigma: float, h: float, strength: float) -> None:
    """Flow-GRPO writes the mean in x and v, DanceGRPO with the score; here both are two coefficients."""
    generator = torch.Generator().manual_seed(3)
    x, v = torch.randn(2, 50, dtype=torch.float64, generator=generator)
    prediction = velocity_to_prediction(x, v, flow(sigma))
    step = flow_step(sigma, sigma - h, 0.96)
    diffusion = {
        flow_sde: strength * math.sqrt(sigma / (1 - sigma)),
        wan_sde: strength * 0.96 * sigma,
        dance_sde: strength,
    }
    for sampler, s in diffusion.items():
        kernel = sampler(step, strength=strength)
        written_in_x_v = x * (1 - s**2 / (2 * sigma) * h) - v * (1 + s**2 * (1 - sigma) / (2 * sigma)) * h
        score = -(x - (1 - sigma) * (x - sigma * v)) / sigma**2
        written_with_score = x - v * h + 0.5 * s**2 * score * h
        close(kernel_mean(kernel, prediction), written_in_x_v)
        close(kernel_mean(kernel, prediction), written_with_score)
        close(kernel.std, s * math.sqrt(h))


@pytest.mark.parametrize(("a", "next_a", "eta"), list(product((0.005, 0.5, 0.9), (0.95, 0.999), (0.3, 1.0))))
def test_ddim_is_the_published_variance_on_vp(a: float, next_a: float, eta: float) -> None:
    kernel = ddim(DenoisingStep(level=vp(a), next_level=vp(next_a), second_sigma=0.9), strength=eta)
    variance = eta**2 * (1 - next_a) / (1 - a) * (1 - a / next_a)
    close(kernel.signal, math.sqrt(next_a))
    close(kernel.std**2, variance)
    close(kernel.noise**2, 1 - next_a - variance)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(("sigma", "next_sigma"), [(1.0, 0.9), (0.8, 0.6), (0.3, 0.0)])
def test_strength_zero_is_the_euler_step(name: str, sigma: float, next_sigma: float) -> None:
    kernel = SAMPLERS[name](flow_step(sigma, next_sigma, 0.9), strength=0.0)
    assert kernel.std == 0.0
    mean = kernel_mean(kernel, velocity_to_prediction(X, V, flow(sigma)))
    close(mean, X - (sigma - next_sigma) * V, 1e-12)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_step_vanishes_continuously_into_euler(name: str) -> None:
    kernel = SAMPLERS[name](flow_step(0.8, 0.6), strength=1e-5)
    close(kernel.noise, 0.6, 1e-8)
    assert 0 < kernel.std < 2e-5


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("sigma", [1.0, 0.2])
def test_the_last_step_is_the_clean_prediction(name: str, sigma: float) -> None:
    """At sigma' = 0 nothing is random: x' = x0 = x - sigma v."""
    kernel = SAMPLERS[name](flow_step(sigma, 0.0, 0.9), strength=0.8)
    assert (kernel.signal, kernel.noise, kernel.std) == (1.0, 0.0, 0.0)
    close(kernel_mean(kernel, velocity_to_prediction(X, V, flow(sigma))), 1 - 0.5 * sigma)


def test_flow_sde_at_and_below_one_divides_by_the_second_sigma() -> None:
    # sigma = 0.9999: s = 0.7 sqrt(0.9999 / 0.1) = 2.2134836742, not 0.7 sqrt(9999) = 70; h = 0.0999
    kernel = flow_sde(flow_step(0.9999, 0.9, 0.9), strength=0.7)
    close(kernel.std, 0.7 * math.sqrt(0.9999 / 0.1) * math.sqrt(0.0999))
    at_one = flow_sde(flow_step(1.0, 0.9, 0.9), strength=0.7)
    close(kernel.std, at_one.std, 1e-3)
    close(kernel.noise, at_one.noise, 1e-3)
    # 1 - sigma = 0.002 is far enough from 0 to divide by
    close(flow_sde(flow_step(0.998, 0.9, 0.9), strength=0.7).std, 0.7 * math.sqrt(0.998 / 0.002 * 0.098))
    # a later level that is near 1 too is above nothing: its own sigma is the smaller one
    close(flow_sde(flow_step(0.9995, 0.999, 0.9998), strength=0.7).std, 0.7 * math.sqrt(0.9995 / 0.0005 * 0.0005))


def test_first_step_of_flow_sde_has_the_std_of_its_strength() -> None:
    """At sigma = 1, h = 1 - second sigma cancels the denominator, whatever the schedule."""
    for second in (0.5, 0.9, 0.99):
        close(flow_sde(flow_step(1.0, second, second), strength=0.7).std, 0.7)


@pytest.mark.parametrize("sampler", [*SDE_SAMPLERS, ddim])
def test_marginal_variance_of_gaussian_data_is_kept_to_second_order(sampler) -> None:
    """One exact step from the marginal at sigma misses the one at sigma' by O(h^2): halving h quarters the error."""
    data_variance, sigma = 0.25, 0.7

    def variance(level: Level) -> float:
        return level.alpha**2 * data_variance + level.sigma**2

    def error(h: float) -> float:
        step = flow_step(sigma, sigma - h)
        kernel = sampler(step, strength=0.7)
        unit = torch.ones((), dtype=torch.float64)
        exact = velocity_to_prediction(unit, exact_velocity(unit, step.level, 0.0, data_variance), step.level)
        return float(kernel_mean(kernel, exact)) ** 2 * variance(step.level) + kernel.std**2 - variance(step.next_level)

    assert abs(error(0.02)) < 1e-3
    assert error(0.01) / error(0.005) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("sampler", [*SDE_SAMPLERS, ddim])
def test_complete_chain_ends_in_the_data_distribution(sampler) -> None:
    """40,000 chains of 100 steps in the exact velocity field of N(1.5, 0.25); standard errors 0.0025 and 0.0018."""
    generator = torch.Generator().manual_seed(11)
    sigmas = torch.linspace(0.95, 0.0, 101, dtype=torch.float64).tolist()
    x = 0.05 * (1.5 + 0.5 * torch.randn(40_000, dtype=torch.float64, generator=generator))
    x = x + 0.95 * torch.randn(x.shape, dtype=torch.float64, generator=generator)
    for sigma, next_sigma in pairwise(sigmas):
        level = flow(sigma)
        kernel = sampler(flow_step(sigma, next_sigma, sigmas[1]), strength=0.7)
        prediction = velocity_to_prediction(x, exact_velocity(x, level, 1.5, 0.25), level)
        x = kernel_mean(kernel, prediction) + kernel.std * torch.randn(x.shape, dtype=x.dtype, generator=generator)
    assert float(x.mean()) == pytest.approx(1.5, abs=0.01)
    assert float(x.var()) == pytest.approx(0.25, abs=0.01)


def exact_velocity(x: Tensor, level: Level, mean: float, variance: float) -> Tensor:
    """E[eps - x0 | x] for x0 ~ N(mean, variance): both posteriors are linear in x."""
    total = level.alpha**2 * variance + level.sigma**2
    centered = x - level.alpha * mean
    return level.sigma / total * centered - (mean + level.alpha * variance / total * centered)


@pytest.mark.parametrize(("sampler", "strength"), [(cps, 0.3), (cps, 0.8), (cps, 1.0), (ddim, 0.4), (ddim, 1.0)])
@pytest.mark.parametrize("levels", [(flow(1.0), flow(0.7)), (vp(0.3), vp(0.4)), (ve(14), ve(9))])
def test_noise_coefficients_are_preserved_at_any_length(sampler, strength: float, levels: tuple[Level, Level]) -> None:
    kernel = sampler(
        DenoisingStep(level=levels[0], next_level=levels[1], second_sigma=levels[1].sigma), strength=strength
    )
    assert kernel.signal == levels[1].alpha
    assert kernel.std > 0
    assert kernel.noise**2 + kernel.std**2 == pytest.approx(levels[1].sigma ** 2, rel=1e-12)


@pytest.mark.parametrize(
    "levels", [(flow(1.0), flow(0.7)), (vp(0.3), vp(0.4)), (ve(14), ve(9)), (flow(0.2), flow(0.0))]
)
def test_a_deterministic_step_determines_its_sample_and_noise(levels: tuple[Level, Level]) -> None:
    step = DenoisingStep(level=levels[0], next_level=levels[1], second_sigma=levels[1].sigma)
    prediction = Prediction(
        torch.tensor([0.5, -2.0], dtype=torch.float64), torch.tensor([1.5, 0.25], dtype=torch.float64)
    )
    x = levels[0].alpha * prediction.x0 + levels[0].sigma * prediction.noise
    result = secant_to_prediction(x, kernel_mean(ddim(step, strength=0.0), prediction), step)
    close(result.x0, prediction.x0, 1e-12)
    close(result.noise, prediction.noise, 1e-12)


def test_a_flow_map_is_read_by_its_mean_velocity() -> None:
    result = secant_to_prediction(torch.tensor([1.0]), torch.tensor([1.0 - 0.2 * 3.0]), flow_step(0.8, 0.6))
    close(result.x0, torch.tensor([1.0 - 0.8 * 3.0]), 1e-6)  # x - sigma u of u = 3, taken over h = 0.2
    close(result.noise, torch.tensor([1.0 + 0.2 * 3.0]), 1e-6)
    with pytest.raises(ConfigError, match="ratio rises"):
        secant_to_prediction(torch.ones(1), torch.ones(1), flow_step(0.8, 0.8))


def test_long_steps_of_flow_sde_leave_too_much_noise() -> None:
    # two even steps from pure noise: s^2 = 0.49 / 0.5 with sigma held at 0.5, std^2 = 0.98 * 0.5, noise = 0.5 - 0.245
    step = flow_step(1.0, 0.5, 0.5)
    assert flow_sde(step, strength=0.7).excess_noise(step) == pytest.approx(math.hypot(0.255, 0.7) - 0.5)
    for sampler, strength in ((cps, 0.8), (cps, 1.0), (ddim, 1.0), (flow_sde, 0.0)):
        assert sampler(step, strength=strength).excess_noise(step) == pytest.approx(0.0, abs=1e-12)
    end = flow_step(0.5, 0.0, 0.5)
    assert flow_sde(end, strength=0.7).excess_noise(end) == 0.0


def test_cps_of_full_strength_replaces_all_noise() -> None:
    kernel = cps(flow_step(0.8, 0.6), strength=1.0)
    close(kernel.noise, 0.0, 1e-15)
    close(kernel.std, 0.6, 1e-15)


CONVERTERS = {
    "velocity": (velocity_to_prediction, lambda level, x0, eps: eps - x0, [flow(1.0), flow(0.8), flow(0.0)]),
    "epsilon": (epsilon_to_prediction, lambda level, x0, eps: eps, [flow(0.8), vp(0.1), ve(7)]),
    "v": (
        v_to_prediction,
        lambda level, x0, eps: (level.alpha * eps - level.sigma * x0) / math.hypot(level.alpha, level.sigma),
        [vp(0.0), vp(0.3), vp(1.0), ve(7), flow(0.4)],
    ),
    "x0": (x0_to_prediction, lambda level, x0, eps: x0, [flow(1.0), flow(0.1), vp(0.0), ve(7)]),
}


@pytest.mark.parametrize("name", CONVERTERS)
def test_converters_recover_the_sample_and_the_noise(name: str) -> None:
    to_prediction, parametrise, levels = CONVERTERS[name]
    x0, eps = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    for level in levels:
        prediction = to_prediction(level.alpha * x0 + level.sigma * eps, parametrise(level, x0, eps), level)
        close(prediction.x0, x0)
        close(prediction.noise, eps)


def test_half_precision_is_read_in_float32() -> None:
    # 1 + 2^-9 and 2^-9 need 9 bits after the point, which bfloat16 loses: 1 - 0.5 * 2^-9 would round to 1
    x, v = torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(2.0**-9, dtype=torch.bfloat16)
    prediction = velocity_to_prediction(x, v, flow(0.5))
    assert prediction.x0.dtype == torch.float32
    assert prediction.x0.item() == 1 - 2.0**-10
    assert prediction.noise.item() == 1 + 2.0**-10


@pytest.mark.parametrize("name", CONVERTERS)
def test_gradients_through_prediction_mean_and_density(name: str) -> None:
    level = {"velocity": flow(0.8), "epsilon": vp(0.5), "v": vp(0.5), "x0": vp(0.5)}[name]
    next_level = flow(0.6) if name == "velocity" else vp(0.6)
    kernel = ddim(DenoisingStep(level=level, next_level=next_level, second_sigma=0.9), strength=0.7)
    x, output, sample = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7))

    def logdensity(x: Tensor, output: Tensor) -> Tensor:
        return gaussian_logdensity(sample, kernel_mean(kernel, CONVERTERS[name][0](x, output, level)), kernel.std)

    assert torch.autograd.gradcheck(logdensity, (x.requires_grad_(), output.requires_grad_()))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("strength", [-0.1, math.nan, math.inf])
def test_an_invalid_strength_raises(name: str, strength: float) -> None:
    with pytest.raises(ConfigError, match="not negative"):
        SAMPLERS[name](flow_step(0.8, 0.6), strength=strength)


@pytest.mark.parametrize("sampler", SDE_SAMPLERS)
@pytest.mark.parametrize("levels", [(vp(0.3), vp(0.4)), (ve(14), ve(0))])
def test_sde_samplers_refuse_other_schedules_and_name_those_that_work(sampler, levels: tuple[Level, Level]) -> None:
    with pytest.raises(ConfigError, match="ddim and cps"):
        sampler(DenoisingStep(level=levels[0], next_level=levels[1], second_sigma=0.9), strength=0.5)


def test_impossible_steps_raise() -> None:
    with pytest.raises(ConfigError, match=r"in \[0, 1\]"):
        cps(flow_step(0.8, 0.6), strength=1.01)
    # sigma = 1: std = eta sigma', so eta 1 is the most there is
    with pytest.raises(ConfigError, match="to 1 or less"):
        ddim(flow_step(1.0, 0.6), strength=1.5)
    with pytest.raises(ConfigError, match="take fewer steps"):
        log_sde(flow_step(1.0, 0.998), strength=0.5)
    for alpha, next_alpha in ((0.9, 0.1), (0.0, 0.0)):
        level, next_level = Level(alpha=alpha, sigma=0.6), Level(alpha=next_alpha, sigma=0.5)
        with pytest.raises(ConfigError, match="signal-to-noise"):
            ddim(DenoisingStep(level=level, next_level=next_level, second_sigma=0.5), strength=1.0)
    with pytest.raises(ConfigError, match="second sigma"):
        flow_sde(flow_step(1.0, 0.9, 1.0), strength=0.7)
    with pytest.raises(ShapeError, match="must lower sigma"):
        flow_step(0.6, 0.7)
    still = DenoisingStep(level=Level(alpha=0.9, sigma=0.3), next_level=Level(alpha=0.9, sigma=0.3), second_sigma=0.5)
    for sampler in (cps, ddim):  # a schedule that repeats its last level (stock DDIM with steps_offset 0)
        assert sampler(still, strength=0.8) == Kernel(0.9, 0.3, 0.0)
    with pytest.raises(ShapeError, match="second_sigma"):
        flow_step(0.8, 0.6, math.nan)
    for alpha, sigma in ((0.5, -0.1), (-0.1, 0.5), (0.0, 0.0), (math.nan, 0.5)):
        with pytest.raises(ShapeError, match="noise level"):
            Level(alpha=alpha, sigma=sigma)


@pytest.mark.parametrize(("num_steps", "plain", "published"), [(10, 0.87898, 0.72368), (1000, 0.99872, 0.80657)])
def test_cps_falls_short_of_the_marginals(num_steps: int, plain: float, published: float) -> None:
    """Of standard normal data an exact network says x0 = (1 - s) x / V and eps = s x / V, V = (1 - s)^2 + s^2."""
    std = {}
    for strength in (0.0, 0.8):
        variance = 1.0
        for i in range(num_steps):
            sigma, next_sigma = 1 - i / num_steps, 1 - (i + 1) / num_steps
            kernel = cps(flow_step(sigma, next_sigma), strength=strength)
            slope = (kernel.signal * (1 - sigma) + kernel.noise * sigma) / ((1 - sigma) ** 2 + sigma**2)
            variance = slope**2 * variance + kernel.std**2
        std[strength] = math.sqrt(variance)
    close(std[0.0], plain, 1e-5)
    close(std[0.8], published, 1e-5)


def test_predictions_independent_of_the_sample_raise() -> None:
    with pytest.raises(ConfigError, match="zero terminal SNR"):
        epsilon_to_prediction(X, V, vp(0.0))
    with pytest.raises(ConfigError, match="no noise"):
        x0_to_prediction(X, V, vp(1.0))
    with pytest.raises(ConfigError, match="flow schedule"):
        velocity_to_prediction(X, V, vp(0.5))


def test_step_length_is_the_drop_of_sigma() -> None:
    assert flow_step(0.75, 0.5).length == 0.25


def test_mean_of_a_kernel_by_hand() -> None:
    # 0.4 * 2 + 0.5 * (-1) = 0.3
    kernel = dance_sde(flow_step(0.8, 0.6), strength=math.sqrt(0.8))  # std^2 = 0.16, noise = 0.6 - 0.16 / 1.6 = 0.5
    close(kernel_mean(kernel, Prediction(2 * X, -X)), 0.3)
