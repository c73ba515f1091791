"""SPO-tree (segments): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# values of the prompt 3/4, of its segments 1 and 1/2, of the second's ends 1 and 0
CREDIT = (
    Step(
        reward=(1, 1, 1, 0),
        states=((0, 1, 2), (0, 1, 3), (0, 4, 5), (0, 4, 6)),
        old_logprob=[[-1.0] * 3] * 4,
    ),
    [[0.25, 0.0, 0.0]] * 2 + [[-0.25, 0.5, 0.5], [-0.25, -0.5, -0.5]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("spo--segment-policy", *CREDIT)
