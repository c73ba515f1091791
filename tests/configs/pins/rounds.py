"""What is drawn, round after round, and what its rows are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# the deviation of 1, 0 and 1 is 0.5773503, their mean 2/3
A_THREE = 1 / 3 / 0.5773513


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
