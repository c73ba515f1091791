"""80/20 (high-entropy tokens): numbers worked out by hand."""

from __future__ import annotations

from math import exp

from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss

# The threshold is 0.5 + 0.2 * 0.1, between the eighth and the ninth of ten entropies. It keeps 0.6 and 0.9, as
# get_global_entropy_top_mask of the authors' code does; the mean is over all ten tokens.
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        entropy=((0.1, 0.5, 0.3, 0.4, 0.2), (0.4, 0.6, 0.45, 0.9, 0.2)),
        log_ratio=((0.1,) * 5, (0.0, 0.1, 0.0, 0.0, 0.1)),
    ),
    A_TWO_6 * (exp(0.1) + 1) / 10,
)


def test_loss_is_of_the_fifth_of_highest_entropy() -> None:
    assert_loss("high-entropy-tokens", *LOSS)
