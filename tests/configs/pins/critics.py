"""What decisions are worth where a critic says what to expect."""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.values import VALUE
from tests.configs.method_steps import Step

CREDIT: dict[str, tuple[Step, Sequence[Sequence[float]]]] = {
    # reward less value: 0.5, 0.4, -0.5, -0.4, of mean 0; squares 0.82 over 3, whose root is 0.5228129
    "ppo": (
        Step(reward=(1.0, 0.0), groups=(0, 1), values={VALUE: [[0.5, 0.6], [0.5, 0.4]]}),
        [[0.9563650, 0.7650920], [-0.9563650, -0.7650920]],
    ),
    # the value of the next state, and the reward behind the last token
    "dvpo": (
        Step(reward=(1.0, 0.0), groups=(0, 1), values={VALUE: [[0.5, 0.6], [0.5, 0.4]]}),
        [[0.6, 1.0], [0.4, 0.0]],
    ),
}
