"""Modulations: bounds and factors by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import (
    ADVANTAGE,
    LOGPROB,
    MODULATIONS,
    OLD_LOGPROB,
    Modulated,
    constant,
    detached,
    equal_segments,
    row_quantile,
    within_divergence,
)
from mmgrpo.methods.advantages.apo import divergence_by_success
from mmgrpo.methods.credit.dppo import discounted_steps, growing_bounds
from mmgrpo.methods.selection.archer import by_entropy_quantile
from mmgrpo.methods.selection.clip_cov import clip_covariance
from mmgrpo.methods.selection.d3s import top_product
from mmgrpo.methods.selection.dcpo_clip import by_old_probability
from mmgrpo.methods.selection.kl_cov import kl_covariance
from mmgrpo.values import DRIFT, ENTROPY
from tests.maths.decision_rows import decisions_at


def decisions_of(
    *,
    entropy: Sequence[Sequence[float]] | None = None,
    logprob: Sequence[Sequence[float]] | None = None,
    old_logprob: Sequence[Sequence[float]] | None = None,
    advantage: Sequence[Sequence[float]] | None = None,
    mask: Sequence[Sequence[int]] | None = None,
    shape: tuple[int, int] = (1, 3),
) -> Decisions:
    values = next((each for each in (entropy, logprob, old_logprob, advantage) if each is not None), None)
    shape = shape if values is None else (len(values), len(values[0]))

    def filled(each: Sequence[Sequence[float]] | None) -> torch.Tensor:
        return torch.zeros(shape) if each is None else torch.tensor(each)

    old_BT = filled(logprob if old_logprob is None else old_logprob)
    return decisions_at(
        filled(old_logprob if logprob is None else logprob),
        old_logprob_BT=old_BT,
        advantage_BT=filled(advantage),
        mask_BT=torch.ones(shape, dtype=torch.bool) if mask is None else torch.tensor(mask).bool(),
        values={} if entropy is None else {ENTROPY: filled(entropy)},
    )


def test_constants_are_the_numbers_themselves():
    modulated = constant(low=0.2, high=0.28, loss=1.0).of(decisions_of(), {})
    assert modulated.low_BT is not None
    assert modulated.high_BT is not None
    assert modulated.loss_BT is not None
    assert modulated.divergence_BT is None
    assert (1 - modulated.low_BT).float().tolist() == [[torch.tensor(1 - 0.2).item()] * 3]
    assert modulated.high_BT.tolist() == [[0.28] * 3]
    weight_BT = torch.rand(1, 3)
    assert torch.equal(weight_BT * modulated.loss_BT, weight_BT)


def test_the_least_sure_fifth_has_wide_bounds():
    # entropies 0.1 .. 1.0: the 0.8 quantile is 0.82, so 0.9 and 1.0 are above (Archer); the second row keeps two
    entropy = [[tenth / 10 for tenth in range(1, 11)], [0.3, 0.5] + [math.nan] * 8]
    mask = [[1] * 10, [1, 1] + [0] * 8]
    modulated = by_entropy_quantile().of(decisions_of(entropy=entropy, mask=mask), {})
    assert modulated.low_BT is not None
    assert modulated.high_BT is not None
    assert modulated.divergence_BT is not None
    assert modulated.low_BT.tolist() == [[0.2] * 8 + [0.5] * 2, [0.2, 0.5] + [0.2] * 8]
    assert modulated.high_BT.tolist() == modulated.low_BT.tolist()
    assert modulated.divergence_BT.tolist() == [[1.0] * 8 + [0.0] * 2, [1.0, 0.0] + [1.0] * 8]
    with pytest.raises(ConfigError, match="between 0 and 1"):
        by_entropy_quantile(quantile=80)


def test_quantiles_of_rows_are_those_of_torch():
    value_BT, mask_BT = torch.rand(5, 11), torch.rand(5, 11) < 0.7
    mask_BT[:, 0] = True
    for fraction in (0.0, 0.2, 0.5, 0.83, 1.0):
        expected = [torch.quantile(row[keep], fraction) for row, keep in zip(value_BT, mask_BT, strict=True)]
        torch.testing.assert_close(row_quantile(value_BT, mask_BT, fraction)[:, 0], torch.stack(expected))
    assert row_quantile(value_BT[:1], mask_BT[:1] & False, 0.5).tolist() == [[math.inf]]


def test_bounds_by_old_probability():
    # q 0.9: 0.768742, 1.187184; q 0.01: 0.5, 5 (DCPO); q 0.001: (1 + sqrt(801)) / 2 is held at 10
    old = [[math.log(0.9), math.log(0.01), math.log(0.001), math.nan]]
    modulated = by_old_probability().of(decisions_of(old_logprob=old, mask=[[1, 1, 1, 0]]), {})
    assert modulated.low_BT is not None
    assert modulated.high_BT is not None
    expected_low = torch.tensor([0.768742, 0.5, 0.5], dtype=torch.float64)
    torch.testing.assert_close(1 - modulated.low_BT[0, :3], expected_low, atol=1e-6, rtol=0)
    expected_high = torch.tensor([1.187184, 5.0, 10.0], dtype=torch.float64)
    torch.testing.assert_close(1 + modulated.high_BT[0, :3], expected_high, atol=1e-5, rtol=0)
    assert modulated.low_BT.isfinite().all()
    assert modulated.high_BT.isfinite().all()


def test_a_few_decisions_of_the_highest_covariance_have_no_loss():
    # A 2, -2, 2, -2 and logprob -1, -3, -1.5, -2.5: means 0 and -2: covariances 2, 2, 1, 1
    decisions = decisions_of(advantage=[[2.0, -2.0], [2.0, -2.0]], logprob=[[-1.0, -3.0], [-1.5, -2.5]])
    job = {value: detached(decisions, value)[decisions.mask_BT] for value in (LOGPROB, OLD_LOGPROB, ADVANTAGE)}

    def factors(**numbers: float) -> list[list[float]] | None:
        loss_BT = clip_covariance(**numbers).of(decisions, job).loss_BT
        return None if loss_BT is None else loss_BT.tolist()

    # the one taken ties with another
    assert factors(share=0.25, at_least=0.5) == [[0.0, 0.0], [1.0, 1.0]]
    assert factors(share=0.75, at_least=0.5) == [[0.0, 0.0], [0.0, 0.0]]
    assert factors(share=0.25, at_least=0.5, at_most=1.5) == [[1.0, 1.0], [0.0, 0.0]]
    assert factors(at_least=3.0) is None


def test_decisions_that_the_bound_holds_are_not_taken():
    # the first is at ratio e^0.5 above its bound, so the second of the pair is the highest that may be taken
    decisions = decisions_of(
        advantage=[[2.0, -2.0], [2.0, -2.0]],
        logprob=[[-1.0, -3.0], [-1.5, -2.5]],
        old_logprob=[[-1.5, -3.0], [-1.5, -2.5]],
    )
    job = {value: detached(decisions, value).flatten() for value in (LOGPROB, OLD_LOGPROB, ADVANTAGE)}
    loss_BT = clip_covariance(share=0.25, at_least=0.5).of(decisions, job).loss_BT
    assert loss_BT is not None
    assert loss_BT.tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_a_divergence_for_the_highest_covariances_alone():
    # covariances 2, 2, 1, 1 as above: a quarter is one, which ties with another
    decisions = decisions_of(advantage=[[2.0, -2.0], [2.0, -2.0]], logprob=[[-1.0, -3.0], [-1.5, -2.5]])
    job = {value: detached(decisions, value).flatten() for value in (LOGPROB, ADVANTAGE)}
    factor_BT = kl_covariance(share=0.25).of(decisions, job).divergence_BT
    assert factor_BT is not None
    assert factor_BT.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    factor_BT = kl_covariance(share=0.75).of(decisions, job).divergence_BT
    assert factor_BT is not None
    assert factor_BT.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    # advantages 4, 0, 0, 0 about their mean of 1: covariances 3, 1, -0.5, 0.5
    decisions = decisions_of(advantage=[[4.0, 0.0], [0.0, 0.0]], logprob=[[-1.0, -3.0], [-1.5, -2.5]])
    job = {value: detached(decisions, value).flatten() for value in (LOGPROB, ADVANTAGE)}
    factor_BT = kl_covariance(share=0.5).of(decisions, job).divergence_BT
    assert factor_BT is not None
    assert factor_BT.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    with pytest.raises(ConfigError, match="above 0"):
        kl_covariance(share=20.0)


def test_bounds_grow_over_the_steps():
    # 0.001 to 0.01 at rate 3: 0.002642 half way (DPPO)
    modulated = growing_bounds(first=0.001, last=0.01).of(decisions_of(shape=(2, 3)), {})
    assert modulated.low_BT is not None
    assert modulated.high_BT is not None
    expected_T = torch.tensor([0.001, 0.002642, 0.01], dtype=torch.float64)
    torch.testing.assert_close(modulated.low_BT, expected_T.expand(2, 3), atol=1e-6, rtol=0)
    assert torch.equal(modulated.low_BT, modulated.high_BT)
    with pytest.raises(ConfigError, match="rate other than 0"):
        growing_bounds(first=0.1, last=0.2, rate=0)


def test_earlier_steps_count_less():
    # gamma 0.99, K 10: 0.913517, 0.960596, 1 at 0, 5, 9 (DPPO)
    loss_BT = discounted_steps(gamma=0.99).of(decisions_of(shape=(1, 10)), {}).loss_BT
    assert loss_BT is not None
    torch.testing.assert_close(loss_BT[0, [0, 5, 9]], torch.tensor([0.913517, 0.960596, 1.0]))


def test_places_are_counted_in_each_segment():
    """Chunks of 3, 1 and 2 decisions, and one of 6: each has the numbers of a sample of its length."""
    segment_BT = torch.tensor([[0, 0, 0, 1, 2, 2], [4, 4, 4, 4, 4, 4]])
    decisions = replace(decisions_of(shape=(2, 6)), segment_BT=segment_BT)
    low_BT = growing_bounds(first=0.001, last=0.01, each="segment").of(decisions, {}).low_BT
    loss_BT = discounted_steps(gamma=0.5, each="segment").of(decisions, {}).loss_BT
    assert low_BT is not None
    assert loss_BT is not None
    expected_T = torch.tensor([0.001, 0.002642, 0.01, 0.001, 0.001, 0.01], dtype=torch.float64)
    torch.testing.assert_close(low_BT[0], expected_T, atol=1e-6, rtol=0)
    assert loss_BT[0].tolist() == [0.25, 0.5, 1, 1, 0.5, 1]
    alone = growing_bounds(first=0.001, last=0.01).of(decisions_of(shape=(1, 6)), {}).low_BT
    assert alone is not None
    assert torch.equal(low_BT[1], alone[0])
    assert loss_BT[1].tolist() == [2.0**-k for k in (5, 4, 3, 2, 1, 0)]
    with pytest.raises(ConfigError, match="each of sample or segment, got 'chunk'"):
        growing_bounds(first=0.1, last=0.2, each="chunk")  # pyrefly: ignore[bad-argument-type]


def test_later_modulations_read_earlier_ones():
    first_BT, two_BT = torch.full((1, 1), 2.0), torch.full((1, 1), 3.0)
    both = Modulated(low_BT=two_BT, loss_BT=two_BT).after(
        Modulated(low_BT=first_BT, high_BT=first_BT, loss_BT=first_BT)
    )
    assert both.low_BT is two_BT
    assert both.high_BT is first_BT
    assert both.divergence_BT is None
    assert both.loss_BT is not None
    assert both.loss_BT.item() == 6.0


def test_the_highest_products_of_advantage_and_entropy_count():
    # |A| H: 2, 1, 0.5, 0.2: the median is 0.75
    decisions = decisions_of(entropy=[[1.0, 2.0], [0.5, 0.1]], advantage=[[-2.0, 0.5], [1.0, 2.0]])
    job = {value: detached(decisions, value).flatten() for value in (ADVANTAGE, ENTROPY)}
    loss_BT = top_product(share=0.5).of(decisions, job).loss_BT
    assert loss_BT is not None
    assert loss_BT.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    with pytest.raises(ConfigError, match="above 0"):
        top_product(share=0.0)


def test_segments_have_equal_weights():
    # segments [0, 0, 1]: sequence_mean's 1/3 each become 1/4, 1/4, 1/2; a masked decision is in no segment
    decisions = replace(
        decisions_of(shape=(2, 3), mask=[[1, 1, 1], [1, 0, 1]]), segment_BT=torch.tensor([[0, 0, 1], [5, 5, 2]])
    )
    loss_BT = equal_segments().of(decisions, {}).loss_BT
    assert loss_BT is not None
    torch.testing.assert_close(loss_BT[0] / 3, torch.tensor([0.25, 0.25, 0.5]))
    torch.testing.assert_close(loss_BT[1, [0, 2]] / 2, torch.tensor([0.5, 0.5]))


def test_far_decisions_that_would_move_further_have_no_loss():
    # A > 0: r > 1 would move on; A < 0: r < 1 would; the third column is as near as the limit allows, or nearer
    decisions = decisions_of(
        logprob=[[0.2, -0.2, 0.2, 0.0], [0.2, -0.2, -0.2, 0.0]],
        old_logprob=[[0.0] * 4] * 2,
        advantage=[[1.0] * 4, [-1.0] * 4],
    )
    drift_BT = torch.tensor([[2e-5, 2e-5, 0.9e-5, 2e-5], [2e-5, 1e-5, 0.9e-5, 2e-5]])
    loss_BT = within_divergence(limit=1e-5).of(replace(decisions, values={DRIFT: drift_BT}), {}).loss_BT
    assert loss_BT is not None
    assert loss_BT.tolist() == [[0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0]]


def test_rare_successes_have_a_smaller_divergence_weight():
    # one of four scored members is right: 1 - e^(-e / 4); of the other group all are, and of the third none is
    reward_B = torch.tensor([1.0, 0.0, 0.0, 0.9, 1.0, 0.0, torch.nan])
    decisions = replace(
        decisions_of(advantage=[[1.0]] * 4 + [[1.0]] * 3),
        reward_BT=reward_B[:, None],
        group_BT=torch.tensor([0, 0, 0, 0, 1, 2, 1])[:, None],
    )
    rare = 1 - math.exp(-math.e / 4)
    divergence_BT = divergence_by_success().of(decisions, {}).divergence_BT
    assert divergence_BT is not None
    torch.testing.assert_close(divergence_BT[:, 0], torch.tensor([rare] * 4 + [1.0] * 3))
    negated = replace(decisions, advantage_BT=-decisions.advantage_BT)
    result_BT = divergence_by_success().of(negated, {}).divergence_BT
    assert result_BT is not None
    assert result_BT.tolist() == [[1.0]] * 7
    with pytest.raises(ConfigError, match="needs reward_BT and group_BT"):
        divergence_by_success().of(replace(decisions, reward_BT=None), {})


def test_every_modulation_is_named():
    assert set(MODULATIONS) == {
        "constant",
        "by_entropy_quantile",
        "by_old_probability",
        "clip_covariance",
        "kl_covariance",
        "growing_bounds",
        "discounted_steps",
        "top_product",
        "equal_segments",
        "within_divergence",
        "divergence_by_success",
        "likeliest_of_wrong",
    }


def test_rows_of_one_decision_are_a_segment_each():
    decisions = decisions_of(shape=(2, 1))
    low_BT = growing_bounds(first=0.001, last=0.01, each="segment").of(decisions, {}).low_BT
    loss_BT = discounted_steps(gamma=0.5, each="segment").of(decisions, {}).loss_BT
    assert low_BT is not None
    assert loss_BT is not None
    assert low_BT.tolist() == [[0.001], [0.001]]
    assert loss_BT.tolist() == [[1.0], [1.0]]


def test_decisions_without_an_advantage_stay_within_the_divergence():
    decisions = decisions_of(logprob=[[-0.5, -0.5]], old_logprob=[[-1.0, -1.0]], advantage=[[0.0, 1.0]])
    decisions = replace(decisions, values={DRIFT: torch.ones(1, 2)})
    loss_BT = within_divergence(limit=0.5).of(decisions, {}).loss_BT
    assert loss_BT is not None
    assert loss_BT.tolist() == [[1.0, 0.0]]


def test_binary_divergences_need_probabilities():
    decisions = decisions_of(logprob=[[0.5]], old_logprob=[[-1.0]], advantage=[[1.0]])
    with pytest.raises(ConfigError, match="binary_tv and binary_kl are for tokens"):
        within_divergence(limit=0.1, divergence="binary_kl").of(decisions, {})
    with pytest.raises(ConfigError, match="divergence must be drift, binary_tv, binary_kl, got 'tv'"):
        within_divergence(limit=0.1, divergence="tv")  # type: ignore[arg-type]
