"""SDPO (self-distillation): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import mask_of_view, of_view
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# the peer's view -0.5 of a token at -1: (-1 + 0.5) (-1), over the one member that has a right peer
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        lengths=[1, 1],
        values={of_view("peer"): [[0.0], [-0.5]], mask_of_view("peer"): [[0.0], [1.0]]},
    ),
    0.5,
)


def test_loss_of_the_method() -> None:
    assert_loss("sdpo", *LOSS)
