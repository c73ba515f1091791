"""Methods in which views of the policy's own teach or judge, and pairs of answers."""

from __future__ import annotations

from math import log

from mmgrpo.values import of_view, seen_in
from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_TWO, A_TWO_6, ONE_OF_TWO

CREDIT = {
    # of the first 0.4 and 0 above the merged weights, a mean of 0.2; of the other none
    "gtr-turbo": (
        Step(
            reward=ONE_OF_TWO,
            old_logprob=((-1.0, -1.0), (-1.0, -1.0)),
            values={of_view("reference"): [[-1.4, -0.5], [-0.5, -0.5]]},
        ),
        [[A_TWO - 0.2] * 2, [-A_TWO] * 2],
    ),
    # 0.05 (0.4, -2) held at -0.05 is 0.02, -0.05, so -0.03 and -0.05 to come; the other's 0, -0.025 is -0.025 twice;
    # less their means of -0.0275 and -0.0375. Of the other the first token is e times likelier than the reference finds
    # it: -0.01 there, of a mean of -0.005
    "rto": (
        Step(
            reward=ONE_OF_TWO,
            old_logprob=((-1.0, -1.0), (0.0, -1.0)),
            values={
                of_view("preferred"): [[-0.6, -3.0], [-1.0, -1.5]],
                of_view("reference"): [[-1.0, -1.0], [-1.0, -1.0]],
            },
        ),
        [[0.5 - 0.0025 + 0.005, 0.5 - 0.0125], [-0.5 + 0.0025 - 0.005, -0.5 + 0.0125]],
    ),
    # r = 2: u = log(2) / 2 = 0.346574, less than A / 2 = 0.353553, and 0.4 * 0.5; of the other u = 0, and 0.8 is more
    "vogue": (
        Step(
            reward=ONE_OF_TWO,
            old_logprob=((-1.0,), (-1.0,)),
            entropy=((0.5,), (2.0,)),
            values={of_view("raw"): [[log(2.0) - 1.0], [-1.0]]},
        ),
        [[A_TWO_6 + 0.546574], [-A_TWO_6 / 2]],
    ),
    # of a pair the reward less the other's
    "p3o": (Step(reward=(0.75, 0.5)), [[0.25, 0.25], [-0.25, -0.25]]),
}

LOSSES: dict[str, tuple[Step, float]] = {
    # the right one 0.5 at a ratio of 1.4, held at 1.28; of the wrong one (-1 + 0.5) (-1); over two tokens
    "srpo--unifying-group": (
        Step(
            reward=ONE_OF_TWO,
            lengths=[1, 1],
            log_ratio=((log(1.4),), (0.0,)),
            values={of_view("peer"): [[0.0], [-0.5]], seen_in("peer"): [[0.0], [1.0]]},
        ),
        (-0.64 + 0.5) / 2,
    ),
}
