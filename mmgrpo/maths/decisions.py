"""Decisions as an objective sees them.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, cast

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.system.lazy import torch
from mmgrpo.values import Value, mask_of_view

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Any rows and columns of a rollout, as the objective reads them; every tensor has the same shape.

    Values at decisions that ``mask_BT`` leaves out may be anything, NaN and infinity included; ``reward_BT``,
    ``group_BT`` and ``source_BT`` are those of the sample at all of its decisions.

    Attributes:
        logprob_BT: log-probability under the current weights, with grad.
        old_logprob_BT: log-probability under the behavior policy.
        advantage_BT: advantage of each decision.
        mask_BT: bool, the decisions to train on.
        weight_BT: weight of each decision's surrogate (``Objective.weights``).
        segment_BT: integer chunk of each decision.
        mean_weight_BT: weight of each decision in a mean over the update (``Objective.mean_weights``), which divergence
            and entropy terms take; None means ``weight_BT``, which is right only without a step weight.
        std_BT: standard deviation of each Gaussian decision.
        ratio_mask_BT: bool, the decisions that a ratio above the level of one is taken over; None for ``mask_BT``.
        low_BT: ``low`` of each decision; None: that of the surrogate.
        high_BT: likewise its ``high``.
        divergence_factor_BT: factor of each decision's divergence; None: 1.
        reward_BT: reward of each decision's sample, for terms that compare samples themselves.
        group_BT: integer group of each decision's sample.
        source_BT: where each decision's row comes from, a number of ``Source``; None: all were sampled.
        unchanged_BT: bool, decisions that were recorded under the current weights: their log-ratio is 0 except for
            rounding errors; None: not specified.
        num_groups: groups of the update on all processes, which a mean over groups divides by.
        values: the requested values besides the log-probability, by name; with grad if they are of the current policy.
    """

    logprob_BT: Tensor
    old_logprob_BT: Tensor
    advantage_BT: Tensor
    mask_BT: Tensor
    weight_BT: Tensor
    segment_BT: Tensor
    mean_weight_BT: Tensor | None = None
    std_BT: Tensor | None = None
    ratio_mask_BT: Tensor | None = None
    low_BT: Tensor | None = None
    high_BT: Tensor | None = None
    divergence_factor_BT: Tensor | None = None
    reward_BT: Tensor | None = None
    group_BT: Tensor | None = None
    source_BT: Tensor | None = None
    unchanged_BT: Tensor | None = None
    num_groups: float = 1.0
    values: Mapping[Value, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.logprob_BT.shape
        for name, tensor in self._tensors():
            if len(shape) != 2 or tensor.shape != shape:
                raise ShapeError(f"{name} must be (B, T) like logprob_BT {tuple(shape)}, got {tuple(tensor.shape)}")
        if self.mask_BT.dtype != torch.bool:
            raise ShapeError(f"mask_BT must be bool, got {self.mask_BT.dtype}")

    def __getitem__(self, value: Value) -> Tensor:
        """A requested value. Raises ConfigError if the decisions do not have it."""
        if value not in self.values:
            carried = ", ".join(map(str, self.values)) or "none"
            raise ConfigError(
                f"the decisions carry no {value}: ask Policy.evaluate for it; of values they carry {carried}"
            )
        return self.values[value]

    @property
    def plain_weight_BT(self) -> Tensor:
        """``mean_weight_BT``, or the surrogate's where there is none."""
        return self.weight_BT if self.mean_weight_BT is None else self.mean_weight_BT

    def view_mask(self, view: str | None) -> Tensor:
        """The kept decisions of rows that have a view; all kept ones if every row has it.

        Shapes: -> bool (B, T).
        """
        view_BT = None if view is None else self.values.get(mask_of_view(view))
        return self.mask_BT if view_BT is None else self.mask_BT & (view_BT != 0)

    def map(self, change: Callable[[Tensor], Tensor]) -> Decisions:
        """Every tensor changed in the same way: moved, or some cells of it taken."""
        tensors: dict[str, Any] = {
            each.name: change(tensor)
            for each in fields(self)
            if each.name.endswith("_BT") and (tensor := getattr(self, each.name)) is not None
        }
        return replace(self, **tensors, values={value: change(tensor) for value, tensor in self.values.items()})

    def at(self, index: tuple[Tensor, Tensor], device: torch.device) -> Decisions:
        """The decisions at rows and columns, on a device.

        Shapes: indices (b, 1) and (1, t) -> (b, t).
        """
        return self.map(lambda matrix_BT: matrix_BT[index].to(device))

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for each in fields(self):
            tensor = getattr(self, each.name)
            if each.name.endswith("_BT") and tensor is not None:
                yield each.name, cast("Tensor", tensor)
        yield from ((str(value), tensor) for value, tensor in self.values.items())
