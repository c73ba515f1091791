"""Methods whose groups see several prompts or given answers, and those that choose prompts by what they earned."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_FOUR, A_TWO, A_TWO_6, ONE_OF_FOUR, ONE_OF_TWO

PAIR = Step(reward=ONE_OF_TWO, lengths=[1, 1])
GIVEN = (0, 0, 2)

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # over all four 0.75 / 0.5 and -0.25 / 0.5; of the first wording 0.5 / 0.7071068, of the second nothing
    "r1-sharevl": (
        Step(reward=ONE_OF_FOUR, lengths=[1] * 4),
        [[1.499997 + A_TWO_6], [-0.499999 - A_TWO_6], [-0.499999], [-0.499999]],
    ),
    # sheets of 5 and 0: quantiles 1 and 4.5. Of 5: (4 - 0.5 + 1 - 4.5) / 0.7 = 0. Of 0: R = (1 - 4.5) / 0.700001 =
    # -4.999993, C = -1 / 0.200001 = -4.999975, (1.5 C + R) / 2.5 = -4.999982, / 3.535535 / 0.707108 = -1.999990
    "riskpo": (
        Step(reward=ONE_OF_TWO * 5, groups=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4], lengths=[1] * 10),
        [[0.0], [-1.999990]] * 5,
    ),
    "trimpi": (Step(reward=ONE_OF_FOUR, lengths=[1] * 4), [[A_FOUR], *[[-A_FOUR / 3]] * 3]),
    # mean 0.75, deviation sqrt(9.5 / 7) = 1.164965; parts of mean 2, 1, 0 and 0, expected are 4 cos(3.1416 n / 8192)
    "hbpo": (
        Step(reward=(3, 1, 2, 0, 0, 0, 0, 0), lengths=[1] * 8),
        [
            [2.25 / 1.164966 - 2 * 1.9231408],
            [0.25 / 1.164966 - 2 * 1.9231408],
            [1.25 / 1.164966 - 2 * 2.6955167],
            [-0.75 / 1.164966 - 2 * 2.6955167],
            *[[-0.75 / 1.164966 - 2 * 2.8284219]] * 2,
            *[[-0.75 / 1.164966 - 2 * 2.2222733]] * 2,
        ],
    ),
    # from 0, 1, 2, 3 on there succeed 1/2, 2/3, 1/2, 1: -1/4, 2/3, -1/4, 1/2, less their mean 1/6
    "tree-opo": (Step(reward=(0, 1, 0, 1), lengths=[1] * 4), [[-5 / 12], [1 / 2], [-5 / 12], [1 / 3]]),
    # the label's 1 becomes the mean 0.5 of the others: mean 0.5, deviation sqrt(1 / 4)
    "visurf": (
        Step(reward=(1, 0, 1, 0, 1), lengths=[1] * 5, origins=(0, 0, 0, 0, 2)),
        [[0.5 / 0.5001], [-0.5 / 0.5001]] * 2 + [[0.0]],
    ),
    # drawn and remembered apart; 1 + (2 t - 1)^2 at 0, 1 / 2 and 1
    "avatar": (
        Step(reward=(1, 0, 1, 0), lengths=[3] * 4, origins=(0, 0, 1, 1)),
        [[2 * A_TWO, A_TWO, 2 * A_TWO], [-2 * A_TWO, -A_TWO, -2 * A_TWO]] * 2,
    ),
    "cures": (PAIR, [[A_TWO_6], [-A_TWO_6]]),
    "mmr1": (PAIR, [[A_TWO_6], [-A_TWO_6]]),
    "srpo--cross-domain": (PAIR, [[A_TWO], [-A_TWO]]),
    "evocot": (PAIR, [[A_TWO], [-A_TWO]]),
    "g2rpo-a": (PAIR, [[A_TWO], [-A_TWO]]),
}

LOSSES: dict[str, tuple[Step, float]] = {
    # A = -1 / 3, -1 / 3, 2 / 3 over 0.5774503; ratios of samples e^0.001, 1 and e^0.0015, held at 1.0004
    "gcpo": (
        Step(reward=(0, 0, 1), log_ratio=((0.001, 0.001), (0.0, 0.0), (0.002, 0.001)), origins=GIVEN),
        ((exp(0.001) + 1) / 3 - 1.0004 * 2 / 3) / 0.5774503 / 3,
    ),
    # A = -1 / 2 twice, 1 / 2 twice; a ratio of 12 counts as 10; answers of p = 0.9 and 0.4 count 0.9 / 1 and 0.4 / 0.5
    "ampo": (
        Step(
            reward=(0, 0, 1, 1),
            old_logprob=((-1.0,), (-1.0,), (log(0.9),), (log(0.4),)),
            log_ratio=((log(12.0),), (0.0,), (0.0,), (0.0,)),
            entropy=((0.3,),) * 4,
            origins=(0, 0, 2, 2),
        ),
        ((10 + 1 - 0.9 - 0.8) / 2 - 0.001 * 1.2) / (4 * 8192),
    ),
    # A = -1 / 3 twice, 2 / 3; a ratio of 1.5 is not held, and of the remembered one 0.4 / 0.5
    "exgrpo": (
        Step(
            reward=(0, 0, 1),
            log_ratio=((log(1.5),), (0.0,), (log(0.4),)),
            entropy=((0.3,),) * 3,
            origins=(0, 0, 1),
        ),
        ((1.5 + 1) / 3 - 0.8 * 2 / 3 - 0.001 * 0.9) / (3 * 8192),
    ),
}

ELSEWHERE = {"vcrl"}
