"""Credit by how likely samples are, how far a group agrees and which steps go with the outcome: values by hand."""

from __future__ import annotations

from math import log

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Estimator, Feedback, Scoped
from mmgrpo.methods.advantages.apo import concise_failures
from mmgrpo.methods.advantages.copo import global_consistency
from mmgrpo.methods.advantages.lens_waste_mistakes import confident_mistakes
from mmgrpo.methods.advantages.seed_grpo import uncertain_groups
from mmgrpo.methods.credit.less import sure_segments
from mmgrpo.methods.credit.ppl import perplexity_weight
from mmgrpo.methods.credit.ppl_position import late_decisions
from mmgrpo.methods.selection.prof import consistent_members
from mmgrpo.values import ENTROPY
from tests.maths.feedback_rows import feedback_of


def advantages(estimator: Estimator, feedback: Feedback, advantage: float = 1.0) -> Tensor:
    """What samples of one advantage get, (B, T)."""
    return estimator.assign(feedback, torch.full(feedback.mask_BT.shape, advantage, dtype=torch.float64))


def check(result_BT: Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(result_BT, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def test_samples_as_likely_as_each_other_keep_their_advantage() -> None:
    result_BT = advantages(
        perplexity_weight(strength=1.0), feedback_of([1.0, 0.0], [0, 0], old_logprob=[[-2.0], [-2.0]])
    )
    check(result_BT, [[1.0], [1.0]])


def test_likelier_samples_count_more_by_their_kept_decisions() -> None:
    # means -1 and -3 of the decisions kept: z = -1 and 1
    feedback = feedback_of([1.0, 0.0], [0, 0], mask=[[1, 0], [1, 1]], old_logprob=[[-1.0, -99.0], [-2.0, -4.0]])
    check(advantages(perplexity_weight(strength=0.1), feedback), [[1.1, 1.1], [0.9, 0.9]])


@pytest.mark.parametrize(("step", "is_on"), [(1, False), (2, True), (3, True), (4, False)])
def test_late_decisions_count_more_in_some_steps(step: int, is_on: bool) -> None:
    # two kept decisions, at 0 and 1 / 2: sigmoid(-7.5) and a half, held at half of 0.08
    feedback = feedback_of([1.0], [0], mask=[[1, 1, 0]], step=step)
    result_BT = advantages(late_decisions(strength=0.1, start=2, end=4), feedback, -0.08)[:, :2]
    check(result_BT, [[-0.0800553, -0.12]] if is_on else [[-0.08, -0.08]])


def test_a_group_that_is_all_right_has_made_no_mistakes() -> None:
    feedback = feedback_of([1.0, 1.0], [0, 0], old_logprob=[[log(0.5)], [log(0.25)]])
    check(advantages(confident_mistakes(), feedback), [[0.0], [0.0]])


@pytest.mark.parametrize(
    ("share", "expected"),
    # one answer: no entropy; four answers: as much as there can be
    [((1.0, 1.0, 1.0, 1.0), 1.0), ((0.25, 0.25, 0.25, 0.25), 0.9)],
)
def test_uncertain_groups_count_less(share: tuple[float, ...], expected: float) -> None:
    feedback = feedback_of([1.0, 0.0, 0.0, 0.0], [0] * 4, named_rewards={"answers": share})
    check(advantages(uncertain_groups(shares="answers", strength=0.1), feedback), [[expected] * 3] * 4)


def test_groups_of_equal_rewards_get_zeros() -> None:
    # w = sigmoid(5 (1 - 1)) = 0.5 of what is right, and nothing of what is wrong
    feedback = feedback_of([1.0, 0.0, 0.0, 1.0], [0, 0, 1, 1], named_rewards={"answers": (0.5, 0.5, 0.5, 0.5)})
    check(advantages(global_consistency(shares="answers"), feedback), [[0.5] * 3, [0.0] * 3, [0.0] * 3, [0.5] * 3])


def stepped(scores: list[list[float]]) -> Scoped:
    """Step scores of samples, a step a decision; fewer for shorter samples."""
    T = max(map(len, scores))
    valid_BS = torch.tensor([[s < len(row) for s in range(T)] for row in scores])
    value_BS = torch.tensor([row + [torch.nan] * (T - len(row)) for row in scores])
    return Scoped(scope_BT=torch.arange(T).expand(len(scores), T), value_BS=value_BS, valid_BS=valid_BS)


@pytest.mark.parametrize(
    ("rewards", "count", "expected"),
    [
        ([1, 1, 0, 0], 2, [1, 2]),  # the right one of a single step goes, and the wrong one of three too good steps
        ([1, 1, 1, 0], 3, [1, 2, 3]),  # an odd place is a right one's
        ([0, 0, 0, 1], 3, [0, 2, 3]),  # what there is too few of is made up by the others; the single step is too good
        ([1, 0, 0, 0], 4, [0, 1, 2, 3]),
    ],
)
def test_members_with_consistent_steps_train(rewards: list[float], count: int, expected: list[int]) -> None:
    steps = stepped([[0.9] if place == (1 if rewards[0] == 0 else 0) else [0.5, 0.1 * place] for place in range(4)])
    feedback = feedback_of(rewards, [0] * 4, mask=[[1, 1]] * 4, scoped={"steps": steps})
    result_BT = advantages(consistent_members(reward="steps", count=count, eps=0.0), feedback)
    assert result_BT[:, 0].nonzero()[:, 0].tolist() == expected
    assert float(result_BT.sum()) == pytest.approx(0.0, abs=1e-6)


def test_a_filter_keeps_at_least_one_member() -> None:
    with pytest.raises(ConfigError, match="at least one member"):
        consistent_members(reward="steps", count=0)


def test_longer_failures_are_pushed_harder() -> None:
    # right: 1; wrong: 1 and 3, so 2 - 0.5^2; a group without a right one stays
    mask = [[1, 0, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]]
    result_BT = advantages(concise_failures(base=2.0), feedback_of([1.0, 0.0, 0.0, 0.0], [0, 0, 0, 1], mask=mask))
    check(result_BT[:, :1], [[1.0], [1.0], [1.75], [1.0]])


def test_of_passages_within_each_other_the_shortest_counts() -> None:
    # the passages are [1 2 3 4], [9 1 2 3] and [1 2 3]: all three hold the last, 3 / 3, and what else is sure 1 / 3
    feedback = feedback_of(
        [1.0, 1.0, 1.0],
        [0, 0, 0],
        mask=[[1] * 5, [1] * 5, [1] * 4 + [0]],
        tokens=[[1, 2, 3, 4, 7], [9, 1, 2, 3, 7], [1, 2, 3, 7, 8]],
        values={ENTROPY: torch.tensor([[0.1] * 4 + [1.0], [0.1] * 4 + [1.0], [0.1] * 3 + [1.0, 0.0]])},
    )
    third = 1 / 3
    expected = [[1.0, 1.0, 1.0, third, third], [third, 1.0, 1.0, 1.0, third], [1.0, 1.0, 1.0, third, 1.0]]
    check(advantages(sure_segments(share=0.8, least=3), feedback), expected)
