"""What a modulation is, and what it says of each decision.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmgrpo.maths.decisions import Decisions
from mmgrpo.values import OLD, Value

if TYPE_CHECKING:
    from torch import Tensor

JobValues = Mapping[Value, "Tensor"]
"""Values of the kept decisions of the whole job's update, a vector each, in one order."""

LOGPROB, OLD_LOGPROB, ADVANTAGE = Value("logprob"), Value("logprob", OLD), Value("advantage")
"""What a modulation may ask for that the decisions hold by themselves: ``known`` finds it."""


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

    def after(self, earlier: Modulated) -> Modulated:
        """This one on top of an earlier one: its bounds count, factors multiply."""
        return Modulated(
            low_BT=earlier.low_BT if self.low_BT is None else self.low_BT,
            high_BT=earlier.high_BT if self.high_BT is None else self.high_BT,
            divergence_BT=_product(earlier.divergence_BT, self.divergence_BT),
            loss_BT=_product(earlier.loss_BT, self.loss_BT),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulation:
    """One modulation, its numbers bound.

    Attributes:
        of: (decisions, job_values) -> Modulated, over whole rows; job_values hold what ``job`` names.
        values: what the decisions must carry beside the log-probability.
        job: what it must know of the whole job's update.
        bounds: whether it says the surrogate's ``low`` or ``high``, which that must then have.
        name: what the share of the decisions that it changes is logged under.
    """

    of: Callable[[Decisions, JobValues], Modulated]
    values: tuple[Value, ...] = ()
    job: tuple[Value, ...] = ()
    bounds: bool = False
    name: str = "modulation"


def detached(decisions: Decisions, value: Value) -> Tensor:
    """A value that the decisions carry or hold by themselves, without grad.

    Shapes: -> (B, T).   Raises: ConfigError if they do neither.
    """
    own = {LOGPROB: decisions.logprob_BT, OLD_LOGPROB: decisions.old_logprob_BT, ADVANTAGE: decisions.advantage_BT}
    return (own[value] if value in own else decisions[value]).detach()


def _product(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other
    return one * other
