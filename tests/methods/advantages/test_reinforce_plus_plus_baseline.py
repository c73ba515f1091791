"""REINFORCE++-baseline: numbers of verl's code."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# Less the groups' means: 0.5 on two tokens, -0.5 on one, 0 on three, of mean 1/12. The group of equal rewards trains
# too; compute_reinforce_plus_plus_baseline_outcome_advantage of volcengine/verl returns these numbers.
CREDIT = (
    Step(reward=(1.0, 0.0, 1.0, 1.0), groups=(0, 0, 1, 1), lengths=(2, 1, 1, 2)),
    [
        [1.1070185691, 1.1070185691],
        [-1.5498259959, 0.0],
        [-0.2214037134, 0.0],
        [-0.2214037134, -0.2214037134],
    ],
)


def test_advantages_of_the_method() -> None:
    assert_credit("reinforce-plus-plus-baseline", *CREDIT)
