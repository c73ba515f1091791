"""Feedback and groups: index sets against reshapes, means, columns of the job."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.maths.advantages import group_advantage
from mmgrpo.maths.aggregates import Totals, count
from mmgrpo.maths.feedback import SampleColumn, Scoped, job_feedback, joined
from mmgrpo.maths.group_stats import grouped
from mmgrpo.values import ENTROPY
from tests.maths.feedback_rows import feedback_of


def test_prompt_major_groups_of_one_size_are_a_reshape():
    value_B = torch.randn(6, dtype=torch.float64)
    groups = grouped(torch.tensor([4, 4, 4, 2, 2, 2]))
    assert torch.equal(groups.matrix(value_B), value_B.reshape(2, 3))
    assert torch.equal(
        groups.rows(group_advantage(groups.matrix(value_B), groups.present_PG)),
        group_advantage(value_B.reshape(2, 3)).flatten(),
    )


def test_ragged_groups_are_in_the_order_of_their_first_row():
    # rows of group 7: 0 and 3; of 5: 1, 2 and 4
    groups = grouped(torch.tensor([7, 5, 5, 7, 5]))
    assert groups.index_PG.tolist() == [[0, 3, 0], [1, 2, 4]]
    assert groups.present_PG.tolist() == [[True, True, False], [True, True, True]]
    value_B = torch.arange(5.0)
    assert torch.equal(groups.rows(groups.matrix(value_B)), value_B)
    both_SB = torch.stack([value_B, value_B + 10])
    assert torch.equal(groups.rows(groups.matrix(both_SB)), both_SB)
    assert groups.valid(torch.tensor([False, True, True, True, True])).tolist() == [
        [False, True, False],
        [True, True, True],
    ]


def test_no_rows_give_no_groups_and_floats_raise():
    assert grouped(torch.zeros(0, dtype=torch.long)).index_PG.shape == (0, 0)
    with pytest.raises(ShapeError, match="integers"):
        grouped(torch.zeros(2))


def test_the_mean_of_a_value_is_over_kept_decisions():
    feedback = feedback_of(
        [1.0, 0.0],
        [0, 0],
        mask=[[1, 1, 0], [0, 0, 0]],
        values={ENTROPY: torch.tensor([[1.0, 2.0, torch.nan], [torch.inf] * 3])},
    )
    assert feedback[ENTROPY].tolist() == [[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    assert feedback.mean(feedback[ENTROPY]).tolist() == [1.5, 0.0]
    assert feedback.length_B.tolist() == [2, 0]
    assert feedback.job.value_mean[ENTROPY].tolist() == [1.5, 0.0]


def test_missing_values_are_named_with_the_existing_ones():
    feedback = feedback_of([1.0, 0.0], [0, 0])
    feedback = replace(
        feedback,
        columns={"level": torch.tensor([3.0, 4.0])},
        rewards={"box": SampleColumn(value_B=torch.zeros(2), valid_B=torch.ones(2, dtype=torch.bool))},
    )
    assert feedback.column("level").tolist() == [3.0, 4.0]
    assert feedback.reward("box").valid_B.all()
    with pytest.raises(ConfigError, match=r"no numeric column 'depth'.*there are: level"):
        feedback.column("depth")
    with pytest.raises(ConfigError, match=r"no value 'entropy'.*none"):
        feedback[ENTROPY]
    with pytest.raises(ConfigError, match="no reward of parts 'box'"):
        feedback.scopes("box")
    with pytest.raises(ConfigError, match="reads the token of each decision"):
        _ = feedback.tokens


def test_wrong_shapes_raise():
    feedback = feedback_of([1.0, 0.0], [0, 0])
    with pytest.raises(ShapeError, match="reward_B"):
        replace(feedback, reward_B=torch.zeros(3))
    with pytest.raises(ShapeError, match="entropy must be"):
        replace(feedback, values={ENTROPY: torch.zeros(2, 1)})
    with pytest.raises(ShapeError, match="scopes 0 to 1"):
        Scoped(scope_BT=torch.tensor([[2]]), value_BS=torch.zeros(1, 2), valid_BS=torch.ones(1, 2, dtype=torch.bool))


def test_scopes_are_assigned_to_their_decisions():
    scoped = Scoped(
        scope_BT=torch.tensor([[0, 1, -1]]),
        value_BS=torch.tensor([[3.0, 5.0]]),
        valid_BS=torch.ones(1, 2, dtype=torch.bool),
    )
    assert scoped.at_decisions(scoped.value_BS).tolist() == [[3.0, 5.0, 0.0]]


def test_the_job_concatenates_processes_and_separates_their_groups():
    first, two = feedback_of([1.0, 0.0], [0, 0]), feedback_of([0.5], [0])
    job = joined([first.job, two.job], rank=1)
    assert job.reward_N.tolist() == [1.0, 0.0, 0.5]
    assert job.group_N.tolist() == [0, 0, 1]
    assert job.local_rows == slice(2, 3)
    alone = job_feedback(first.reward_B, first.valid_B, first.group_B, first.mask_BT, first.old_logprob_BT)
    assert torch.equal(joined([alone], rank=0).reward_N, alone.reward_N)


def test_groups_are_counted_if_passed():
    mask_BT = torch.tensor([[True], [False], [False], [True]])
    zero_B = torch.tensor([False, False, True, False])
    # of groups 3, 4, 5 the second has no row that counts
    group_B = torch.tensor([3, 4, 5, 3])
    assert count(mask_BT, zero_B, group_B) == Totals(num_samples=3, num_decisions=2, num_groups=2)
    assert count(mask_BT, zero_B) == Totals(num_samples=3, num_decisions=2)


def test_tokens_are_one_for_each_kept_decision():
    feedback = feedback_of([1.0, 0.0], [0, 0])
    token_BT = torch.zeros(feedback.mask_BT.shape, dtype=torch.long)
    assert torch.equal(replace(feedback, token_BT=token_BT).tokens, token_BT)
    with pytest.raises(ShapeError, match="no token at a decision that mask_BT keeps"):
        replace(feedback, token_BT=token_BT - 1)
    with pytest.raises(ShapeError, match=r"token_BT must be .* like mask_BT"):
        replace(feedback, token_BT=torch.zeros(len(token_BT), token_BT.shape[1] + 1, dtype=torch.long))


@pytest.mark.parametrize(("values", "valid"), [((2, 1), (2, 2)), ((2,), (2,))])
def test_scores_of_spans_are_a_matrix_with_a_mask_of_its_shape(values: tuple[int, ...], valid: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="value_BS and valid_BS"):
        Scoped(
            scope_BT=torch.zeros(2, 3, dtype=torch.long),
            value_BS=torch.zeros(values),
            valid_BS=torch.ones(valid, dtype=torch.bool),
        )
