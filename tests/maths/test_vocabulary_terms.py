"""Terms of complete distributions: values and gradients by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.terms import Term, weighted
from mmgrpo.methods.surrogates.rover import uniform_policy_value
from mmgrpo.methods.surrogates.simko import clipped_with_candidates, likeliest_of_wrong
from mmgrpo.methods.surrogates.siren import anchored_entropy, first_measured
from mmgrpo.values import ENTROPY, LOGPROB_MEAN, RANK, Value, nucleus_entropy, top_logprob
from tests.maths.decision_rows import decisions_at

Rows = Sequence[Sequence[float]]
UNSURE = [[0.1, 0.2, 3.0]] * 2


def decisions_of(
    values: Mapping[Value, Rows],
    *,
    log_ratio: Rows | None = None,
    mask: Rows | None = None,
    group: Sequence[int] = (0, 0),
) -> Decisions:
    """Two rows, the first right: the mean over the kept decisions."""
    leaves = {value: torch.tensor(rows, dtype=torch.float64, requires_grad=True) for value, rows in values.items()}
    shape = next(iter(leaves.values())).shape
    mask_BT = torch.ones(shape, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
    old_BT = torch.full(shape, -1.0, dtype=torch.float64)
    change_BT = torch.zeros(shape, dtype=torch.float64) if log_ratio is None else torch.tensor(log_ratio).double()
    of_rows = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand(shape)
    return decisions_at(
        (old_BT + change_BT).requires_grad_(),
        old_logprob_BT=old_BT,
        advantage_BT=of_rows,
        mask_BT=mask_BT,
        weight_BT=mask_BT.double() / mask_BT.sum(),
        reward_BT=of_rows,
        group_BT=torch.tensor(group)[:, None].expand(shape),
        num_groups=len(set(group)),
        values=leaves,
    )


def loss_of(term: Term, decisions: Decisions, *wrt: Tensor) -> tuple[float, list[list[list[float]]]]:
    loss = term.loss(decisions)
    grads = torch.autograd.grad(loss.value, wrt, allow_unused=True)
    return loss.value.item(), [
        torch.zeros_like(x).tolist() if g is None else g.tolist() for g, x in zip(grads, wrt, strict=True)
    ]


def test_candidates_share_the_gradient_of_a_right_sample_and_not_its_loss() -> None:
    # K = 2 at ratio 1: of the unsure token of the right row 0.99 is its own and 0.01 goes to the mean of its candidates
    decisions = decisions_of({ENTROPY: UNSURE, top_logprob(2): [[-3.0, -4.0, -5.0]] * 2})
    term = clipped_with_candidates(num=2, share=0.01, quantile=0.8)
    value, (sampled, candidates) = loss_of(term, decisions, decisions.logprob_BT, decisions[top_logprob(2)])
    assert value == pytest.approx(0.0)
    sixth = 1 / 6
    assert torch.tensor(sampled).flatten().tolist() == pytest.approx(
        [-sixth, -sixth, -0.99 * sixth, sixth, sixth, sixth]
    )
    assert torch.tensor(candidates).flatten().tolist() == pytest.approx([0, 0, -0.01 * sixth, 0, 0, 0])


def test_beyond_its_bound_a_ratio_trains_no_candidate() -> None:
    values = {ENTROPY: UNSURE, top_logprob(3): [[-3.0, -4.0, -5.0]] * 2}
    decisions = decisions_of(values, log_ratio=[[0, 0, log(1.5)], [0, 0, 0]])
    value, (sampled, candidates) = loss_of(
        clipped_with_candidates(high=0.3), decisions, decisions.logprob_BT, decisions[top_logprob(3)]
    )
    assert value == pytest.approx(-0.3 / 6)
    assert (sampled[0][2], torch.tensor(candidates).abs().max().item()) == (0.0, 0.0)


def test_first_choices_of_wrong_samples_count_more_where_the_policy_is_unsure() -> None:
    for rank, factor in ((0, 1.1), (1, 1.0)):
        decisions = decisions_of({ENTROPY: [[0.1, 3.0]] * 2, RANK: [[0, 0], [0, rank]]})
        loss_BT = likeliest_of_wrong(loss=1.1).of(decisions, {}).loss_BT
        assert loss_BT is not None
        assert loss_BT.tolist() == [[1.0, 1.0], [1.0, pytest.approx(factor)]]


def test_peaks_are_pulled_to_the_anchor() -> None:
    # peaks above the quantile of each row: 2.0 and 1.0 alone, the masked 9.0 not; H = 1.5, (1.5 - 1.2)^2, and
    # 2 * 0.3 / 2 for each peak
    value = nucleus_entropy(0.8)
    decisions = decisions_of({value: [[0.1, 0.2, 2.0], [1.0, 0.5, 9.0]]}, mask=[[1, 1, 1], [1, 1, 0]])
    loss, (grad,) = loss_of(anchored_entropy(anchor=1.2), decisions, decisions[value])
    assert loss == pytest.approx(0.09)
    assert torch.tensor(grad).flatten().tolist() == pytest.approx([0, 0, 0.3, 0.3, 0, 0])
    apart = decisions_of({value: [[0.1, 0.2, 2.0], [1.0, 0.5, 0.1]]}, group=(0, 1))
    two = anchored_entropy(anchor=1.2).loss(apart)
    assert two.value.item() == pytest.approx((0.8**2 + 0.2**2) / 2)


def test_the_first_measured_peak_is_the_anchor() -> None:
    value = nucleus_entropy(0.8)
    decisions = decisions_of({value: [[0.1, 0.2, 2.0], [1.0, 0.5, 0.1]]})
    loss, (grad,) = loss_of(weighted(anchored_entropy(), 0.5), decisions, decisions[value])
    assert (loss, torch.tensor(grad).abs().max().item()) == (0.0, 0.0)
    result = anchored_entropy().loss(decisions).diagnostics.as_metrics()
    assert result["policy/anchored_entropy_mean"] == pytest.approx(1.5)
    assert first_measured(0.0, 1.5) == 1.5
    assert first_measured(1.5, 0.7) == 1.5


def test_the_value_of_a_token_is_its_reward_plus_the_next_value() -> None:
    before = Value("logprob_mean", "before")
    decisions = decisions_of(
        {LOGPROB_MEAN: [[-5.0, -3.2], [-2.0, -4.0]], before: [[-1.0, -3.0], [-2.5, -4.4]]},
        log_ratio=[[0.3, 0.0], [0.0, 0.1]],
    )
    # rho = 2: Q = 0.6, 0 and 0, 0.2; targets 1 - 0.4, 1 and -1 + 0.8, -1
    term = uniform_policy_value(before="before", rho=2.0)
    loss, (grad, of_mean) = loss_of(term, decisions, decisions.logprob_BT, decisions[LOGPROB_MEAN])
    assert loss == pytest.approx((0 + 1 + 0.04 + 1.44) / 4)
    assert torch.tensor(grad).flatten().tolist() == pytest.approx(
        [0, 2 * -1 * 2 / 4, 2 * 0.2 * 2 / 4, 2 * 1.2 * 2 / 4], abs=1e-6
    )
    assert torch.tensor(of_mean).abs().max() == 0


def test_invalid_numbers_raise() -> None:
    for make, message in (
        (lambda: clipped_with_candidates(num=0), "1 or more, got 0"),
        (lambda: clipped_with_candidates(quantile=1.5), "between 0 and 1, got 1.5"),
        (lambda: likeliest_of_wrong(quantile=-0.1), "between 0 and 1, got -0.1"),
        (lambda: anchored_entropy(mass=0.0), "above 0 and at most 1, got 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()
