"""Modulations: numbers of the objective that differ from decision to decision.

They are told from values at the weights of now, without grad, as selections are.

Axes: B samples, T decisions (tokens or denoising steps), N kept decisions of the whole job's update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.maths.decisions import Decisions
from mmgrpo.values import Value

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulated:
    """What a modulation says of each decision; None: nothing.

    Attributes:
        low_BT: float64, the surrogate's ``low`` in place of its own.
        high_BT: float64, the surrogate's ``high`` in place of its own.
        divergence_BT: factor of the divergence.
        loss_BT: factor of the surrogate's weight.
    """

    low_BT: Tensor | None = None
    high_BT: Tensor | None = None
    divergence_BT: Tensor | None = None
    loss_BT: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulation:
    """One modulation, its numbers bound.

    Attributes:
        of: (decisions, job_values) -> Modulated, over whole rows; job_values hold the values of the job's whole update
            as vectors.
        values: what the decisions must carry, and the job's vectors are of.
    """

    of: Callable[[Decisions, Mapping[Value, Tensor]], Modulated]
    values: tuple[Value, ...] = ()


MODULATIONS: Mapping[str, Callable[..., Modulation]] = MappingProxyType({})
"""Modulations by the name that a method's configuration uses; called with their numbers."""
