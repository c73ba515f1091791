"""What is drawn, round after round, and what its rows are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_TWO, ONE_OF_FOUR

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # thoughts of 1 and 1/2, +-0.25 / 0.3535534; answers of 1, 1, 1 and 0, of mean 3/4 and deviation 1/2
    "grpo-ma": (
        Step(reward=(1, 1, 1, 0), states=((0, 1, 2), (0, 1, 3), (0, 4, 5), (0, 4, 6))),
        [[0.7071068, 0.5, 0.5]] * 2 + [[-0.7071068, 0.5, 0.5], [-0.7071068, -1.5, -1.5]],
    ),
    # row 1 leaves the thought of row 0 after a token and is wrong, row 2 after two and is right, row 0 is right at its
    # end: 0, 1 and 1/2 of mean 1/2; the first token is everybody's, the second that of rows 0 and 2
    "s-grpo--early-reinforcement": (
        Step(reward=(1, 0, 1), drawn_by=((0, 0, 0), (0, 1, 1), (0, 0, 2))),
        [[0.0, 0.25, 0.0], [0.0, -0.5, -0.5], [0.0, 0.25, 0.5]],
    ),
    # r - 1/4, and clip(r - 0, -0.2, 0.28) of a reference that is wrong
    "aapo": (
        Step(reward=ONE_OF_FOUR, lengths=[1] * 4, columns={"reference_reward": (0, 0, 0, 0)}),
        [[0.75 + 0.28], *[[-0.25]] * 3],
    ),
    # values of the prompt 3/4, of its segments 1 and 1/2, of the second's ends 1 and 0
    "spo--segment-policy": (
        Step(
            reward=(1, 1, 1, 0),
            states=((0, 1, 2), (0, 1, 3), (0, 4, 5), (0, 4, 6)),
            old_logprob=[[-1.0] * 3] * 4,
        ),
        [[0.25, 0.0, 0.0]] * 2 + [[-0.25, 0.5, 0.5], [-0.25, -0.5, -0.5]],
    ),
}

# the deviation of 1, 0 and 1 is 0.5773503, their mean 2/3
A_THREE = 1 / 3 / 0.5773513

LOSSES: dict[str, tuple[Step, float]] = {
    # a hinted answer that is twice as likely without the hint: (-1.2 A + A) / 2, as far as 0.2 lets it
    "guide-grpo": (
        Step(reward=(0, 1), origins=(0, 2), log_ratio=[[0.0], [log(2)]], lengths=[1, 1]),
        -0.2 * A_TWO / 2,
    ),
    # 1 and 0 were drawn, a refinement of 1 has the probability 0.1, so that p / (p + 0.1) is 1/2: A (-1 + 2 - 1/2) over
    # three samples and 6144 tokens
    "critique-grpo": (
        Step(
            reward=(1, 0, 1), origins=(0, 0, 2), old_logprob=[[-1.0], [-1.0], [log(0.1)]], entropy=[[0.0]] * 3,
        ),
        A_THREE * 0.5 / 3 / 6144,
    ),
    # as critique-grpo's
    "rgr-grpo": (
        Step(
            reward=(1, 0, 1), origins=(0, 0, 2), old_logprob=[[-1.0], [-1.0], [log(0.1)]], entropy=[[0.0]] * 3,
        ),
        A_THREE * 0.5 / 3 / 4096,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Play:
    """Rounds of two prompts in groups of two.

    Attributes:
        rewards: of each round's rows, in the order of requests and members.
        asked: of each round after the first, (prompt, first member, how many, context) of its requests.
        kept: of each round, the rows that train.
    """

    rewards: Sequence[Sequence[float]]
    asked: Sequence[Sequence[tuple[int, int, int, str | None]]]
    kept: Sequence[Sequence[int]]


PLAYS: dict[str, Play] = {
    # one half of each group, then the other
    "eepo": Play(
        rewards=([1, 0], [0, 1]),
        asked=([(0, 1, 1, None), (1, 1, 1, None)],),
        kept=([1, 1], [1, 1]),
    ),
    # the first prompt fails, is drawn with a quarter of its solution and solved with half of it
    "ghpo": Play(
        rewards=([0, 0, 1, 0], [0, 0], [1, 0]),
        asked=([(0, 2, 2, "quarter")], [(0, 4, 2, "half")]),
        kept=([0, 0, 1, 1], [0, 0], [1, 1]),
    ),
    # the first prompt fails, hints are written, and it is solved with the first
    "sage": Play(
        rewards=([0, 0, 1, 0], [1], [0, 1]),
        asked=([(0, 2, 1, "hints")], [(0, 4, 2, "first")]),
        kept=([0, 0, 1, 1], [0], [1, 1]),
    ),
    # of the first prompt the 20 that follow, and none of its own
    "eframe": Play(
        rewards=([0, 0, 1, 0], [1, *[0] * 19]),
        asked=([(0, 2, 20, None)],),
        kept=([0, 0, 1, 1], [1] * 20),
    ),
    # stages of two until one is right
    "ar3po": Play(
        rewards=([0, 0, 1, 0], [0, 0], [0, 1]),
        asked=([(0, 2, 2, None)], [(0, 4, 2, None)]),
        kept=([1, 1, 1, 1], [1, 1], [1, 1]),
    ),
    # of each prompt the better refinement, of equal ones the first
    "critique-grpo": Play(
        rewards=([0, 1, 0, 0], [0, 1, 0, 0]),
        asked=([(0, 2, 2, "refine"), (1, 2, 2, "refine")],),
        kept=([1, 1, 1, 1], [0, 1, 1, 0]),
    ),
    # of the first prompt somebody is right, so that one more is drawn; of the second the best draft is written anew
    "rgr-grpo": Play(
        rewards=([0, 1, 0.2, 0.5], [1, 0]),
        asked=([(0, 2, 1, None), (1, 2, 1, "refine")],),
        kept=([1, 1, 1, 1], [1, 1]),
    ),
    "igrpo": Play(
        rewards=([0, 1, 0, 0], [0, 1, 0, 1]),
        asked=([(0, 2, 2, "draft"), (1, 2, 2, "draft")],),
        kept=([0, 0, 0, 0], [1, 1, 1, 1]),
    ),
    # none of 2 counts as half a right one, u = 1/4, S = 0.375: ceil((2 * 0.75 * 1 - 2 * 0.375) / 0.375) = 2
    "dars": Play(rewards=([0, 0, 1, 0], [0, 1]), asked=([(0, 2, 2, None)],), kept=([1, 1, 1, 1], [1, 1])),
}

ELSEWHERE = {
    "anytimereasoner",
    "cure",
    "eepo",
    "eframe",
    "ghpo",
    "sage",
    "ar3po",
    "igrpo",
    "dars",
    "knapsack-rl",
    "raif",
}
