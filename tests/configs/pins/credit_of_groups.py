"""What samples and decisions are worth beside the rest of their group."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, nan

from mmgrpo.values import PEERS, from_reference
from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_FOUR, A_TREE, A_TWO, A_TWO_6, ONE_OF_FOUR, ONE_OF_TWO

LOW_BUT_TWO = [0.1] * 6 + [1.0, 2.0]
ALIKE, OTHER, ANOTHER = (list(range(start, start + 8)) for start in (1, 11, 21))
A_TREE_6 = 0.5 / 0.5773513  # rewards 1, 1, 0, 0; eps 1e-6

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # the second place is the farthest: 1.7
    "tw-grpo": (
        Step(reward=ONE_OF_TWO, values={PEERS: [[1.0, 3.0], [1.0, 3.0]]}),
        [[A_TWO, 1.7 * A_TWO], [-A_TWO, -1.7 * A_TWO]],
    ),
    # r - V
    "pvpo": (
        Step(reward=(1, 0, 1), groups=(0, 0, 1), lengths=[1] * 3, columns={"static_value": (0.25, 0.25, 0.75)}),
        [[0.75], [-0.25], [0.25]],
    ),
    # 10 is beyond the quartiles 1.2 and 1.6 by more than 0.6; the others: mean 1.3, deviation sqrt(0.05) = 0.2236068,
    # z = -1.341641, -0.447214, 0.447214, 1.341641 and 38.9; A of two right ones in five 0.6 / 0.5477236
    "ppl": (
        Step(reward=(1, 0, 0, 0, 1), old_logprob=[[-1.0], [-1.2], [-1.4], [-1.6], [-10.0]]),
        [
            [1.0954431 * 1.01341641],
            [-0.7302954 * 1.00447214],
            [-0.7302954 * 0.99552786],
            [-0.7302954 * 0.98658359],
            [1.0954431 * 0.8],
        ],
    ),
    # 0.1 sigmoid of -7.5, -3.75, 0 and 3.75
    "ppl-position": (
        Step(reward=ONE_OF_TWO, lengths=(4, 4), number=250),
        [
            [A_TWO_6 + 0.0000552779, A_TWO_6 + 0.0022977370, A_TWO_6 + 0.05, A_TWO_6 + 0.0977022630],
            [-A_TWO_6 - 0.0000552779, -A_TWO_6 - 0.0022977370, -A_TWO_6 - 0.05, -A_TWO_6 - 0.0977022630],
        ],
    ),
    # answers a, a, b, c: S = (log 2 + 2 log 4) / 3 = 5 / 3 log 2 of at most 2 log 2: 1 - 0.02 * 5 / 6
    "seed-grpo": (
        Step(reward=(1, 1, 0, 0), lengths=[1] * 4, said={"answers": (0.5, 0.5, 0.25, 0.25)}),
        [[0.4916667], [0.4916667], [-0.4916667], [-0.4916667]],
    ),
    # means 0.5, 1, 0: g = 0, 1, -1 over 1 + 2e-6; w = sigmoid(0) for the right one of a group of 1 bit, sigmoid(-5) =
    # 0.0066929 for those of a group of one answer, 0 for what is wrong
    "copo": (
        Step(
            reward=(1, 0, 1, 1, 0, 0),
            groups=(0, 0, 1, 1, 2, 2),
            lengths=[1] * 6,
            said={"answers": (0.5, 0.5, 1.0, 1.0, 0.5, 0.5)},
        ),
        [[A_TWO_6 / 2], [0.0], [0.993305], [0.993305], [-0.999998], [-0.999998]],
    ),
    # p = 0.5 and 0.25 in both groups. Mixed: D = max(1 / mean(2, 0), 1) = 1, c = 1 and -0.25 / 0.75 / 2 = -1 / 6,
    # 7 / 12 over 7 / 6 / sqrt 2 + 1e-4. All wrong: D = 1, c = -1 / 2 and -1 / 6, a quarter of -1 / 6 and 1 / 6
    "lens--waste-mistakes": (
        Step(
            reward=(1, 0, 0, 0),
            groups=(0, 0, 1, 1),
            old_logprob=[[log(0.25), 0.0], [log(0.25), log(0.25)]] * 2,
        ),
        [[0.7070211] * 2, [-0.7070211] * 2, [-0.0416667] * 2, [0.0416667] * 2],
    ),
    # of five right ones the two of the best steps, of three wrong ones the two of the worst
    "prof": (
        Step(
            reward=(1, 1, 1, 1, 1, 0, 0, 0),
            parts=[[0.7, 0.7], [1.0, 0.8], [0.5, 0.5], [0.6, 1.0], [0.1, 0.3], [0.4, 0.4], [0.3, 0.1], [0.2, 0.4]],
        ),
        [[0.0] * 2, [A_TREE] * 2, [0.0] * 2, [A_TREE] * 2, [0.0] * 2, [0.0] * 2, [-A_TREE] * 2, [-A_TREE] * 2],
    ),
    # 0.9 - 0.9, 0.9 - 0.5, 0.5 and 0.2 - 0.4, 0.4 - 0.4, 0.4 on top of the outcome
    "clip-delta-prm-shaping": (
        Step(reward=ONE_OF_TWO, parts=[[0.9, 0.9, 0.5], [0.2, 0.4, 0.4]]),
        [[A_TWO, A_TWO + 0.4, A_TWO + 0.5], [-A_TWO - 0.2, -A_TWO, -A_TWO + 0.4]],
    ),
    # the first part by the one reward, the second by the other: 1 and 0, and 0.2 and 0.4 of deviation 0.1414214
    "evisrag": (
        Step(
            reward=(0, 0),
            lengths=(2, 2),
            parts_of={"evidence": [[1.0, nan], [0.0, nan]], "accuracy": [[nan, 0.2], [nan, 0.4]]},
        ),
        [[A_TWO_6, -0.1 / 0.1414224], [-A_TWO_6, 0.1 / 0.1414224]],
    ),
    # hits of the first items 1, 0, 0, 0 and of the second ones 0, 1, 1, 0
    "rank-grpo": (
        Step(reward=[0] * 4, lengths=[2] * 4, parts_of={"items": [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]}),
        [[A_FOUR, -A_TREE], [-A_FOUR / 3, A_TREE], [-A_FOUR / 3, A_TREE], [-A_FOUR / 3, -A_TREE]],
    ),
    # the limit is the seventh entropy of eight. Two right ones share their six sure tokens, 2 / 2; the wrong ones share
    # nothing, 1 / 2; in the second group the right and the wrong one share them: 0. The eighth token keeps A
    "less": (
        Step(
            reward=(1, 1, 0, 0, 1, 0),
            groups=(0, 0, 0, 0, 1, 1),
            tokens=[ALIKE, ALIKE, OTHER, ANOTHER, ALIKE, ALIKE],
            entropy=[LOW_BUT_TWO] * 6,
        ),
        [
            *[[A_TREE_6] * 6 + [A_TREE_6 / 2, A_TREE_6]] * 2,
            *[[-A_TREE_6 / 2] * 7 + [-A_TREE_6]] * 2,
            [0.0] * 6 + [A_TWO_6] * 2,
            [0.0] * 6 + [-A_TWO_6] * 2,
        ],
    ),
}

LOSSES: dict[str, tuple[Step, float]] = {
    # A = 1.5 and -0.5; the last sample is 1,000 longer than the right one: times 2 - 1.00001^-1000 = 1.0099501; one of
    # four is right: its divergence counts 1 - e^(-e / 4) = 0.4931654; 1,004 decisions
    "apo": (
        Step(
            reward=ONE_OF_FOUR,
            lengths=(1, 1, 1, 1001),
            values={from_reference("k3"): [[1000.0] + [0.0] * 1000, *[[0.0] * 1001] * 3]},
        ),
        (-1.5 + 0.5 + 0.5 + 1001 * 0.5 * 1.0099501 + 0.001 * 1000 * 0.4931654) / 1004,
    ),
    # A = 0.5 at log 1.1 - 1, and -0.5 at a ratio below 0.8, which is done
    "rec": (
        Step(reward=ONE_OF_TWO, log_ratio=((log(1.1),), (log(0.5),))),
        0.5 * (1 - 0.0953102) / 2,
    ),
}

ELSEWHERE = {"ead"}
"""In ``tests/policies/test_language_sampling.py``: it changes how tokens are drawn."""
