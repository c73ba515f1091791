"""Self-correction by hand, and as the authors' code computes it."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.maths.self_correction import level_after, off_path, shifted


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_shift_is_undone_by_its_inverse() -> None:
    level_N = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)
    torch.testing.assert_close(shifted(level_N, 3.0), torch.tensor([0.5, 0.75, 1.0], dtype=torch.float64))
    torch.testing.assert_close(shifted(shifted(level_N, 3.0), 1 / 3), level_N)


def test_step_ends_a_fortieth_lower_before_the_shift() -> None:
    # 2/3 and 3/4 are 0.4 and 0.5 shifted by 3; 0.375 and 0.475 are 1.125 / 1.75 and 1.425 / 1.95; what would be
    # below 1 / 1000 is that, 0.003 / 1.002
    level_N = torch.tensor([2 / 3, 3 / 4, shifted(torch.tensor(0.02), 3.0)], dtype=torch.float64)
    result_N = level_after(level_N, num_steps=40, shift=3.0, least=1e-3)
    assert result_N.tolist() == pytest.approx([1.125 / 1.75, 1.425 / 1.95, 0.003 / 1.002], rel=1e-6)


def test_true_velocity_stays_on_the_way() -> None:
    data, noise = column(0.5, 2.0), column(-1.0, 0.0)
    result = off_path(
        (data + noise) / 2,
        noise,
        data,
        noise - data,
        level=column(0.5, 0.5),
        after=column(0.4, 0.3),
        share=column(0.5, 0),
    )
    torch.testing.assert_close(result.state, column(0.3 * 0.5 - 0.7, 0.7 * 2.0))  # at 0.4 + 0.5 * 0.6 and at 0.3
    torch.testing.assert_close(result.velocity, noise - data)


def test_points_are_those_of_the_authors_code() -> None:
    """HY-SOAR, soar/utils/algorithm.py, single_step_aux_points of one path at t0 = 0.4 and 0.5, and its target.

    It was run with a shift of 3, 40 steps, and the second pair of numbers that torch.rand gives at seed 0.
    """
    data = torch.tensor([[0.5, -1.0], [2.0, 0.25]])
    noise = torch.tensor([[-0.75, 1.5], [0.1, -0.4]])
    velocity = torch.tensor([[-1.0, 2.0], [-2.5, -0.25]])
    level_N = torch.tensor([2 / 3, 3 / 4])
    level, after = level_N[:, None], level_after(level_N, num_steps=40, shift=3.0, least=1e-3)[:, None]
    share = torch.tensor([[0.08847743], [0.13203049]])
    noisy = (1 - level) * data + level * noise
    result = off_path(noisy, noise, data, velocity, level=level, after=after, share=share)
    state = torch.tensor([[-0.34849602, 0.69699204], [0.55401480, -0.25478202]])
    corrected = torch.tensor([[-1.25804460, 2.51608920], [-1.88693106, -0.65871274]])
    torch.testing.assert_close(result.state, state, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(result.velocity, corrected, rtol=1e-5, atol=1e-6)
