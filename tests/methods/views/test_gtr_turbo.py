"""GTR-Turbo (the merged checkpoint as teacher): numbers worked out by hand."""

from __future__ import annotations

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.methods.views.gtr_turbo import excess_likelihood
from mmgrpo.values import of_view
from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit

# of the first 0.4 and 0 above the merged weights, a mean of 0.2; of the other none
CREDIT = (
    Step(
        reward=ONE_OF_TWO,
        old_logprob=((-1.0, -1.0), (-1.0, -1.0)),
        values={of_view("reference"): [[-1.4, -0.5], [-0.5, -0.5]]},
    ),
    [[A_TWO - 0.2] * 2, [-A_TWO] * 2],
)


def test_advantages_of_the_method() -> None:
    assert_credit("gtr-turbo", *CREDIT)


def test_a_weight_below_0_raises() -> None:
    excess_likelihood(view="reference", weight=0.0)
    with pytest.raises(ConfigError, match="at least 0"):
        excess_likelihood(view="reference", weight=-1.0)
