"""PPO: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import VALUE
from tests.configs.method_steps import Step, assert_credit

# reward less value: 0.5, 0.4, -0.5, -0.4, of mean 0; squares 0.82 over 3, whose root is 0.5228129
CREDIT = (
    Step(reward=(1.0, 0.0), groups=(0, 1), values={VALUE: [[0.5, 0.6], [0.5, 0.4]]}),
    [[0.9563650, 0.7650920], [-0.9563650, -0.7650920]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("ppo", *CREDIT)
