"""PAPO (perception-aware): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import from_reference, of_view
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# of the two advantages nothing is left; masked minus plain -0.7: -0.02 (e^-0.7 - 1 + 0.7) = -0.02 * 0.196585
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        lengths=[1, 1],
        values={of_view("masked"): [[-1.7], [-1.7]], from_reference("k3"): [[0.0], [0.0]]},
    ),
    -0.0039317,
)


def test_loss_of_the_method() -> None:
    assert_loss("papo", *LOSS)
