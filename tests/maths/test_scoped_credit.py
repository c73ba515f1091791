"""Credit by parts: values by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.advantages import group_advantage
from mmgrpo.maths.estimators.scoped_credit import process_returns, scoped, segment_differences
from mmgrpo.maths.feedback import Feedback, Scoped
from mmgrpo.methods.credit.clip_delta_prm_shaping import clipped_differences
from mmgrpo.methods.credit.process_supervision import process_supervision
from mmgrpo.methods.credit.rank_grpo import ranks
from tests.maths.feedback_rows import feedback_of


def feedback_of_parts(
    scopes: Sequence[Sequence[int]],
    values: Sequence[Sequence[float]],
    *,
    rewards: Sequence[float] | None = None,
    groups: Sequence[int] | None = None,
    valid: Sequence[Sequence[int]] | None = None,
    old_logprob: Sequence[Sequence[float]] | None = None,
) -> Feedback:
    """Rows of parts, under the name ``steps``."""
    value_BS = torch.tensor(values)
    valid_BS = torch.ones(value_BS.shape, dtype=torch.bool) if valid is None else torch.tensor(valid).bool()
    B, T = len(scopes), len(scopes[0])
    return feedback_of(
        rewards or [0.0] * B,
        groups or [0] * B,
        mask=[[1] * T] * B,
        old_logprob=old_logprob,
        scoped={"steps": Scoped(scope_BT=torch.tensor(scopes), value_BS=value_BS, valid_BS=valid_BS)},
    )


def test_a_span_moves_its_own_columns_alone():
    # span 0 is 1, 0, 0, 0 over the group: 0.75 / 0.5 and -0.25 / 0.5; span 1 says the same of all
    scopes = [[0, 0, 1, -1], [0, 1, 1, 1], [0, 0, 0, -1], [1, 0, -1, -1]]
    feedback = feedback_of_parts(scopes, [[1.0, 2.0], [0.0, 2.0], [0.0, 2.0], [0.0, 2.0]])
    result_BT = scoped(reward="steps", eps=0.0).assign(feedback, torch.zeros(4, 4))
    expected = [[1.5, 1.5, 0, 0], [-0.5, 0, 0, 0], [-0.5, -0.5, -0.5, 0], [0, -0.5, 0, 0]]
    torch.testing.assert_close(result_BT, torch.tensor(expected))
    half_BT = scoped(reward="steps", eps=0.0, weight=0.5).assign(feedback, torch.ones(4, 4))
    torch.testing.assert_close(half_BT, 1 + 0.5 * torch.tensor(expected))


def test_one_scope_over_everything_is_the_plain_reward():
    rewards = [1.0, 0.0, 0.5, 0.0]
    feedback = feedback_of_parts([[0, 0]] * 4, [[reward] for reward in rewards], groups=[0, 0, 1, 1])
    expected = group_advantage(torch.tensor(rewards).double().reshape(2, 2)).float().reshape(4, 1).expand(4, 2)
    assert torch.equal(scoped(reward="steps").assign(feedback, torch.zeros(4, 2)), expected)


def test_an_unscored_part_is_in_no_mean():
    feedback = feedback_of_parts(
        [[0, 1]] * 3, [[1.0, 1.0], [0.0, 0.0], [math.nan, 9.0]], valid=[[1, 1], [1, 1], [0, 1]]
    )
    result_BT = scoped(reward="steps", eps=0.0).assign(feedback, torch.zeros(3, 2))
    torch.testing.assert_close(result_BT[:, 0], torch.tensor([0.5**0.5, -(0.5**0.5), 0.0]))


def test_a_group_of_one_gets_zeros_and_an_unknown_reward_is_named():
    feedback = feedback_of_parts([[0, 1]], [[1.0, 0.0]])
    assert not scoped(reward="steps").assign(feedback, torch.zeros(1, 2)).any()
    with pytest.raises(ConfigError, match="'boxes'.*there are: steps"):  # noqa: RUF043
        scoped(reward="boxes").assign(feedback, torch.zeros(1, 2))


def test_returns_to_go():
    # values 1, 0, 1 give 2, 1, 1
    feedback = feedback_of_parts([[0, 0, 1, 2, -1]], [[1.0, 0.0, 1.0]])
    assert process_returns(reward="steps").assign(feedback, torch.zeros(1, 5)).tolist() == [[2, 2, 1, 1, 0]]


def test_process_supervision_standardizes_all_steps_together():
    # values 1, 0, 1 and 0: mean 0.5, sample std of four 0.577350: z = 0.866025 s; to the end: 1, 0, 1 | -1
    z = 0.5 / (1 / 3) ** 0.5
    feedback = feedback_of_parts(
        [[0, 1, 2], [0, 0, -1]], [[1.0, 0.0, 1.0], [0.0, 7.0, 7.0]], valid=[[1, 1, 1], [1, 0, 0]]
    )
    result_BT = process_supervision(reward="steps", eps=0.0).assign(feedback, torch.zeros(2, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[z, 0.0, z], [-z, -z, 0.0]]))


def test_ranks_sum_discounted_later_hits():
    # hits 0, 1, 0, 1: 1/log2(3) + 1/log2(5) = 1.061606 twice, then 0.430677 twice; against no hit: +-0.707107
    feedback = feedback_of_parts([[0, 1, 2, 3], [0, 1, 2, 3]], [[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    result_BT = ranks(reward="steps", eps=0.0).assign(feedback, torch.zeros(2, 4))
    torch.testing.assert_close(result_BT, torch.tensor([[0.5**0.5] * 4, [-(0.5**0.5)] * 4]))
    # their sizes: with eps the std of the group no longer drops out: v / (v / sqrt 2 + 1) / 2
    value = torch.tensor([1.061606, 1.061606, 0.430677, 0.430677])
    result_BT = ranks(reward="steps", eps=1.0).assign(feedback, torch.zeros(2, 4))
    torch.testing.assert_close(result_BT[0], value / 2 / (value * 0.5**0.5 + 1), atol=1e-6, rtol=0)
    # rank by rank: hits of ranks 2 and 4 alone
    undiscounted_BT = ranks(reward="steps", discounted=False, eps=0.0).assign(feedback, torch.zeros(2, 4))
    torch.testing.assert_close(undiscounted_BT[0], torch.tensor([0.0, 0.5**0.5, 0.0, 0.5**0.5]))


def test_differences_to_the_next_step():
    # 0.9, 0.4, 0.6: 0.5, -0.2, 0.6; clipped at 0.5: 0, -0.1, 0 -> 0.1, -0.1, 0
    feedback = feedback_of_parts([[0, 1, 2]], [[0.9, 0.4, 0.6]])
    result_BT = clipped_differences(reward="steps").assign(feedback, torch.zeros(1, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[0.5, -0.2, 0.6]]))
    result_BT = clipped_differences(reward="steps", limit=0.5).assign(feedback, torch.zeros(1, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[0.1, -0.1, 0.0]]))


def test_segments_by_their_change_of_value():
    # V 0.5, 0.8 and a reward of 1: 0.3, 0.2, which sum to r - V(start) (SPO); the second row has one segment
    old = [[math.log(0.5), math.log(0.95), math.log(0.2)], [0.0, -1.0, -1.0]]
    feedback = feedback_of_parts(
        [[0, 0, 1], [0, 0, 0]], [[0.5, 0.8], [0.25, 9.0]], rewards=[1.0, 0.0], valid=[[1, 1], [1, 0]], old_logprob=old
    )
    result_BT = segment_differences(reward="steps").assign(feedback, torch.zeros(2, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[0.3, 0.3, 0.2], [-0.25, -0.25, -0.25]]))
    # likely decisions carry none of it
    result_BT = segment_differences(reward="steps", below=0.9).assign(feedback, torch.zeros(2, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[0.3, 0.0, 0.2], [0.0, -0.25, -0.25]]))


def test_a_weight_of_zero_keeps_advantages_bitwise():
    feedback = feedback_of_parts([[0, 1, 2]] * 2, [[0.9, 0.4, 0.6], [0.1, 0.2, 0.3]])
    advantage_BT = torch.randn(2, 3)
    for make in (scoped, ranks, process_supervision, process_returns, clipped_differences, segment_differences):
        assert torch.equal(make(reward="steps", weight=0.0).assign(feedback, advantage_BT), advantage_BT)
