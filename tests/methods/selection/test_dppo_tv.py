"""DPPO-Binary-TV and -KL: numbers of verl's code."""

from __future__ import annotations

from math import log

import pytest
import torch

from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, config_of, loss_and_gradient

OLD = ((log(0.1), log(0.4), log(0.5)), (log(0.4), log(0.7), log(0.1)))
NEW = ((log(0.3), log(0.5), log(0.2)), (log(0.2), log(0.9), log(0.001)))


def gradient(method: str, old: tuple[tuple[float, ...], ...], new: tuple[tuple[float, ...], ...]) -> list[list[float]]:
    """Of two rows with advantages 0.5 and -0.5, times their number and the constant length."""
    log_ratio = [[now - before for now, before in zip(*rows, strict=True)] for rows in zip(new, old, strict=True)]
    step = Step(reward=ONE_OF_TWO, old_logprob=old, log_ratio=log_ratio)
    return (loss_and_gradient(config_of(method), step).gradient_BT * 2 * 8192).tolist()


def test_tokens_whose_probability_moved_too_far_have_no_gradient_that_moves_them_further() -> None:
    """0.1 to 0.3 moved up by more than 0.15, 0.4 to 0.2 down; 0.1 to 0.001 by 0.099.

    The others have -A r, as compute_policy_loss_dppo_tv of verl-project/verl has: moves back are trained.
    """
    expected = torch.tensor([[0.0, -0.625, -0.2], [0.0, 0.6428571429, 0.005]])
    torch.testing.assert_close(torch.tensor(gradient("dppo-tv", OLD, NEW)), expected, rtol=0, atol=1e-6)


def test_tokens_of_too_large_a_divergence_have_no_gradient_that_moves_them_further() -> None:
    """The divergences of 0.1 to 0.3, 0.4 to 0.2 and 0.1 to 0.001 are 0.116, 0.105 and 0.367, above 0.05.

    The others have -A r, as compute_policy_loss_dppo_kl of verl-project/verl has: moves back are trained.
    """
    expected = torch.tensor([[0.0, -0.625, -0.2], [0.0, 0.6428571429, 0.0]])
    torch.testing.assert_close(torch.tensor(gradient("dppo-kl", OLD, NEW)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["dppo-tv", "dppo-kl"])
def test_ratio_is_truncated_at_20(method: str) -> None:
    """0.001 to 0.04 is a ratio of 40."""
    old, new = ((log(0.001), log(0.5)),) * 2, ((log(0.04), log(0.6)), (log(0.04), log(0.4)))
    expected = torch.tensor([[-10.0, -0.6], [10.0, 0.4]])
    torch.testing.assert_close(torch.tensor(gradient(method, old, new)), expected, rtol=0, atol=1e-6)
