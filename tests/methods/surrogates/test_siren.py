"""SIREN (selective entropy regularisation): numbers worked out by hand."""

from __future__ import annotations

from math import log

from mmgrpo.values import nucleus_entropy
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# A = 0.5, -0.5, the first ratio of 1.5 held at 1.2: (-0.6 - 0.5 + 0.5 + 0.5) / (2 * 3072); there is no anchor yet
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        log_ratio=((log(1.5), 0.0), (0.0, 0.0)),
        values={nucleus_entropy(0.8): [[0.1, 2.0]] * 2},
    ),
    -0.1 / 6144,
)


def test_loss_of_the_method() -> None:
    assert_loss("siren", *LOSS)
