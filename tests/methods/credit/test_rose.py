"""ROSE (semantically diverse exploration): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# rows of 1, 0 and 1, row 1 from row 0 after a token: values 2/3 of the prompt, 1/2 there. Row 2 is right after two
# tokens, row 0 after three: it loses a third of what it has
CREDIT = (
    Step(reward=(1, 0, 1), drawn_by=((0, 0, 0), (0, 1, 1), (2, 2, 2)), lengths=(3, 3, 2)),
    [[-1 / 6 - 1 / 18, 1 / 2 - 1 / 6, 1 / 2 - 1 / 6], [-1 / 6, -1 / 2, -1 / 2], [1 / 3, 1 / 3, 0]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("rose", *CREDIT)
