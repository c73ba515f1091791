"""DRPO (decoupled reward): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_loss

# right ones of 2 and 1 tokens, w in the ratio 1 : e^(10 / 8192), so 0.499695 and 0.500305: -1.250153 of mean
# scores -1 and -1.5; wrong ones -2 and -4 over 10: 10 log((e^-0.2 + e^-0.4) / 2) = -2.950083
LOSS = (
    Step(
        reward=(1, 1, 0, 0),
        lengths=(2, 1, 1, 1),
        old_logprob=((-0.5, -1.5), (-1.5, 0.0), (-2.0, 0.0), (-4.0, 0.0)),
    ),
    1.250153 - 2.950083,
)


def test_loss_of_the_method() -> None:
    assert_loss("drpo", *LOSS)
