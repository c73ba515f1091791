"""PAPO (perception-aware): numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.methods.views.papo import masked_image
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


@pytest.mark.parametrize("numbers", [{"patch": 0}, {"share": -0.1}, {"share": 1.1}])
def test_patches_that_mask_nothing_raise(numbers: dict[str, Any]) -> None:
    masked_image(share=1.0, patch=1)
    with pytest.raises(ConfigError, match="a share from 0 to 1"):
        masked_image(**numbers)
