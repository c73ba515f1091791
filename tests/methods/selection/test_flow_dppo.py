"""Flow-DPPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.denoising_steps import DEAD, assert_advantages, assert_loss

# the divergence is 4.6875e-4, above 1e-5: with A = 1 the ratio returns, -r; with A = -1 it would move on, 0
LOSS = -0.9886585546 / 2
# mean 1.25, squares 52.5 - 12 * 1.5625 = 33.75, over 11: deviation 1.751623
ADVANTAGES = [[-1.141798, -0.570899, 0.0, 1.712697], DEAD, [-0.142725, -0.142725, 0.142725, 0.142725]]


def test_loss_of_the_method() -> None:
    assert_loss("flow-dppo", LOSS, num_clipped=0)


def test_advantages_of_the_method() -> None:
    assert_advantages("flow-dppo", ADVANTAGES)
