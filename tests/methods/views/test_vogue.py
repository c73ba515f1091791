"""VOGUE (visual uncertainty): numbers worked out by hand."""

from __future__ import annotations

from math import log
from typing import Any

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.methods.views.vogue import bounded_uncertainty, noised_image
from mmgrpo.values import of_view
from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

# r = 2: u = log(2) / 2 = 0.346574, less than A / 2 = 0.353553, and 0.4 * 0.5; of the other u = 0, and 0.8 is more
CREDIT = (
    Step(
        reward=ONE_OF_TWO,
        old_logprob=((-1.0,), (-1.0,)),
        entropy=((0.5,), (2.0,)),
        values={of_view("raw"): [[log(2.0) - 1.0], [-1.0]]},
    ),
    [[A_TWO_6 + 0.546574], [-A_TWO_6 / 2]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("vogue", *CREDIT)


@pytest.mark.parametrize("numbers", [{"bound": 0.0}, {"entropy_bound": 0.0}, {"weight": -1.0}, {"entropy": -1.0}])
def test_bounds_and_weights_out_of_range_raise(numbers: dict[str, Any]) -> None:
    bounded_uncertainty(view="raw", bound=1.0, entropy_bound=1.0, weight=0.0, entropy=0.0)
    with pytest.raises(ConfigError, match="bounds above 0"):
        bounded_uncertainty(view="raw", **numbers)


@pytest.mark.parametrize("numbers", [{"share": -0.1}, {"share": 1.1}, {"chance": -0.1}, {"chance": 1.1}])
def test_shares_of_noise_out_of_range_raise(numbers: dict[str, Any]) -> None:
    for share, chance in ((0.0, 0.0), (1.0, 1.0)):
        noised_image(share=share, chance=chance)
    with pytest.raises(ConfigError, match="must be from 0 to 1"):
        noised_image(**{"share": 0.5, **numbers})  # pyrefly: ignore[bad-argument-type]
