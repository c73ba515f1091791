"""SRPO (sample routing): numbers worked out by hand."""

from __future__ import annotations

from math import log

from mmgrpo.values import mask_of_view, of_view
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# the right one 0.5 at a ratio of 1.4, held at 1.28; of the wrong one (-1 + 0.5) (-1); over two tokens
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        lengths=[1, 1],
        log_ratio=((log(1.4),), (0.0,)),
        values={of_view("peer"): [[0.0], [-0.5]], mask_of_view("peer"): [[0.0], [1.0]]},
    ),
    (-0.64 + 0.5) / 2,
)


def test_loss_of_the_method() -> None:
    assert_loss("srpo--unifying-group", *LOSS)
