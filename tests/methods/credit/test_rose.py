"""ROSE (semantically diverse exploration): numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mmgrpo.policies.sampling import semantic_entropy

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Branch, Setting
from mmgrpo.maths.strategies.branch_points import Row, height, meanings_part
from mmgrpo.methods.credit.rose import branch_sequentially, shorter_branches
from tests.configs.method_steps import Step, assert_credit
from tests.maths.round_rows import round_of

# rows of 1, 0 and 1, row 1 from row 0 after a token: values 2/3 of the prompt, 1/2 there. Row 2 is right after two
# tokens, row 0 after three: it loses a third of what it has
CREDIT = (
    Step(reward=(1, 0, 1), sampled_by=((0, 0, 0), (0, 1, 1), (2, 2, 2)), lengths=(3, 3, 2)),
    [[-1 / 6 - 1 / 18, 1 / 2 - 1 / 6, 1 / 2 - 1 / 6], [-1 / 6, -1 / 2, -1 / 2], [1 / 3, 1 / 3, 0]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("rose", *CREDIT)


FOUR = Setting(step=0, num_prompts=4, group_size=2)


def test_semantic_entropy_is_low_for_tokens_of_one_meaning() -> None:
    """ROSE's -cosine_weighted_entropy * standard_entropy: two tokens of 1/2, H = log 2, 2 p_0 p_1 cos = cos / 2."""
    even_MV = torch.zeros(1, 2)
    for other, alike in (([2.0, 0.0], 1.0), ([0.0, 3.0], 0.0), ([-1.0, 0.0], -1.0)):
        result_M = semantic_entropy(even_MV, torch.tensor([[1.0, 0.0], other]))
        assert result_M.item() == pytest.approx(-alike / 2 * 0.6931472, abs=1e-6)
    # of three tokens the two likeliest alone: p = 0.5, 0.3, H = 0.3465736 + 0.3611918, -0.3 H of vectors alike
    three_MV, same_VD = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.ones(3, 2)
    assert semantic_entropy(three_MV, same_VD, num=2).item() == pytest.approx(-0.3 * 0.7077654, abs=1e-6)


def test_next_branch_starts_at_the_highest_entropy_of_all_rows() -> None:
    row = Row(num_decisions=4, value_T=torch.tensor([9.0, -2.0, -0.5, -1.0]))
    places = meanings_part()(row)
    assert (places, height(row, places), height(row, [])) == ([2, 3, 1], -0.5, float("-inf"))
    three = replace(FOUR, num_prompts=1, group_size=3)
    strategy, rounds = branch_sequentially(from_root=0.0), []
    for result, high in (((2, 1), -0.5), ((3,), -0.5)):
        (request,) = strategy.ask(rounds, three)
        assert request.members == (len(rounds),)
        rounds.append(replace(round_of([request], [0]), places_B=[result], heights_B=[high]))
    (last,) = strategy.ask(rounds, three)  # of equal ones the first row's
    assert (rounds[1].requests[0].continues, last.continues) == (Branch(0, 2), Branch(0, 2))
    higher = replace(rounds[1], heights_B=[-0.4])
    assert strategy.ask([rounds[0], higher], three)[0].continues == Branch(1, 3)
    assert branch_sequentially(from_root=1.0).ask(rounds, three)[0].continues is None
    assert strategy.ask([replace(rounds[0], places_B=[()])], three)[0].continues is None
    assert strategy.ask([*rounds, rounds[1]], three) == ()
    with pytest.raises(ConfigError, match="with a probability"):
        branch_sequentially(from_root=2.0)
    with pytest.raises(ConfigError, match="a power above 0"):
        shorter_branches(power=0.0)
