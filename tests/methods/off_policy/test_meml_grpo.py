"""MEML-GRPO: numbers worked out by hand."""

from __future__ import annotations

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.methods.off_policy.meml_grpo import systems, weakest_system
from mmgrpo.values import mask_of_view, of_view
from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss

# the first of three parts is all right, the second all wrong, half of the third right: its ratios 2, held at 1.2,
# and 1. The first one's answers have -1 and, under the second's text, -1.5 and -3: 0.5 and 2
LOSS = (
    Step(
        reward=(1.0, 1.0, 0.0, 0.0, *ONE_OF_TWO),
        log_ratio=((0.0,), (0.0,), (0.0,), (0.0,), (UP,), (0.0,)),
        values={
            of_view("weakest"): [[-1.5], [-3.0], [0.0], [0.0], [0.0], [0.0]],
            mask_of_view("weakest"): [[1.0], [1.0], [0.0], [0.0], [0.0], [0.0]],
        },
    ),
    (2.5 - 0.2 * A_TWO_6) / 6,
)


def test_loss_of_the_method() -> None:
    assert_loss("meml-grpo", *LOSS)


def test_missing_system_texts_raise() -> None:
    weakest_system(texts=["a", "b"])
    with pytest.raises(ConfigError, match="two at least"):
        weakest_system(texts=["a"])
    with pytest.raises(ConfigError, match="at least one text"):
        systems(texts=[])
