"""REINFORCE++: numbers of verl's code."""

from __future__ import annotations

from mmgrpo.values import of_view
from tests.configs.method_steps import Step, assert_credit

# Less 0.001 times the log-ratios to come (2 and 5, 5; 1): 0.993, 0.995 and -0.001. The tokens of both prompts are
# standardized together; compute_reinforce_plus_plus_outcome_advantage of volcengine/verl returns these numbers.
CREDIT = (
    Step(
        reward=(1.0, 0.0),
        groups=(0, 1),
        lengths=(2, 1),
        old_logprob=((-1.0, -2.0), (-0.5, 0.0)),
        values={of_view("reference"): [[-3.0, -7.0], [-1.5, 0.0]]},
    ),
    [[0.5756086386, 0.5790901424], [-1.1546987695, 0.0]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("reinforce-plus-plus", *CREDIT)
