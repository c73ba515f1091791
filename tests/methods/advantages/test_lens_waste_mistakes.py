"""LENS (likelihood estimation with negative samples): numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_steps import Step, assert_credit

# p = 0.5 and 0.25 in both groups. Mixed: D = max(1 / mean(2, 0), 1) = 1, c = 1 and -0.25 / 0.75 / 2 = -1 / 6,
# 7 / 12 over 7 / 6 / sqrt 2 + 1e-4. All wrong: D = 1, c = -1 / 2 and -1 / 6, a quarter of -1 / 6 and 1 / 6
CREDIT = (
    Step(
        reward=(1, 0, 0, 0),
        groups=(0, 0, 1, 1),
        old_logprob=[[log(0.25), 0.0], [log(0.25), log(0.25)]] * 2,
    ),
    [[0.7070211] * 2, [-0.7070211] * 2, [-0.0416667] * 2, [0.0416667] * 2],
)


def test_advantages_of_the_method() -> None:
    assert_credit("lens--waste-mistakes", *CREDIT)
