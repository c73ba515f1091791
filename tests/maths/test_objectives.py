"""The objective: golden denoising vectors, exactness over slices, masks, gradients and refusals."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, ShapeError, UnknownNameError
from mmgrpo.maths.aggregates import count, decision_mean, sample_mean, sample_sum
from mmgrpo.maths.objectives import LOG_RATIO_LIMIT, Decisions, Diagnostics, Loss, Objective
from mmgrpo.maths.ratios import RATIO_LEVELS
from mmgrpo.maths.surrogates import SURROGATES, cispo, clipped, sapo, unclipped
from mmgrpo.types import Noise

NAN, INF = float("nan"), float("inf")
PPO = functools.partial(clipped, low=0.2, high=0.2)
BOUND = {
    "clipped": PPO,
    "dual_clipped": functools.partial(SURROGATES["dual_clipped"], low=0.2, high=0.2, bound=3.0),
    "two_sided_clipped": functools.partial(SURROGATES["two_sided_clipped"], low=0.2, high=0.2, delta=3.0),
    "policy_gradient": SURROGATES["policy_gradient"],
    "cispo": functools.partial(cispo, low=0.2, high=0.2),
    "sapo": functools.partial(sapo, positive_temperature=1.0, negative_temperature=1.05),
    "vespo": functools.partial(
        SURROGATES["vespo"], positive_power=2.0, positive_decay=3.0, negative_power=3.0, negative_decay=2.0
    ),
    "unclipped": unclipped,
}


def inverse_step(noise: Noise, mask_BT: Tensor) -> Tensor:
    """1 / h, infinite where a step has no length."""
    return 1 / noise.step_BT


def draw(num_rows: int = 6, num_columns: int = 5, *, seed: int = 0) -> Decisions:
    """A random batch in float64 with every optional value, weights of a sample mean, and segments of two."""
    generator = torch.Generator().manual_seed(seed)
    old_BT, gap_BT, advantage_BT, kl_BT, entropy_BT, drift_BT, std_BT = torch.randn(
        7, num_rows, num_columns, generator=generator, dtype=torch.float64
    )
    mask_BT = torch.rand(num_rows, num_columns, generator=generator) > 0.3
    weight_BT = sample_mean(mask_BT, count(mask_BT)).double()
    return Decisions(
        logprob_BT=old_BT + 0.3 * gap_BT,
        old_logprob_BT=old_BT,
        advantage_BT=advantage_BT,
        mask_BT=mask_BT,
        weight_BT=2 * weight_BT,
        segment_BT=(torch.arange(num_columns) // 2).expand(num_rows, num_columns),
        kl_weight_BT=weight_BT,
        kl_BT=kl_BT.square(),
        entropy_BT=entropy_BT.abs(),
        drift_BT=0.01 * drift_BT.square(),
        std_BT=0.5 + std_BT.abs(),
    )


def tensors(decisions: Decisions) -> dict[str, Any]:
    given = {field.name: getattr(decisions, field.name) for field in fields(decisions)}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def cut(decisions: Decisions, rows: Tensor, columns: Tensor) -> Decisions:
    return Decisions(**{name: x[rows][:, columns] for name, x in tensors(decisions).items()})


def differentiate(objective: Objective, decisions: Decisions) -> tuple[Loss, Tensor]:
    logprob_BT = decisions.logprob_BT.clone().requires_grad_()
    loss = objective(replace(decisions, logprob_BT=logprob_BT))
    return loss, torch.autograd.grad(loss.value, logprob_BT)[0]


def full_objective(name: str = "clipped", **parts) -> Objective:
    """Every term on: surrogate, step weight, recentring, divergence, entropy."""
    chosen = {
        "normalise_ratio": True,
        "step_weight": inverse_step,
        "divergence": "gaussian",
        "kl_beta": 0.04,
        "entropy_bonus": 0.01,
        **parts,
    }
    return Objective(surrogate=BOUND[name], aggregate=sample_mean, **chosen)


# --- golden numbers of one denoising step with four elements -------------------------------------------------------

STD = 0.4
OLD_MEAN = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)
GAP = torch.tensor([0.01, 0.02, -0.01, 0.0], dtype=torch.float64)
LATENT = OLD_MEAN + STD * torch.tensor([0.5, -1.0, 0.25, 0.75], dtype=torch.float64)


def gaussian_logprob(mean: Tensor) -> Tensor:
    return (-((LATENT - mean) ** 2) / (2 * STD**2) - math.log(STD) - 0.5 * math.log(2 * math.pi)).mean()


def one_step(mean: Tensor, advantage: float) -> Decisions:
    def as_BT(value: Tensor | float) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float64).reshape(1, 1)

    return Decisions(
        logprob_BT=as_BT(gaussian_logprob(mean)),
        old_logprob_BT=as_BT(gaussian_logprob(OLD_MEAN)),
        advantage_BT=as_BT(advantage),
        mask_BT=torch.ones(1, 1, dtype=torch.bool),
        weight_BT=torch.ones(1, 1),
        segment_BT=torch.zeros(1, 1, dtype=torch.int64),
        drift_BT=as_BT((mean - OLD_MEAN).square().mean() / (2 * STD**2)),
        std_BT=as_BT(STD),
    )


@pytest.mark.parametrize(("advantage", "expected"), [(2.0, -2 * 0.9886585546), (-2.0, 2 * (1 - 1e-4))])
def test_flow_grpo_step(advantage: float, expected: float):
    # log-probs -0.2370228013 and -0.2484290513; the bound 1e-4 holds a ratio that fell on a bad decision
    decisions = one_step(OLD_MEAN + GAP, advantage)
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
    objective = Objective(surrogate=unclipped, aggregate=sample_sum, step_weight=inverse_step, normalise_ratio=True)
    weight_BT = objective.weights(mask_BT, count(mask_BT), noise)
    decisions = replace(one_step(OLD_MEAN + GAP, -1.0), weight_BT=weight_BT)
    assert decisions.drift_BT is not None
    assert decisions.drift_BT.item() == pytest.approx(4.6875e-4, abs=1e-12)
    loss = objective(decisions)
    assert loss.value.item() == pytest.approx(4 * 0.9956345564, abs=1e-9)
    assert loss.diagnostics.as_metrics()["policy/ratio_mean"] == pytest.approx(0.9956345564, abs=1e-10)


def test_gspo_on_denoising_steps_is_gspo_on_tokens():
    # two steps whose ratios are 1.1 and 0.9 share the ratio sqrt(0.99)
    old_BT = torch.zeros(1, 2, dtype=torch.float64)
    decisions = replace(
        cut(draw(), torch.arange(1), torch.arange(2)),
        logprob_BT=torch.tensor([[1.1, 0.9]], dtype=torch.float64).log(),
        old_logprob_BT=old_BT,
        advantage_BT=torch.full((1, 2), 3.0, dtype=torch.float64),
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        weight_BT=torch.full((1, 2), 0.5),
    )
    loss, grad_BT = differentiate(Objective(surrogate=PPO, aggregate=sample_mean, ratio_level="sequence"), decisions)
    assert loss.value.item() == pytest.approx(-3 * math.sqrt(0.99))
    torch.testing.assert_close(grad_BT, torch.full_like(grad_BT, -3 * math.sqrt(0.99) / 2))


# --- invariances ---------------------------------------------------------------------------------------------------


def test_on_policy_gradient_is_the_policy_gradient():
    decisions = draw()
    decisions = replace(decisions, logprob_BT=decisions.old_logprob_BT)
    for name in SURROGATES:
        _, grad_BT = differentiate(Objective(surrogate=BOUND[name], aggregate=sample_mean), decisions)
        torch.testing.assert_close(grad_BT, -decisions.advantage_BT * decisions.weight_BT)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("ratio_level", RATIO_LEVELS)
def test_zero_advantage_is_exactly_zero(name: str, ratio_level: str):
    decisions = draw()
    advantage_BT = decisions.advantage_BT.clone()
    advantage_BT[::2] = 0
    # log-ratios far beyond what a ratio can hold
    logprob_BT = decisions.logprob_BT + torch.linspace(-2000, 2000, 6, dtype=torch.float64)[:, None]
    objective = Objective(surrogate=BOUND[name], aggregate=sample_mean, ratio_level=ratio_level)
    loss, grad_BT = differentiate(objective, replace(decisions, logprob_BT=logprob_BT, advantage_BT=advantage_BT))
    assert loss.value.isfinite()
    assert (grad_BT[::2] == 0).all()
    alone, _ = differentiate(
        objective, replace(decisions, logprob_BT=logprob_BT, advantage_BT=torch.zeros_like(advantage_BT))
    )
    assert alone.value == 0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_huge_log_ratios_give_finite_gradients(sign: float):
    decisions = draw()
    far = replace(decisions, logprob_BT=(decisions.old_logprob_BT + sign * 500).float())
    loss, grad_BT = differentiate(full_objective(), far)
    assert loss.value.isfinite()
    assert grad_BT.isfinite().all()
    assert loss.diagnostics.log_ratio_abs_max > LOG_RATIO_LIMIT


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("junk", [NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("ratio_level", RATIO_LEVELS)
def test_masked_values_never_leak(name: str, junk: float, ratio_level: str):
    decisions = draw()
    keep_BT = decisions.mask_BT
    objective = full_objective(name, ratio_level=ratio_level)
    names = ["logprob", "old_logprob", "advantage", "weight", "kl_weight", "kl", "entropy", "drift", "std"]
    clean = {f"{name}_BT": getattr(decisions, f"{name}_BT").where(keep_BT, 0.0) for name in names}
    dirty = {name: value.where(keep_BT, junk) for name, value in clean.items()}
    live = {name: value.clone().requires_grad_() for name, value in dirty.items()}
    loss = objective(replace(decisions, **live))
    expected = objective(replace(decisions, **clean))
    torch.testing.assert_close(loss.value, expected.value, rtol=0, atol=0)
    torch.testing.assert_close(loss.diagnostics.to_tensor(), expected.diagnostics.to_tensor(), rtol=0, atol=0)
    loss.value.backward()
    for tensor in (live[f"{name}_BT"].grad for name in ("logprob", "kl", "entropy", "drift")):
        assert tensor is None or (tensor[~keep_BT] == 0).all()
        assert tensor is None or tensor.isfinite().all()


def test_junk_in_the_noise_of_masked_decisions_never_leaks():
    mask_BT = torch.tensor([[True, False, True]])
    step_BT = torch.tensor([[0.5, 0.0, 0.25]])
    noise = Noise(std_BT=step_BT, step_BT=step_BT, level_BT=step_BT)
    weight_BT = full_objective().weights(mask_BT, count(mask_BT), noise)
    torch.testing.assert_close(weight_BT, torch.tensor([[1.0, 0.0, 2.0]]))


def add(losses: Sequence[Loss]) -> tuple[Tensor, Diagnostics]:
    return sum(loss.value for loss in losses), functools.reduce(Diagnostics.__add__, (x.diagnostics for x in losses))  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("name", SURROGATES)
def test_slices_of_a_separable_objective_add_up(name: str):
    decisions, objective = draw(), full_objective(name)
    assert objective.separable
    whole, whole_grad_BT = differentiate(objective, decisions)
    rows, columns = torch.arange(6), torch.randperm(5, generator=torch.Generator().manual_seed(3))
    losses, grad_BT = [], torch.zeros_like(whole_grad_BT)
    for some_rows in (rows[:4], rows[4:]):
        for column in columns.split(2):
            loss, slice_grad_BT = differentiate(objective, cut(decisions, some_rows, column))
            losses.append(loss)
            grad_BT[some_rows[:, None], column] = slice_grad_BT
    value, diagnostics = add(losses)
    torch.testing.assert_close(value, whole.value)
    torch.testing.assert_close(grad_BT, whole_grad_BT)
    torch.testing.assert_close(diagnostics.to_tensor(), whole.diagnostics.to_tensor())


@pytest.mark.parametrize("ratio_level", RATIO_LEVELS)
def test_permuted_micro_batches_give_the_same_update(ratio_level: str):
    decisions, objective = draw(), full_objective(ratio_level=ratio_level)
    assert objective.separable == (ratio_level == "decision")
    whole, whole_grad_BT = differentiate(objective, decisions)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(4))
    parts = [differentiate(objective, cut(decisions, rows, torch.arange(5))) for rows in order.split(4)]
    value, diagnostics = add([loss for loss, _ in parts])
    torch.testing.assert_close(value, whole.value)
    torch.testing.assert_close(torch.cat([grad_BT for _, grad_BT in parts]), whole_grad_BT[order])
    torch.testing.assert_close(diagnostics.to_tensor(), whole.diagnostics.to_tensor())


@pytest.mark.parametrize("ratio_level", ["decision", "segment", "sequence"])
def test_padding_changes_nothing(ratio_level: str):
    decisions, objective = draw(), full_objective(ratio_level=ratio_level)
    whole, grad_BT = differentiate(objective, decisions)
    padded = {name: torch.cat([x, torch.zeros_like(x[:, :3])], dim=1) for name, x in tensors(decisions).items()}
    loss, padded_grad_BT = differentiate(objective, Decisions(**padded))
    torch.testing.assert_close(loss.value, whole.value)
    torch.testing.assert_close(loss.diagnostics.to_tensor(), whole.diagnostics.to_tensor())
    torch.testing.assert_close(padded_grad_BT[:, :5], grad_BT)
    assert (padded_grad_BT[:, 5:] == 0).all()


@pytest.mark.parametrize("name", [name for name in SURROGATES if name not in ("cispo", "vespo")])
@pytest.mark.parametrize("ratio_level", RATIO_LEVELS)
def test_gradients_match_finite_differences(name: str, ratio_level: str):
    decisions, objective = draw(seed=5), full_objective(name, ratio_level=ratio_level)

    def value(logprob_BT: Tensor, kl_BT: Tensor, entropy_BT: Tensor, drift_BT: Tensor) -> Tensor:
        inputs = {"logprob_BT": logprob_BT, "kl_BT": kl_BT, "entropy_BT": entropy_BT, "drift_BT": drift_BT}
        return objective(replace(decisions, **inputs)).value

    inputs = [decisions.logprob_BT, decisions.kl_BT, decisions.entropy_BT, decisions.drift_BT]
    assert torch.autograd.gradcheck(value, [x.clone().requires_grad_() for x in inputs if x is not None])


def test_terms_are_weighted_separately():
    # the step weight (2 here) multiplies the surrogate alone
    ones_BT = torch.ones(1, 1, dtype=torch.float64)
    decisions = Decisions(
        logprob_BT=0 * ones_BT,
        old_logprob_BT=0 * ones_BT,
        advantage_BT=3 * ones_BT,
        mask_BT=torch.ones(1, 1, dtype=torch.bool),
        weight_BT=2 * ones_BT,
        segment_BT=torch.zeros(1, 1, dtype=torch.int64),
        kl_weight_BT=ones_BT,
        kl_BT=5 * ones_BT,
        entropy_BT=7 * ones_BT,
        drift_BT=0 * ones_BT,
        std_BT=ones_BT,
    )
    loss = full_objective()(decisions)
    # -3 * 2 + 0.04 * 5 - 0.01 * 7
    assert loss.value.item() == pytest.approx(-5.87)
    assert loss.diagnostics.surrogate_sum.item() == pytest.approx(-6)
    assert loss.diagnostics.kl_loss_sum.item() == pytest.approx(0.2)
    assert loss.diagnostics.entropy_loss_sum.item() == pytest.approx(-0.07)


def test_kl_is_measured_but_not_charged_without_a_beta():
    decisions = draw()
    with_kl, with_grad_BT = differentiate(Objective(surrogate=PPO, aggregate=sample_mean), decisions)
    without, grad_BT = differentiate(
        Objective(surrogate=PPO, aggregate=sample_mean), replace(decisions, kl_BT=None, entropy_BT=None)
    )
    torch.testing.assert_close(with_kl.value, without.value, rtol=0, atol=0)
    torch.testing.assert_close(with_grad_BT, grad_BT, rtol=0, atol=0)
    assert decisions.kl_BT is not None
    assert with_kl.diagnostics.as_metrics()["policy/kl_mean"] == pytest.approx(
        decisions.kl_BT[decisions.mask_BT].mean().item()
    )


# --- weights and requirements --------------------------------------------------------------------------------------


def test_weights_are_the_aggregate_times_the_step_weight():
    mask_BT = torch.tensor([[True, True], [True, False]])
    step_BT = torch.tensor([[0.5, 0.25], [0.1, 0.2]])
    noise = Noise(std_BT=step_BT, step_BT=step_BT, level_BT=step_BT)
    objective = Objective(surrogate=PPO, aggregate=decision_mean, step_weight=inverse_step)
    totals = count(mask_BT)
    torch.testing.assert_close(objective.weights(mask_BT, totals, noise), torch.tensor([[2 / 3, 4 / 3], [10 / 3, 0]]))
    torch.testing.assert_close(objective.kl_weights(mask_BT, totals), torch.tensor([[1 / 3, 1 / 3], [1 / 3, 0]]))
    plain = Objective(surrogate=PPO, aggregate=decision_mean)
    torch.testing.assert_close(plain.weights(mask_BT, totals), objective.kl_weights(mask_BT, totals))


def test_what_an_objective_needs():
    plain = Objective(surrogate=PPO, aggregate=sample_mean)
    assert (plain.separable, plain.needs_drift, plain.needs_reference) == (True, False, False)
    full = full_objective(ratio_level="segment")
    assert (full.separable, full.needs_drift, full.needs_reference) == (False, True, True)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"drift_BT": None}, "recentre needs drift_BT"),
        ({"std_BT": None}, "recentre needs drift_BT and std_BT"),
        ({"kl_BT": None}, "carry no kl_BT.*set kl_beta to 0"),
        ({"entropy_BT": None}, "carry no entropy_BT.*set entropy_bonus to 0"),
        ({"kl_weight_BT": None}, r"fill it from Objective\.kl_weights"),
    ],
)
def test_missing_values_are_refused(missing: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        full_objective()(replace(draw(), **missing))


def test_a_step_weight_without_noise_is_refused():
    mask_BT = torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(ConfigError, match="step_weight reads the noise"):
        full_objective().weights(mask_BT, count(mask_BT))


def test_impossible_settings_are_refused():
    with pytest.raises(UnknownNameError, match="choose from decision, segment, sequence, trajectory"):
        Objective(surrogate=PPO, aggregate=sample_mean, ratio_level="token")
    with pytest.raises(ConfigError, match="needs a divergence"):
        Objective(surrogate=PPO, aggregate=sample_mean, kl_beta=0.1)
    with pytest.raises(UnknownNameError, match="unknown kl_ratio_level"):
        Objective(surrogate=PPO, aggregate=sample_mean, kl_beta=0.1, divergence="k3", kl_ratio_level="token")
    with pytest.raises(ConfigError, match="set kl_beta above 0"):
        Objective(surrogate=PPO, aggregate=sample_mean, kl_ratio_level="decision")
    with pytest.raises(ConfigError, match="no importance weight"):
        full_objective(kl_ratio_level="decision")
    with pytest.raises(ConfigError, match="0 or more"):
        Objective(surrogate=PPO, aggregate=sample_mean, kl_beta=-0.1, divergence="k3")


def test_decisions_of_unequal_shapes_are_refused():
    decisions = draw()
    with pytest.raises(ShapeError, match="advantage_BT must be"):
        replace(decisions, advantage_BT=decisions.advantage_BT[:, :1])
    with pytest.raises(ShapeError, match="mask_BT must be bool"):
        replace(decisions, mask_BT=decisions.mask_BT.float())
