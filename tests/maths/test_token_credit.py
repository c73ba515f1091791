"""Credit by common tokens: values by hand, padding and row order."""

from __future__ import annotations

from dataclasses import replace

import torch

from mmgrpo.methods.credit.gtpo import conflict_tokens, conflicts
from mmgrpo.methods.credit.lambda_grpo import prefix_count
from mmgrpo.methods.credit.tempo import prefix_tree
from mmgrpo.methods.memory.avatar import both_ends
from mmgrpo.values import ENTROPY
from tests.maths.feedback_rows import feedback_of

A, B, C, D, E, X = range(6)


def test_a_prefix_tree_gives_credit_where_it_branches():
    # V: root 1/2, a 2/3, ab 1, ac 0, d 0, de 0: corrections a 1/6, b 1/3, c -2/3, d -1/2, e 0 (TEMPO)
    feedback = feedback_of([1, 1, 0, 0], [0] * 4, tokens=[[A, B], [A, B], [A, C], [D, E]])
    plain = prefix_tree(normalize=False)
    result_BT = plain.assign(feedback, torch.zeros(4, 2))
    expected = torch.tensor([[1 / 6, 1 / 3], [1 / 6, 1 / 3], [1 / 6, -2 / 3], [-1 / 2, 0.0]])
    torch.testing.assert_close(result_BT, expected)
    torch.testing.assert_close(result_BT.sum(1), torch.tensor([0.5, 0.5, -0.5, -0.5]))
    # the deviation of the rewards is sqrt(1 / 3)
    torch.testing.assert_close(prefix_tree(eps=0.0).assign(feedback, torch.zeros(4, 2)), expected * 3**0.5)
    advantage_BT = torch.randn(4, 2)
    half = prefix_tree(weight=0.5, normalize=False)
    torch.testing.assert_close(half.assign(feedback, advantage_BT), advantage_BT + 0.5 * expected)
    assert torch.equal(prefix_tree(weight=0.0).assign(feedback, advantage_BT), advantage_BT)


def test_a_prefix_tree_gives_the_numbers_of_tempos_code():
    # five rows of which the fourth ends early, through compute_tempo_outcome_advantage of fatebreaker/tempo
    tokens = [[1, 2, 1, 2], [1, 2, 2, 1], [1, 2, 1, 1], [2, 1, 1, 9], [1, 1, 2, 2]]
    feedback = feedback_of(
        [1, 0, 0.5, 1, 0], [0] * 5, tokens=tokens, mask=[[1] * 4, [1] * 4, [1] * 4, [1, 1, 1, 0], [1] * 4]
    )
    reward_B = feedback.reward_B
    group_B = (reward_B - reward_B.mean()) / (reward_B.std() + 1e-6)
    result_BT = prefix_tree(eps=1e-6).assign(feedback, group_B[:, None].expand(5, 4))
    expected = [
        [0.7499985098838806, 1.2499974966049194, 1.4999970197677612, 1.4999970197677612],
        [-1.2499974966049194, -0.7499985098838806, -1.9999959468841553, -0.9999979734420776],
        [-0.2499994933605194, 0.2499994933605194, 0.4999989867210388, -0.4999989867210388],
        [1.9999959468841553, 0.9999979734420776, 0.9999979734420776, 0.0],
        [-1.2499974966049194, -1.7499964237213135, -0.9999979734420776, -0.9999979734420776],
    ]
    torch.testing.assert_close(
        result_BT.where(feedback.mask_BT, 0.0), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6
    )


def test_a_member_alone_has_no_spread_to_be_divided_by():
    feedback = feedback_of([1, 0], [0, 1], tokens=[[A, B], [A, C]])
    assert not prefix_tree().assign(feedback, torch.zeros(2, 2)).any()


def test_a_member_without_a_reward_is_in_no_mean():
    # without the third member V: root 2/3, a 1, d 0
    feedback = feedback_of(
        [1, 1, float("nan"), 0], [0] * 4, tokens=[[A, B], [A, B], [A, C], [D, E]], valid=[True, True, False, True]
    )
    result_BT = prefix_tree(normalize=False).assign(feedback, torch.zeros(4, 2))
    expected = torch.tensor([[1 / 3, 0.0], [1 / 3, 0.0], [1 / 3, 0.0], [-2 / 3, 0.0]])
    torch.testing.assert_close(result_BT, expected)


def test_both_ends_count_more():
    # t / (L - 1) = 0, 1/2, 1 of three kept decisions: 1 + w, 1, 1 + w; four: (1/3)^2 inside; one alone is an end
    feedback = feedback_of([1.0] * 3, [0] * 3, mask=[[1, 0, 1, 1, 0], [1, 1, 1, 1, 0], [0, 1, 0, 0, 0]])
    result_BT = both_ends(weight=0.9).assign(feedback, torch.full((3, 5), 2.0)).where(feedback.mask_BT, 0.0)
    expected = [[3.8, 0.0, 2.0, 3.8, 0.0], [3.8, 2.2, 2.2, 3.8, 0.0], [0.0, 3.8, 0.0, 0.0, 0.0]]
    torch.testing.assert_close(result_BT, torch.tensor(expected))


def test_a_shared_beginning_counts_once():
    # a is shared by 3, ab by 2; the shorter [a b] of the second row ends there; groups are apart
    tokens = [[A, B, C], [A, B, E], [A, C, C], [A, B, C]]
    feedback = feedback_of([1, 0, 0, 1], [0, 0, 0, 1], tokens=tokens, mask=[[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]])
    result_BT = prefix_count().assign(feedback, torch.full((4, 3), 6.0))
    assert result_BT.where(feedback.mask_BT, 0.0).tolist() == [[2, 3, 6], [2, 3, 0], [2, 6, 6], [6, 6, 6]]


def test_conflicts_double_the_better_and_spare_the_worse():
    # [a b c], [a x c]: factors 2, 1, 2 and 0, 1, 0; two tokens in conflict each halve the total (GTPO)
    feedback = feedback_of([1, 0], [0, 0], tokens=[[A, B, C], [A, X, C]], values={ENTROPY: torch.full((2, 3), 0.5)})
    advantage_BT = torch.tensor([[1.0], [-1.0]]).expand(2, 3)
    result_BT = conflict_tokens(entropy_weight=0.0).assign(feedback, advantage_BT)
    torch.testing.assert_close(result_BT, torch.tensor([[1.0, 0.5, 1.0], [0.0, -0.5, 0.0]]))
    # entropies of 0.5 lower A by 0.05; above the limit the advantage is 0
    result_BT = conflict_tokens().assign(feedback, advantage_BT)
    torch.testing.assert_close(result_BT, torch.tensor([[0.95, 0.475, 0.95], [0.0, -0.525, 0.0]]))
    sure = replace(feedback, values={ENTROPY: torch.tensor([[0.7] * 3, [0.1] * 3])})
    assert conflict_tokens(entropy_weight=0.0).assign(sure, advantage_BT)[0].tolist() == [0.0, 0.0, 0.0]


def test_conflicts_are_runs_from_either_end_counted_in_kept_tokens():
    # lengths 3 and 2: from the start a; from the end c, then b against a
    token_GT = torch.tensor([[A, B, C], [A, C, X]])
    mask_GT = torch.tensor([[True, True, True], [True, True, False]])
    sign_G = torch.tensor([1.0, -1.0])
    assert conflicts(token_GT, mask_GT, sign_G, from_end=False).int().tolist() == [[1, 0, 0], [1, 0, 0]]
    assert conflicts(token_GT, mask_GT, sign_G, from_end=True).int().tolist() == [[0, 0, 1], [0, 1, 0]]
    # a later match after a break is none, and so is one that only members of one sign have
    broken_GT = torch.tensor([[A, B, C, D], [A, X, C, E], [A, B, C, X]])
    result_GT = conflicts(broken_GT, torch.ones(3, 4, dtype=torch.bool), torch.tensor([1.0, -1.0, 1.0]), from_end=False)
    assert result_GT.int().tolist() == [[1, 0, 0, 0]] * 3


def test_equal_samples_are_in_conflict_from_both_ends():
    feedback = feedback_of([1, 0], [0, 0], tokens=[[A, B], [A, B]], values={ENTROPY: torch.zeros(2, 2)})
    advantage_BT = torch.tensor([[1.0], [-1.0]]).expand(2, 2)
    # 2 * 2 over two tokens in conflict
    assert conflict_tokens().assign(feedback, advantage_BT).tolist() == [[2.0, 2.0], [0.0, 0.0]]
