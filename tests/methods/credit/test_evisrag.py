"""EVisRAG (RS-GRPO, rewards on scopes): numbers worked out by hand."""

from __future__ import annotations

from math import nan

from tests.configs.method_rows import A_TWO_6
from tests.configs.method_steps import Step, assert_credit

# the first part by the one reward, the second by the other: 1 and 0, and 0.2 and 0.4 of deviation 0.1414214
CREDIT = (
    Step(
        reward=(0, 0),
        lengths=(2, 2),
        parts_of={"evidence": [[1.0, nan], [0.0, nan]], "accuracy": [[nan, 0.2], [nan, 0.4]]},
    ),
    [[A_TWO_6, -0.1 / 0.1414224], [-A_TWO_6, 0.1 / 0.1414224]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("evisrag", *CREDIT)
