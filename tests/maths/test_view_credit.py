"""Credit by other views: values by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators.value_credit import within_divergence
from mmgrpo.methods.credit.prl import kl_to_go
from mmgrpo.methods.views.gtr_turbo import excess_likelihood
from mmgrpo.methods.views.rto import returns_in_view
from mmgrpo.methods.views.srpo_unifying_group import mask_outside_view
from mmgrpo.methods.views.vogue import bounded_uncertainty
from mmgrpo.values import ENTROPY, mask_of_view, of_view
from tests.maths.feedback_rows import feedback_of


def test_decisions_likelier_than_under_the_view_cost_advantage() -> None:
    # 0.5, 0 and a masked one: a mean of 0.25; nothing where all of it is likelier in the view
    values = {of_view("merged"): torch.tensor([[-1.5, -0.5, -9.0], [-0.5, -0.5, -0.5]])}
    feedback = feedback_of(
        [1.0, 0.0], [0, 0], mask=[[1, 1, 0], [1, 1, 1]], values=values, old_logprob=[[-1.0] * 3, [-1.0] * 3]
    )
    result_BT = excess_likelihood(view="merged", weight=2.0).assign(feedback, torch.ones(2, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[0.5] * 3, [1.0] * 3]))
    with pytest.raises(ConfigError, match="at least 0"):
        excess_likelihood(view="merged", weight=-1.0)


def test_log_ratios_of_the_view_add_up_to_the_end_of_the_answer() -> None:
    # 1, 2 and a masked 9: 3, 2 to come; of a second member 1 and no more; of a third without the view nothing;
    # means of the two 2 and 1, none of them the third's
    values = {
        of_view("raw"): torch.tensor([[0.0, 1.0, 8.0], [0.0, -1.0, -1.0], [5.0, 5.0, 5.0]]),
        mask_of_view("raw"): torch.tensor([[1.0] * 3, [1.0] * 3, [0.0] * 3]),
    }
    mask, old = [[1, 1, 0], [1, 0, 0], [1, 1, 1]], [[-1.0] * 3] * 3
    feedback = feedback_of([1.0, 0.0, 0.0], [0, 0, 0], mask=mask, values=values, old_logprob=old)
    result_BT = returns_in_view(view="raw").assign(feedback, torch.zeros(3, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[1.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0] * 3]))
    with pytest.raises(ConfigError, match="above 0"):
        returns_in_view(view="raw", limit=0.0)


def test_the_divergence_to_go_is_subtracted_step_by_step() -> None:
    # old - reference 1, 2, a masked 9, 3, 4 and 5: 15, 14, 12, 9 and 5 to come. In steps of two kept decisions these
    # end at the 2, the 4 and, too soon, the 5; a row without the view keeps its advantage
    values = {of_view("reference"): -torch.tensor([[1.0, 2.0, 9.0, 3.0, 4.0, 5.0]]).repeat(2, 1)}
    values[mask_of_view("reference")] = torch.tensor([[1.0] * 6, [0.0] * 6])
    feedback = feedback_of([1.0, 0.0], [0, 0], mask=[[1, 1, 0, 1, 1, 1]] * 2, values=values)
    for every, to_come in ((1, [15.0, 14.0, 0.0, 12.0, 9.0, 5.0]), (2, [14.0, 14.0, 0.0, 9.0, 9.0, 5.0])):
        result_BT = kl_to_go(weight=0.5, every=every).assign(feedback, torch.ones(2, 6))
        torch.testing.assert_close(result_BT, torch.stack([1 - 0.5 * torch.tensor(to_come), torch.ones(6)]))
    with pytest.raises(ConfigError, match="at least 1"):
        kl_to_go(weight=1.0, every=0)


def test_a_sample_beyond_the_divergence_limit_has_no_advantage() -> None:
    # 1 and 5 of 4 nats away: 1 * 3/4 and 0; the last has gone the other way, 0.5 * 5/4; less their mean of 11/24. Who
    # has no reward is left out
    values = {of_view("reference"): -torch.tensor([[0.5, 0.5], [5.0, 9.0], [-1.0, 0.0], [1.0, 1.0]])}
    mask, valid = [[1, 1], [1, 0], [1, 1], [1, 1]], [True, True, True, False]
    feedback = feedback_of([1.0, 1.0, 0.5, 1.0], [0] * 4, mask=mask, valid=valid, values=values)
    advantage_BT = torch.tensor([[1.0], [1.0], [0.5], [0.0]]).expand(4, 2)
    result_BT = within_divergence(limit=4.0).assign(feedback, advantage_BT)
    expected = [[7 / 24] * 2, [-11 / 24, 0.0], [1 / 6] * 2, [0.0] * 2]
    torch.testing.assert_close(result_BT, torch.tensor(expected))
    with pytest.raises(ConfigError, match="above 0"):
        within_divergence(limit=0.0)


def test_rows_with_the_view_have_no_advantage() -> None:
    values = {mask_of_view("peer"): torch.tensor([[1.0] * 3, [0.0] * 3])}
    feedback = feedback_of([1.0, 0.0], [0, 0], values=values)
    result_BT = mask_outside_view(view="peer").assign(feedback, torch.ones(2, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[0.0] * 3, [1.0] * 3]))


def test_the_bonus_of_uncertainty_stays_below_a_share_of_the_advantage() -> None:
    # r = 2, 1 and e: u = 0.3465736, 0 and 0.8591409; H = 0.5, 0 and 9
    logprob_BT = torch.tensor([[2.0, 1.0, torch.e]]).log() - 1
    values = {of_view("raw"): logprob_BT, ENTROPY: torch.tensor([[0.5, 0.0, 9.0]])}
    feedback = feedback_of([1.0], [0], values=values, old_logprob=[[-1.0] * 3])
    assign = bounded_uncertainty(view="raw", weight=1.0, bound=2.0, entropy=0.4, entropy_bound=4.0).assign
    torch.testing.assert_close(
        assign(feedback, torch.full((1, 3), -1.0)), torch.tensor([[-1 + 0.3465736 + 0.2, -1.0, -1 + 0.5 + 0.25]])
    )
    with pytest.raises(ConfigError, match="above 0"):
        bounded_uncertainty(view="raw", bound=0.0)
