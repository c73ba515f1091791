"""S-GRPO (early exit): numbers worked out by hand."""

from __future__ import annotations

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies.branch_points import before_text
from tests.configs.method_steps import Step, assert_credit

# row 1 leaves the thought of row 0 after a token and is wrong, row 2 after two and is right, row 0 is right at its
# end: 0, 1 and 1/2 of mean 1/2; the first token is of all rows, the second of rows 0 and 2
CREDIT = (
    Step(reward=(1, 0, 1), sampled_by=((0, 0, 0), (0, 1, 1), (0, 0, 2))),
    [[0.0, 0.25, 0.0], [0.0, -0.5, -0.5], [0.0, 0.25, 0.5]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("s-grpo--early-reinforcement", *CREDIT)


def test_the_first_of_two_right_exits_earns_most() -> None:
    """Row 1 leaves after one token, row 2 after two: 1 and 1/2 of mean 1/2. Row 0 is wrong; shared tokens average."""
    rows = Step(reward=(0, 1, 1), sampled_by=((0, 0, 0), (0, 1, 1), (0, 0, 2)))
    assert_credit("s-grpo--early-reinforcement", rows, [[0.0, -0.25, -0.5], [0.0, 0.5, 0.5], [0.0, -0.25, 0.0]])


def test_a_room_below_0_raises() -> None:
    before_text(pattern="end", room=0)
    with pytest.raises(ConfigError, match="must be 0 or more, got -1"):
        before_text(pattern="end", room=-1)
