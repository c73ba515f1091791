"""SAPO, arXiv:2511.20347.

A smooth gate replaces the clip: the gradient decays as the ratio leaves 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.surrogates import SURROGATES, Surrogate
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@SURROGATES.register
def sapo(
    ratio_BT: Tensor,
    logprob_BT: Tensor,
    advantage_BT: Tensor,
    *,
    positive_temperature: float,
    negative_temperature: float,
) -> Surrogate:
    """A smooth gate in place of the clip: the gradient fades as the ratio leaves 1, and is never 0.

    l = -A (4 / tau) sigmoid(tau (r - 1)), tau = positive_temperature where A > 0, else negative_temperature.
    There is no bound, so none is reported.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; temperatures are dimensionless (1.0 and 1.05).
    Source: SAPO, arXiv:2511.20347, eqs. 5-6.
    """
    del logprob_BT
    temperature_BT = torch.full_like(ratio_BT, negative_temperature).masked_fill(advantage_BT > 0, positive_temperature)
    gate_BT = torch.sigmoid(temperature_BT * (ratio_BT - 1)) * 4 / temperature_BT
    never_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return Surrogate(-advantage_BT * gate_BT, never_BT, never_BT)
