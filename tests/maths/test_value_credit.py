"""Credit by values, other policies and columns: values by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from mmgrpo.maths.estimators.value_credit import VALUE, column_weight, gae, log_ratio, on_policy_baseline
from mmgrpo.methods.advantages.aapo import column_margin
from mmgrpo.methods.advantages.pvpo import column_baseline
from mmgrpo.methods.off_policy.visurf import label_smoothing
from mmgrpo.values import REFERENCE, Value
from tests.maths.feedback_rows import feedback_of


def test_generalized_advantages_by_hand():
    # rewards 0, 0, 1, values 0.5, 0.6, 0.7: deltas 0.1, 0.1, 0.3; 0.3, 0.1 + 0.285, 0.1 + 0.95 * 0.385
    feedback = feedback_of([1.0], [0], values={VALUE: torch.tensor([[0.5, 0.6, 0.7]])})
    result_BT = gae(gamma=1.0, decay=0.95).assign(feedback, torch.zeros(1, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[0.46575, 0.385, 0.3]]))
    # decay 0 leaves the deltas, decay 1 gives r - V
    torch.testing.assert_close(gae(decay=0.0).assign(feedback, torch.zeros(1, 3)), torch.tensor([[0.1, 0.1, 0.3]]))
    torch.testing.assert_close(gae(decay=1.0).assign(feedback, torch.zeros(1, 3)), torch.tensor([[0.5, 0.4, 0.3]]))
    # gamma 0.9, decay 1: 0.3; 0.9 * 0.7 - 0.6 + 0.9 * 0.3 = 0.3; 0.9 * 0.6 - 0.5 + 0.9 * 0.3 = 0.31
    result_BT = gae(gamma=0.9, decay=1.0).assign(feedback, torch.zeros(1, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[0.31, 0.3, 0.3]]))


def test_masked_decisions_are_skipped():
    values = torch.tensor([[0.5, torch.nan, 0.6, 0.7, torch.nan], [0.0, 0.0, 0.0, 0.0, 0.0]])
    mask = [[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]]
    feedback = feedback_of([1.0, 1.0], [0, 0], mask=mask, values={VALUE: values})
    result_BT = gae().assign(feedback, torch.zeros(2, 5))
    torch.testing.assert_close(result_BT, torch.tensor([[0.46575, 0.0, 0.385, 0.3, 0.0], [0.0] * 5]))


def test_a_teacher_is_followed_and_gone_beyond():
    # old -1.2, base -1.5, teacher -0.9: 0.3 at scale 1, 1.25 * 0.6 - 0.3 = 0.45 at 1.25 (G-OPD)
    teacher, base = Value("logprob", "teacher"), Value("logprob", REFERENCE)
    values = {teacher: torch.tensor([[-0.9]]), base: torch.tensor([[-1.5]])}
    feedback = feedback_of([0.0], [0], mask=[[1]], old_logprob=[[-1.2]], values=values)
    plain, beyond = log_ratio(view="teacher"), log_ratio(view="teacher", scale=1.25)
    assert plain.values == (teacher,)
    assert beyond.values == (teacher, base)
    torch.testing.assert_close(plain.assign(feedback, torch.zeros(1, 1)), torch.tensor([[0.3]]))
    torch.testing.assert_close(beyond.assign(feedback, torch.ones(1, 1)), torch.tensor([[1.45]]))


def test_an_equal_teacher_keeps_advantages_bitwise():
    old = [[-1.2, -0.3]]
    feedback = feedback_of([0.0], [0], old_logprob=old, values={Value("logprob", "teacher"): torch.tensor(old)})
    advantage_BT = torch.randn(1, 2)
    assert torch.equal(log_ratio(view="teacher").assign(feedback, advantage_BT), advantage_BT)


def test_a_margin_over_a_column_is_bounded():
    # rewards 1, 0, 0 over 0, 1, 0.1: 0.28, -0.2, -0.1 (AAPO)
    feedback = feedback_of([1.0, 0.0, 0.0], [0, 0, 0])
    feedback = replace(feedback, columns={"reference": torch.tensor([0.0, 1.0, 0.1])})
    result_BT = column_margin(column="reference").assign(feedback, torch.full((3, 3), 1.4997))
    torch.testing.assert_close(result_BT[:, 0], torch.tensor([1.7797, 1.2997, 1.3997]))


def test_the_baseline_is_a_column():
    # of one group 1 - 0.25 and 0 - 0.25, of the other 1 - 1; a row without a reward has 0
    feedback = feedback_of([1.0, 0.0, 1.0, 5.0], [0, 0, 1, 1], valid=[True, True, True, False])
    feedback = replace(feedback, columns={"static_value": torch.tensor([0.25, 0.25, 1.0, 1.0])})
    result_BT = column_baseline(column="static_value").assign(feedback, torch.ones(4, 3))
    assert result_BT[:, 0].tolist() == [0.75, -0.25, 0.0, 0.0]


def test_a_column_weighs_its_rows():
    # 1.5 and -1.5 by 0.5; and between 2 at zero and 0.5 at one: 2 - 1.5 / 2
    feedback = replace(feedback_of([1.0, 0.0], [0, 0]), columns={"rank": torch.tensor([0.5, 0.5])})
    advantage_BT = torch.tensor([[1.5], [-1.5]])
    assert column_weight(column="rank").assign(feedback, advantage_BT).tolist() == [[0.75], [-0.75]]
    turned = column_weight(column="rank", at_zero=2.0, at_one=0.5)
    assert turned.assign(feedback, advantage_BT).tolist() == [[1.875], [-1.875]]


def test_read_rows_do_not_move_the_baseline():
    # sampled 1, 0: mean 0.5; a refined row of 1 earns 0.5, where the mean of all three would leave it 1/3
    feedback = feedback_of([1.0, 0.0, 1.0, 0.7], [0, 0, 0, 1])
    read = replace(feedback, source_B=torch.tensor([0, 0, 2, 2]))
    result_BT = on_policy_baseline().assign(read, torch.zeros(4, 3))
    assert result_BT[:, 0].tolist() == [0.5, -0.5, 0.5, 0.0]
    # without a read row it is the reward less its group's mean; equal rewards leave exactly nothing
    torch.testing.assert_close(
        on_policy_baseline().assign(feedback, torch.zeros(4, 3))[:, 0], torch.tensor([1 / 3, -2 / 3, 1 / 3, 0.0])
    )
    equal = feedback_of([0.1] * 3, [0] * 3)
    assert not on_policy_baseline().assign(equal, torch.zeros(3, 3)).any()


def test_a_demonstration_is_worth_the_mean_once_a_sample_reaches_it():
    # the answer of group 0 is needed: mean 0.5, sample std sqrt(0.5 / 3) of 0, 0.5, 0.5, 1; of group 1 it is not: its 1
    # counts as 0.5, mean 0.5, std sqrt(0.5 / 2)
    feedback = feedback_of([0.0, 0.5, 0.5, 1.0, 0.0, 1.0, 1.0], [0, 0, 0, 0, 1, 1, 1], mask=[[1]] * 7)
    feedback = replace(feedback, source_B=torch.tensor([0, 0, 0, 2, 0, 0, 2]))
    result_BT = label_smoothing(eps=0.0).assign(feedback, torch.zeros(7, 1))
    outer = 0.5 / (0.5 / 3) ** 0.5
    torch.testing.assert_close(result_BT, torch.tensor([[-outer], [0.0], [0.0], [outer], [-1.0], [1.0], [0.0]]))
    # a group without an answer is standardized
    on_policy_BT = label_smoothing(eps=0.0).assign(replace(feedback, source_B=None), torch.zeros(7, 1))
    torch.testing.assert_close(on_policy_BT[4:, 0], torch.tensor([-2.0, 1.0, 1.0]) / 3**0.5)
