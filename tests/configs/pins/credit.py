"""What decisions are worth."""

from __future__ import annotations

from collections.abc import Sequence

from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_FOUR, A_TREE, A_TWO, A_TWO_6, ONE_OF_FOUR, ONE_OF_TWO, TEACHER, TREE

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # means 0.25, 0.5, 0.75: alpha = beta = 1.5, and 1 / Beta(0.25; 1.5, 1.5) = 0.906900, 1 / Beta(0.5; ..) = 0.785398
    "bnpo": (
        Step(reward=(1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0), groups=[0] * 4 + [1] * 4 + [2] * 4, lengths=[1] * 12),
        [[0.680175], *[[-0.226725]] * 3, *[[0.392699]] * 2, *[[-0.392699]] * 2, *[[0.226725]] * 3, [-0.680175]],
    ),
    # (1 - 0.25)^0.5 = 0.8660254
    "f-grpo": (
        Step(reward=ONE_OF_FOUR, lengths=[1] * 4),
        [[0.8660254 * A_FOUR], *[[-0.8660254 * A_FOUR / 3]] * 3],
    ),
    # of prompts never seen 0.5 is expected: 0.5 and -0.5, of deviation 0.7071068
    "spo": (Step(reward=ONE_OF_TWO, groups=[0, 1], lengths=[1, 1]), [[A_TWO], [-A_TWO]]),
    # l = 1 - 4 / 4 * 3 / 4 = 0.25, population deviation 0.4330127: 0.75 * 0.75 / 0.4331127 + 0.25 * 0.75 / 0.25
    "mapo": (Step(reward=ONE_OF_FOUR, lengths=[1] * 4), [[2.048737], *[[-0.682912]] * 3]),
    # one of four right, a tenth of the verdicts wrong: t = 0.15 / 0.8, sqrt(0.15234375 / 0.1875) = 0.9013878, times 0.8
    "stable-grpo": (Step(reward=ONE_OF_FOUR, lengths=[1] * 4), [[0.7211103 * 1.5], *[[-0.7211103 * 0.5]] * 3]),
    # 0.4 + 1.1 / (1 + e^(10 (0.25 - 0.75))) = 1.4926379 for the right one, 0.4 + 1.1 / 2 for the wrong ones
    "grpo-lead": (Step(reward=(1.0, -1.0, -1.0, -1.0), lengths=[1] * 4), [[1.4926379 * 1.5], *[[-0.95 * 0.5]] * 3]),
    # the reward itself, where the rewards of a group differ
    "reinforce-rej": (
        Step(reward=(1, 0, 1, 1, 0, 0), groups=(0, 0, 1, 1, 2, 2), lengths=[1] * 6),
        [[1.0], *[[0.0]] * 5],
    ),
    # a picture that beats both others, one that beats one, one that beats none: 0.5 over a deviation of 0.5
    "pref-grpo": (Step(reward=(1.0, 0.5, 0.0), lengths=[1] * 3), [[1.0], [0.0], [-1.0]]),
    # with one virtual sample of 1: mean 0.4; squares (0.36 * 2 + 0.16 * 3) / 4 = 0.3, sqrt 0.5477226
    "ngrpo": (Step(reward=ONE_OF_FOUR, lengths=[1] * 4), [[1.0954431], *[[-0.7302954]] * 3]),
    # old -1.2, base -1.5, teacher -0.9: teacher - old, and -(old - base) + 1.25 (teacher - base); rewards teach nothing
    "on-policy-distillation": (TEACHER, [[0.3], [0.3]]),
    "g-opd": (TEACHER, [[0.45], [0.45]]),
    "nsr": (Step(reward=ONE_OF_FOUR, lengths=[1] * 4), [[0.1], [-1.0], [-1.0], [-1.0]]),
    # R = 1 - C(6, 4) / C(8, 4) = 0.785714, s = 0.410326, W = C(5, 3) / C(7, 3) = 0.285714
    "pass-k-training": (
        Step(reward=(1, 1, 0, 0, 0, 0, 0, 0), lengths=[1] * 8),
        [*[[0.522231]] * 2, *[[-0.174077]] * 6],
    ),
    # of ten the eight shortest: four of them right, so 0.5 / (0.5345225 + 1e-4)
    "gfpo": (
        Step(reward=(1, 0, 1, 0, 1, 0, 1, 0, 1, 1), lengths=range(1, 11)),
        [*[[0.935239] * 10, [-0.935239] * 10] * 4, [0.0] * 10, [0.0] * 10],
    ),
    # drawn 1, 0 among themselves, replayed 1, 1 among themselves
    "repo": (Step(reward=(1, 0, 1, 1), lengths=[1] * 4, origins=(0, 0, 1, 1)), [[A_TWO], [-A_TWO], [0.0], [0.0]]),
    # all right: 0.1 H; all wrong: -0.1 (1 - H)
    "rl-zvp": (
        Step(reward=(1, 1, 0, 0), groups=(0, 0, 1, 1), entropy=[[0.2, 1.0, 0.5]] * 4),
        [[0.02, 0.1, 0.05], [0.02, 0.1, 0.05], [-0.08, 0.0, -0.05], [-0.08, 0.0, -0.05]],
    ),
    # mean entropies 0.5 and 1.5 of mean 1: times 2 and 2 / 3
    "edge-grpo": (
        Step(reward=ONE_OF_TWO, entropy=((0.25, 0.75), (1.0, 2.0))),
        [[2 * A_TWO] * 2, [-A_TWO / 1.5] * 2],
    ),
    # [a b c] and [a x c]: both ends are in conflict, so 2, 1, 2 and 0, 1, 0 over 2 conflicts; 0.1 H = 0.02 comes off
    "gtpo": (
        Step(reward=ONE_OF_TWO, tokens=((1, 2, 3), (1, 9, 3)), entropy=[[0.2] * 3] * 2),
        [[A_TWO - 0.02, A_TWO / 2 - 0.01, A_TWO - 0.02], [0.0, -A_TWO / 2 - 0.01, 0.0]],
    ),
    # values: root 1/2, [a] 2/3, [a b] 1, [a c] 0, [d] 0, [d e] 0; over the deviation, as 1/2 is A_TREE
    "tempo": (
        TREE,
        [
            [A_TREE * 4 / 3, A_TREE * 5 / 3],
            [A_TREE * 4 / 3, A_TREE * 5 / 3],
            [-A_TREE * 2 / 3, -A_TREE * 7 / 3],
            [-A_TREE * 2, -A_TREE],
        ],
    ),
    # [a] is shared by three, [a b] by two
    "lambda-grpo": (TREE, [[A_TREE / 3, A_TREE / 2]] * 2 + [[-A_TREE / 3, -A_TREE], [-A_TREE, -A_TREE]]),
    # decision 0 parts two and two, of means 0.5 and 0: +-0.25 / 0.353553, which two samples share; then 0.75 / 0.5
    "branch-grpo": (
        Step(reward=ONE_OF_FOUR, states=((0, 1), (0, 1), (0, 3), (0, 3))),
        [[0.353553, 1.5], [0.353553, -0.5], [-0.353553, -0.5], [-0.353553, -0.5]],
    ),
    # branches of values 1 and 0.5: +-0.25 / 0.353553; in the second the leaves 1 and 0: +-0.5 / 0.707107
    "treerpo": (
        Step(reward=(1, 1, 1, 0), states=((0, 1, 2), (0, 1, 3), (0, 4, 5), (0, 4, 6))),
        [[0.707107, 0.0, 0.0]] * 2 + [[-0.707107, 0.707107, 0.707107], [-0.707107, -0.707107, -0.707107]],
    ),
    # z = 1.499700 of the one step that is right, -0.499900 of the others, summed to the end
    "process-supervision": (
        Step(reward=(0, 0), parts=((1, 0), (0, 0))),
        [[A_FOUR - A_FOUR / 3, -A_FOUR / 3], [-2 * A_FOUR / 3, -A_FOUR / 3]],
    ),
    # returns 0.95, 1 and 0, 0: of state a 0.95, 0, 0 less their mean 0.316667, of deviation 0.548483; b was met once
    "gigpo": (
        Step(reward=ONE_OF_TWO, turns=((0, 1), (0, 0)), keys=(("a", "b"), ("a", "a"))),
        [[A_TWO_6 + 1.154698, A_TWO_6], [-A_TWO_6 - 0.577349] * 2],
    ),
}
