"""States of flow matching that a model's own step leads to, and the velocity from them to the data.

x_s = (1 - s) x0 + s eps is data with noise at level s; a velocity leads from x_s to x0 in s.
Axes: N rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPath:
    """States off the path from noise to data.

    Attributes:
        state: (N, ...) the states.
        velocity: (N, ...) which leads from them to the data.
    """

    state: Tensor
    velocity: Tensor


def shifted(level_N: Tensor, shift: float) -> Tensor:
    """A flow schedule's shift of its levels: s u / (1 + (s - 1) u), undone by 1 / s.

    Shapes: (N,) -> (N,).   Units: noise as a share, in [0, 1] -> the same.
    Source: Esser et al., arXiv:2403.03206, sec. 5.3.2.
    """
    return shift * level_N / (1 + (shift - 1) * level_N)


def level_after(level_N: Tensor, *, num_steps: int, shift: float, least: float) -> Tensor:
    """The level that one of ``num_steps`` steps ends at, equal steps before the shift.

    shift(max(u - 1 / num_steps, least)), u the level before its shift.

    Shapes: (N,) -> (N,).   Units: noise as a share.
    Source: HY-SOAR, soar/utils/algorithm.py, single_step_aux_points and t_to_sigma_timestep, ``least`` 1 / 1000.
    Deviation: levels are not rounded to the thousand of the schedule.
    """
    return shifted((shifted(level_N, 1 / shift) - 1 / num_steps).clamp(min=least), shift)


def off_path(
    noisy: Tensor, noise: Tensor, data: Tensor, velocity: Tensor, *, level: Tensor, after: Tensor, share: Tensor
) -> OffPath:
    """Where a step along a velocity leads, noised again by the noise that was there.

    x' = x + v (s1 - s0);   s = s1 + u (1 - s1);   z = (1 - u) x' + u eps;   v* = (z - x0) / s.
    Along the true velocity eps - x0 it stays on the way, and v* is that velocity.

    Args:
        noisy: x, at level s0.
        noise: eps.
        data: x0.
        velocity: v, of the step.
        level: s0, broadcast against the states, as the next two are.
        after: s1, above 0.
        share: u, how far towards the noise.

    Returns:
        States of level s, and velocities.

    Shapes: (N, ...) -> (N, ...).   Units: latents.
    Source: SOAR, arXiv:2604.12617; HY-SOAR, soar/utils/algorithm.py and train_soar_sd3_5m.py, the path without noise.
    """
    stepped = noisy + velocity * (after - level)
    state = (1 - share) * stepped + share * noise
    return OffPath(state=state, velocity=(state - data) / (after + share * (1 - after)))
