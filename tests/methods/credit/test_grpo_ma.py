"""GRPO-MA: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit

# thoughts of 1 and 1/2, +-0.25 / 0.3535534; answers of 1, 1, 1 and 0, of mean 3/4 and deviation 1/2
CREDIT = (
    Step(reward=(1, 1, 1, 0), states=((0, 1, 2), (0, 1, 3), (0, 4, 5), (0, 4, 6))),
    [[0.7071068, 0.5, 0.5]] * 2 + [[-0.7071068, 0.5, 0.5], [-0.7071068, -1.5, -1.5]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("grpo-ma", *CREDIT)
