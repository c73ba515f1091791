"""What a surrogate gives.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Loss of each decision and where a bound acted on it.

    Attributes:
        loss_BT: loss, with grad.
        low_BT: bool, decisions whose gradient the lower bound removed (in ``cispo``: whose weight it raised).
        high_BT: bool, decisions whose gradient an upper bound removed (in ``cispo``: whose weight it lowered).
    """

    loss_BT: Tensor
    low_BT: Tensor
    high_BT: Tensor
