"""The objective: golden denoising vectors, exactness over slices, masks, gradients and refusals."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, ShapeError, UnknownNameError
from mmgrpo.maths.aggregates import count, sequence_mean, token_mean
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.ratios import RATIO_LEVELS
from mmgrpo.maths.surrogates import SURROGATES, clipped, unclipped
from mmgrpo.maths.terms import LOG_RATIO_LIMIT, Loss
from mmgrpo.methods.surrogates.cispo import cispo
from mmgrpo.methods.surrogates.sapo import sapo
from mmgrpo.types import Noise
from mmgrpo.values import DRIFT, ENTROPY, OLD, REFERENCE, Value, from_reference

NAN, INF = float("nan"), float("inf")
KL = from_reference("gaussian")
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
    "gppo": functools.partial(SURROGATES["gppo"], low=0.2, high=0.2, bound=3.0),
    "spo": functools.partial(SURROGATES["spo"], eps=0.2),
    "nft": functools.partial(SURROGATES["nft"], wrong_floor=0.5),
    "shaped": functools.partial(SURROGATES["shaped"], gamma=0.1),
    "shaped_probability": functools.partial(SURROGATES["shaped_probability"], gamma=0.1),
    "one_sided": functools.partial(SURROGATES["one_sided"], low=0.2, high=0.2),
    "mixture": functools.partial(SURROGATES["mixture"], power=0.5),
}
OFF_POLICY = ("nft", "shaped", "shaped_probability", "mixture")
"""Those that are no policy gradient on policy."""
WITHOUT_CLIPPING = ("cispo", "vespo", "gppo", "nft", "mixture")
"""Those that take some of what they are given as a constant."""


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
    weight_BT = sequence_mean(mask_BT, count(mask_BT)).double()
    return Decisions(
        logprob_BT=old_BT + 0.3 * gap_BT,
        old_logprob_BT=old_BT,
        advantage_BT=advantage_BT,
        mask_BT=mask_BT,
        weight_BT=2 * weight_BT,
        segment_BT=(torch.arange(num_columns) // 2).expand(num_rows, num_columns),
        mean_weight_BT=weight_BT,
        std_BT=0.5 + std_BT.abs(),
        values={KL: kl_BT.square(), ENTROPY: entropy_BT.abs(), DRIFT: 0.01 * drift_BT.square()},
    )


def cut(decisions: Decisions, rows: Tensor, columns: Tensor) -> Decisions:
    return decisions.map(lambda matrix_BT: matrix_BT[rows][:, columns])


def without(decisions: Decisions, *values: Value) -> Decisions:
    return replace(decisions, values={value: x for value, x in decisions.values.items() if value not in values})


def differentiate(objective: Objective, decisions: Decisions) -> tuple[Loss, Tensor]:
    logprob_BT = decisions.logprob_BT.clone().requires_grad_()
    loss = objective(replace(decisions, logprob_BT=logprob_BT))
    return loss, torch.autograd.grad(loss.value, logprob_BT)[0]


def full_objective(name: str = "clipped", **parts) -> Objective:
    """Every term on: surrogate, step weight, normalized ratio, divergence, entropy."""
    chosen = {
        "normalize_ratio": True,
        "step_weight": inverse_step,
        "divergence": "gaussian",
        "kl_beta": 0.04,
        "entropy_bonus": 0.01,
        **parts,
    }
    return Objective(surrogate=BOUND[name], aggregate=sequence_mean, **chosen)  # pyrefly: ignore[bad-argument-type]


# --- invariances ---------------------------------------------------------------------------------------------------


def test_on_policy_gradient_is_the_policy_gradient():
    decisions = draw()
    decisions = replace(decisions, logprob_BT=decisions.old_logprob_BT)
    for name in SURROGATES.keys() - set(OFF_POLICY):
        _, grad_BT = differentiate(Objective(surrogate=BOUND[name], aggregate=sequence_mean), decisions)
        torch.testing.assert_close(grad_BT, -decisions.advantage_BT * decisions.weight_BT)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("ratio_level", RATIO_LEVELS)
def test_zero_advantage_is_exactly_zero(name: str, ratio_level: str):
    decisions = draw()
    advantage_BT = decisions.advantage_BT.clone()
    advantage_BT[::2] = 0
    # log-ratios far beyond what a ratio can hold
    logprob_BT = decisions.logprob_BT + torch.linspace(-2000, 2000, 6, dtype=torch.float64)[:, None]
    objective = Objective(surrogate=BOUND[name], aggregate=sequence_mean, ratio_level=ratio_level)
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


@pytest.mark.parametrize("junk", [NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("ratio_level", RATIO_LEVELS)
def test_masked_values_never_leak(junk: float, ratio_level: str):
    decisions = draw()
    keep_BT = decisions.mask_BT
    objective = full_objective(ratio_level=ratio_level)
    names = ["logprob", "old_logprob", "advantage", "weight", "mean_weight", "std"]
    values = {f"{name}_BT": getattr(decisions, f"{name}_BT") for name in names} | dict(decisions.values)
    clean = {name: value.where(keep_BT, 0.0) for name, value in values.items()}
    live = {name: value.where(keep_BT, junk).clone().requires_grad_() for name, value in clean.items()}
    loss = objective(with_all(decisions, live))
    expected = objective(with_all(decisions, clean))
    torch.testing.assert_close(loss.value, expected.value, rtol=0, atol=0)
    assert loss.diagnostics.as_numbers() == expected.diagnostics.as_numbers()
    loss.value.backward()
    for tensor in (live[name].grad for name in ("logprob_BT", KL, ENTROPY, DRIFT)):
        assert tensor is None or (tensor[~keep_BT] == 0).all()
        assert tensor is None or tensor.isfinite().all()


def with_all(decisions: Decisions, values: Mapping[str | Value, Tensor]) -> Decisions:
    fields: Any = {name: tensor for name, tensor in values.items() if isinstance(name, str)}
    return replace(decisions, **fields, values={v: tensor for v, tensor in values.items() if isinstance(v, Value)})


def test_junk_in_the_noise_of_masked_decisions_never_leaks():
    mask_BT = torch.tensor([[True, False, True]])
    step_BT = torch.tensor([[0.5, 0.0, 0.25]])
    noise = Noise(std_BT=step_BT, step_BT=step_BT, level_BT=step_BT)
    weight_BT = full_objective().weights(mask_BT, count(mask_BT), noise)
    torch.testing.assert_close(weight_BT, torch.tensor([[1.0, 0.0, 2.0]]))


def assert_close(result: Diagnostics, expected: Diagnostics) -> None:
    left, right = result.as_numbers(), expected.as_numbers()
    assert left.loss_sums == pytest.approx(right.loss_sums)
    assert left.value_sums.keys() == right.value_sums.keys()
    for name, value_sum in left.value_sums.items():
        assert (value_sum.count, value_sum.total) == pytest.approx(
            (right.value_sums[name].count, right.value_sums[name].total)
        )
    names = [field.name for field in fields(Diagnostics) if not field.name.endswith("_sums")]
    assert [getattr(left, n) for n in names] == pytest.approx([getattr(right, n) for n in names])


def add(losses: Sequence[Loss]) -> tuple[Tensor, Diagnostics]:
    return sum(loss.value for loss in losses), functools.reduce(Diagnostics.__add__, (x.diagnostics for x in losses))  # pyrefly: ignore[bad-return]


def test_slices_of_a_separable_objective_add_up():
    decisions, objective = draw(), full_objective()
    assert objective.separable
    total, total_grad_BT = differentiate(objective, decisions)
    rows, columns = torch.arange(6), torch.randperm(5, generator=torch.Generator().manual_seed(3))
    losses, grad_BT = [], torch.zeros_like(total_grad_BT)
    for some_rows in (rows[:4], rows[4:]):
        for column in columns.split(2):
            loss, slice_grad_BT = differentiate(objective, cut(decisions, some_rows, column))
            losses.append(loss)
            grad_BT[some_rows[:, None], column] = slice_grad_BT
    value, diagnostics = add(losses)
    torch.testing.assert_close(value, total.value)
    torch.testing.assert_close(grad_BT, total_grad_BT)
    assert_close(diagnostics, total.diagnostics)


@pytest.mark.parametrize("ratio_level", RATIO_LEVELS)
def test_permuted_micro_batches_give_the_same_update(ratio_level: str):
    decisions, objective = draw(), full_objective(ratio_level=ratio_level)
    assert objective.separable == (ratio_level == "token")
    total, total_grad_BT = differentiate(objective, decisions)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(4))
    parts = [differentiate(objective, cut(decisions, rows, torch.arange(5))) for rows in order.split(4)]
    value, diagnostics = add([loss for loss, _ in parts])
    torch.testing.assert_close(value, total.value)
    torch.testing.assert_close(torch.cat([grad_BT for _, grad_BT in parts]), total_grad_BT[order])
    assert_close(diagnostics, total.diagnostics)


@pytest.mark.parametrize("ratio_level", ["token", "segment", "sequence"])
def test_padding_does_not_change_the_loss(ratio_level: str):
    decisions, objective = draw(), full_objective(ratio_level=ratio_level)
    total, grad_BT = differentiate(objective, decisions)
    padded = decisions.map(lambda matrix_BT: torch.cat([matrix_BT, torch.zeros_like(matrix_BT[:, :3])], dim=1))
    loss, padded_grad_BT = differentiate(objective, padded)
    torch.testing.assert_close(loss.value, total.value)
    assert_close(loss.diagnostics, total.diagnostics)
    torch.testing.assert_close(padded_grad_BT[:, :5], grad_BT)
    assert (padded_grad_BT[:, 5:] == 0).all()


@pytest.mark.first_case
@pytest.mark.each_value
@pytest.mark.parametrize("name", [name for name in SURROGATES if name not in WITHOUT_CLIPPING])
@pytest.mark.parametrize("ratio_level", [level for level in RATIO_LEVELS if level != "sequence_token"])
def test_gradients_match_finite_differences(name: str, ratio_level: str):
    decisions, objective = draw(seed=5), full_objective(name, ratio_level=ratio_level)

    def value(logprob_BT: Tensor, kl_BT: Tensor, entropy_BT: Tensor, drift_BT: Tensor) -> Tensor:
        values = {KL: kl_BT, ENTROPY: entropy_BT, DRIFT: drift_BT}
        return objective(replace(decisions, logprob_BT=logprob_BT, values=values)).value

    inputs = [decisions.logprob_BT, decisions[KL], decisions[ENTROPY], decisions[DRIFT]]
    assert torch.autograd.gradcheck(value, [x.clone().requires_grad_() for x in inputs])


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
        mean_weight_BT=ones_BT,
        std_BT=ones_BT,
        values={KL: 5 * ones_BT, ENTROPY: 7 * ones_BT, DRIFT: 0 * ones_BT},
    )
    loss = full_objective()(decisions)
    # -3 * 2 + 0.04 * 5 - 0.01 * 7
    assert loss.value.item() == pytest.approx(-5.87)
    assert loss.diagnostics.as_numbers().loss_sums == pytest.approx({"surrogate": -6, "kl": 0.2, "entropy": -0.07})


def test_unread_values_are_neither_computed_nor_reported():
    decisions = draw()
    plain = Objective(surrogate=PPO, aggregate=sequence_mean)
    with_kl, with_grad_BT = differentiate(plain, decisions)
    bare, grad_BT = differentiate(plain, without(decisions, KL, ENTROPY, DRIFT))
    torch.testing.assert_close(with_kl.value, bare.value, rtol=0, atol=0)
    torch.testing.assert_close(with_grad_BT, grad_BT, rtol=0, atol=0)
    assert with_kl.diagnostics.value_sums == {}
    charged = replace(plain, divergence="gaussian", kl_beta=1e-3)(decisions)
    assert charged.diagnostics.as_metrics()["policy/kl_mean"] == pytest.approx(
        decisions[KL][decisions.mask_BT].mean().item()
    )


# --- weights and requirements --------------------------------------------------------------------------------------


def test_weights_are_the_aggregate_times_the_step_weight():
    mask_BT = torch.tensor([[True, True], [True, False]])
    step_BT = torch.tensor([[0.5, 0.25], [0.1, 0.2]])
    noise = Noise(std_BT=step_BT, step_BT=step_BT, level_BT=step_BT)
    objective = Objective(surrogate=PPO, aggregate=token_mean, step_weight=inverse_step)
    totals = count(mask_BT)
    torch.testing.assert_close(objective.weights(mask_BT, totals, noise), torch.tensor([[2 / 3, 4 / 3], [10 / 3, 0]]))
    torch.testing.assert_close(objective.mean_weights(mask_BT, totals), torch.tensor([[1 / 3, 1 / 3], [1 / 3, 0]]))
    plain = Objective(surrogate=PPO, aggregate=token_mean)
    torch.testing.assert_close(plain.weights(mask_BT, totals), objective.mean_weights(mask_BT, totals))


def test_values_that_an_objective_needs():
    plain = Objective(surrogate=PPO, aggregate=sequence_mean)
    assert (plain.separable, plain.values, plain.views) == (True, frozenset(), frozenset())
    full = full_objective(ratio_level="segment")
    assert (full.separable, full.values, full.views) == (False, {KL, ENTROPY, DRIFT}, {REFERENCE, OLD})
    assert [term.name for term in full.terms] == ["surrogate", "kl", "entropy"]
    assert [term.couples for term in full.terms] == ["row", "decision", "decision"]
    assert (full.first_values, plain.first_values) == ({KL, ENTROPY, DRIFT}, frozenset())
    guard = Objective(surrogate=PPO, aggregate=sequence_mean, normalize_ratio=True)
    assert (plain.skips, full.skips, guard.skips) == (True, False, True)
    assert (guard.values, guard.views, guard.rollout_knows_values) == ({DRIFT}, {OLD}, True)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"std_BT": None}, "normalize_ratio needs the noise of denoising steps"),
        ({"mean_weight_BT": None}, r"fill it from Objective\.mean_weights"),
        (DRIFT, "carry no gaussian@old: ask Policy.evaluate for it; of values they carry gaussian@reference, entropy"),
        (KL, "carry no gaussian@reference: ask Policy.evaluate for it; of values they carry entropy, gaussian@old"),
        (ENTROPY, "carry no entropy: ask Policy.evaluate for it"),
    ],
)
def test_missing_values_raise(missing: dict[str, Any] | Value, message: str):
    decisions = without(draw(), missing) if isinstance(missing, Value) else replace(draw(), **missing)
    with pytest.raises(ConfigError, match=message):
        full_objective()(decisions)


def test_a_divergence_with_a_step_weight_needs_mean_weights():
    alone = Objective(
        surrogate=None, aggregate=sequence_mean, step_weight=inverse_step, divergence="gaussian", kl_beta=0.1
    )
    with pytest.raises(ConfigError, match=r"fill it from Objective\.mean_weights"):
        alone(replace(draw(), mean_weight_BT=None))


def test_a_step_weight_without_noise_raises():
    mask_BT = torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(ConfigError, match="step_weight reads the noise"):
        full_objective().weights(mask_BT, count(mask_BT))


def test_impossible_settings_raise():
    with pytest.raises(UnknownNameError, match="choose from token, segment, sequence, sequence_token, trajectory"):
        Objective(surrogate=PPO, aggregate=sequence_mean, ratio_level="word")
    with pytest.raises(ConfigError, match=r"needs objective\.kl\.divergence"):
        Objective(surrogate=PPO, aggregate=sequence_mean, kl_beta=0.1)
    with pytest.raises(UnknownNameError, match="unknown kl_ratio_level"):
        Objective(surrogate=PPO, aggregate=sequence_mean, kl_beta=0.1, divergence="k3", kl_ratio_level="word")
    with pytest.raises(ConfigError, match=r"set objective\.kl\.beta above 0"):
        Objective(surrogate=PPO, aggregate=sequence_mean, kl_ratio_level="token")
    with pytest.raises(ConfigError, match="no importance weight"):
        full_objective(kl_ratio_level="token")
    with pytest.raises(ConfigError, match="0 or more"):
        Objective(surrogate=PPO, aggregate=sequence_mean, kl_beta=-0.1, divergence="k3")
    with pytest.raises(ConfigError, match="the objective has no term"):
        Objective(surrogate=None, aggregate=sequence_mean)


def test_decisions_of_unequal_shapes_raise():
    decisions = draw()
    with pytest.raises(ShapeError, match="advantage_BT must be"):
        replace(decisions, advantage_BT=decisions.advantage_BT[:, :1])
    with pytest.raises(ShapeError, match="mask_BT must be bool"):
        replace(decisions, mask_BT=decisions.mask_BT.float())
