"""BranchGRPO: numbers worked out by hand."""

from __future__ import annotations

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.methods.sampling.branch_grpo import rounds_of
from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_credit

# decision 0 parts two and two, of means 0.5 and 0: +-0.25 / 0.353553, which two samples share; then 0.75 / 0.5
CREDIT = (
    Step(reward=ONE_OF_FOUR, states=((0, 1), (0, 1), (0, 3), (0, 3))),
    [[0.353553, 1.5], [0.353553, -0.5], [-0.353553, -0.5], [-0.353553, -0.5]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("branch-grpo", *CREDIT)


def test_rounds_of_branching_that_make_a_group() -> None:
    assert [rounds_of(size, 2) for size in (1, 2, 8, 12)] == [0, 1, 3, None]
    with pytest.raises(ConfigError, match="got factor 1"):
        rounds_of(8, 1)
