"""Losses that set the members of a group against each other."""

from __future__ import annotations

from mmgrpo.values import Value, from_reference
from tests.configs.method_steps import Step
from tests.configs.pins.rows import ONE_OF_FOUR, ONE_OF_TWO, SCORED

REFERENCE_LOGPROB = Value("logprob", "reference")

LOSSES: dict[str, tuple[Step, float]] = {
    # scores against the reference 0.4, 0.1, 0, -0.2 of levels 1, 0, 0, -1: the first over each at 0.25 (s - s'), the
    # others over the last at 0.1: log(1 + e^-x), x = 0.075, 0.1, 0.15, 0.03, 0.02, that is 0.656350, 0.644397,
    # 0.620957, 0.678260, 0.683197 over 5; the policy that sampled is 0.1 away in the first row, a quarter of the
    # decisions: 0.001 (e^-0.1 - 1 + 0.1) / 4
    "trpa": (
        Step(
            reward=(1.0, 0.0, 0.0, -1.0),
            lengths=[1] * 4,
            old_logprob=((-1.1,), (-1.0,), (-1.0,), (-1.0,)),
            log_ratio=((0.1,), (0.0,), (0.0,), (0.0,)),
            values={REFERENCE_LOGPROB: [[-1.4], [-1.1], [-1.0], [-0.8]]},
        ),
        3.283161 / 5 + 0.001 * 0.0048374 / 4,
    ),
    # right ones of 2 and 1 tokens, w in the ratio 1 : e^(10 / 8192), so 0.499695 and 0.500305: -1.250153 of mean
    # scores -1 and -1.5; wrong ones -2 and -4 over 10: 10 log((e^-0.2 + e^-0.4) / 2) = -2.950083
    "drpo": (
        Step(
            reward=(1, 1, 0, 0),
            lengths=(2, 1, 1, 1),
            old_logprob=((-0.5, -1.5), (-1.5, 0.0), (-2.0, 0.0), (-4.0, 0.0)),
        ),
        1.250153 - 2.950083,
    ),
    # sums 0.4 and 0 are 0.2 from their mean, 0.2 / 1.2 with the deviation; the advantages 0.5 / 0.7072068
    "deepvideo-r1": (
        Step(
            reward=ONE_OF_TWO,
            log_ratio=((0.3, 0.1), (0.0, 0.0)),
            values={from_reference("k3"): [[0.5, 0.0], [0.0, 0.0]]},
        ),
        0.2919675 + 0.04 * 0.5 / 4,
    ),
    # 10 * 0.005 less A = 0.5 / 0.5001, squared, at 0.05; kl 0.1 * 0.5
    "crd": (
        Step(reward=ONE_OF_TWO, log_ratio=((0.01,), (0.0,)), values={from_reference("velocity_mse"): [[0.5]] * 2}),
        0.0451060 + 0.05,
    ),
    # sums 0.5 of the best, -0.2 of the first of the worst: log(1 + e^-0.07)
    "dno": (Step(reward=ONE_OF_FOUR, log_ratio=SCORED), 0.658760),
    # log(1) and log(0.001) = -6.907755 less sums -2 and -2: +-3.453878 from their mean
    "flow-of-reasoning": (Step(reward=ONE_OF_TWO), 3.453878**2),
}
