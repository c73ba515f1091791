"""MAPO: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.methods.advantages.mapo import mapo_advantage
from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit

# l = 1 - 4 / 4 * 3 / 4 = 0.25, population deviation 0.4330127: 0.75 * 0.75 / 0.4331127 + 0.25 * 0.75 / 0.25
CREDIT = (Step(reward=ONE_OF_FOUR, lengths=[1] * 4), [[2.048737], *[[-0.682912]] * 3])


def test_advantages_of_the_method() -> None:
    assert_credit("mapo", *CREDIT)


def test_each_group_has_its_own_mean_and_certainty() -> None:
    """Of 2, 2, 0, 0 half are right: l = 0, (2 - 1) / 1.0001. Of 1, 1, 1, 3 all are: l = 1, (r - 1.5) / 1.5."""
    advantage_PG = mapo_advantage(torch.tensor([[2.0, 2.0, 0.0, 0.0], [1.0, 1.0, 1.0, 3.0]]))
    assert advantage_PG[0].tolist() == pytest.approx([0.99990001] * 2 + [-0.99990001] * 2)
    assert advantage_PG[1].tolist() == pytest.approx([-1 / 3] * 3 + [1.0])
