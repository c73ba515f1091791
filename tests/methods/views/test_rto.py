"""RTO (reinforced token optimization): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import of_view
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

# 0.05 (0.4, -2) held at -0.05 is 0.02, -0.05, so -0.03 and -0.05 to come; the other's 0, -0.025 is -0.025 twice;
# less their means of -0.0275 and -0.0375. Of the other the first token is e times likelier than the reference finds
# it: -0.01 there, of a mean of -0.005
CREDIT = (
    Step(
        reward=ONE_OF_TWO,
        old_logprob=((-1.0, -1.0), (0.0, -1.0)),
        values={
            of_view("preferred"): [[-0.6, -3.0], [-1.0, -1.5]],
            of_view("reference"): [[-1.0, -1.0], [-1.0, -1.0]],
        },
    ),
    [[0.5 - 0.0025 + 0.005, 0.5 - 0.0125], [-0.5 + 0.0025 - 0.005, -0.5 + 0.0125]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("rto", *CREDIT)
