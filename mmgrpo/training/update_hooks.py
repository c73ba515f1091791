"""Hooks around an optimizer step: the weights that it moves, and their values afterwards.

To add a hook: a final class of ``UpdateHook`` whose keyword-only parameters are its settings, and a line in ``HOOKS``
of ``mmgrpo/config/registry.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import nn

from mmgrpo.distributed.parameter_shards import as_piece, full_shape, slice_for_shard
from mmgrpo.errors import ConfigError
from mmgrpo.maths.seeds import derive_seed


class UpdateHook(ABC):
    """A hook around each optimizer step, with a state that checkpoints contain."""

    @abstractmethod
    def before(self) -> None:
        """The gradient of all processes is there, not yet clipped; it may be changed."""

    @abstractmethod
    def after(self) -> None:
        """Called after the optimizer's step; may change the weights. Not called if the update was skipped."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The state with which ``load_state_dict`` continues exactly."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores ``state_dict``."""


@final
class SlowFast(UpdateHook):
    """So many fast updates, then back or further along the way they went, then slow ones from there; and again.

    w = w_0 + alpha (w_inner - w_0) after ``inner`` updates from w_0; after ``slow`` more the next round begins

    ``alpha: 1`` has no effect, and more than 1 extrapolates along the straight line. As published in SFPO, fast and
    slow are complete passes over a rollout: with m minibatches ``epochs: 4``, ``inner: 3 m`` and ``slow: m`` make a
    round a rollout.

    Source: SFPO, arXiv:2510.04072, and its code (Urheen/SFPO, ``README.md``, with 3 passes and alpha 0.8): fast
        trajectory, reposition, slow correction. Deviation: the code gives up the fast trajectory for good once the
        entropy leaps. With ``slow: 0`` and alpha 2 the periodic re-grounding of RLVR-Linearity, arXiv:2601.04537, and
        its code (Miaow-Lab/RLVR-Linearity, ``weight_extrapolation.py``). Deviation: that leaves out norms.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, inner: int, alpha: float, slow: int = 1) -> None:
        """Starts a round at the current weights.

        Args:
            parameters: the trained parameters.
            inner: fast updates of a round.
            alpha: how much of their way is gone.
            slow: updates of a round after that; 0: the next round begins at once.

        Raises:
            ConfigError: numbers that make no round.
        """
        if inner < 1 or slow < 0 or not 0 <= alpha < math.inf:
            raise ConfigError(
                f"update.hooks: slow_fast needs inner >= 1, slow >= 0 and alpha >= 0, got {inner}, {slow} and {alpha}"
            )
        self._parameters = list(parameters)
        self._inner, self._alpha, self._slow = inner, alpha, slow
        self._taken = 0
        self._start: list[torch.Tensor] = []

    @torch.no_grad()
    def before(self) -> None:
        """Remembers where a round begins."""
        if self._taken == 0:
            self._start = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def after(self) -> None:
        """Goes back, or further, after the fast updates."""
        self._taken += 1
        if self._taken == self._inner:
            for parameter, start in zip(self._parameters, self._start, strict=True):
                parameter.copy_(torch.lerp(start, parameter, self._alpha))
        if self._taken == self._inner + self._slow:
            self._taken = 0

    def state_dict(self) -> dict[str, Any]:
        """Where the round began, and how far it is."""
        start = [as_piece(start, parameter) for start, parameter in zip(self._start, self._parameters, strict=False)]
        return {"taken": self._taken, "start": start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues within a round."""
        self._taken = state["taken"]
        pairs = zip(state["start"], self._parameters, strict=False)
        self._start = [slice_for_shard(start, parameter).to(parameter.device) for start, parameter in pairs]


@final
class Mask(UpdateHook):
    """Only a share of the weights is trained, each sampled once by the seed; the others stay bitwise identical.

    The norm of the gradient is taken, and clipped, over the trained weights.

    Source: The Multiple Ticket Hypothesis, arXiv:2602.01599: RL in a random 1 % of the weights.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, share: float, seed: int = 0) -> None:
        """Samples the mask of the weights.

        Args:
            parameters: the trained parameters.
            share: of the weights.
            seed: which.

        Raises:
            ConfigError: a share that is none.
        """
        if not 0 < share <= 1:
            raise ConfigError(f"update.hooks: mask needs 0 < share <= 1, got {share}")
        self._parameters = list(parameters)
        self._trained = [_random_mask(parameter, share, derive_seed(seed, i)) for i, parameter in enumerate(parameters)]
        self._before: list[torch.Tensor] = []

    @torch.no_grad()
    def before(self) -> None:
        """Takes the gradient of the others away."""
        for parameter, trained in zip(self._parameters, self._trained, strict=True):
            if parameter.grad is not None:
                parameter.grad = parameter.grad.where(trained, 0.0)
        self._before = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def after(self) -> None:
        """Puts the others back, which weight decay has moved."""
        for parameter, trained, before in zip(self._parameters, self._trained, self._before, strict=True):
            parameter.copy_(parameter.where(trained, before))
        self._before = []

    def state_dict(self) -> dict[str, Any]:
        """Nothing: it follows from the seed."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


def _random_mask(parameter: nn.Parameter, share: float, seed: int) -> torch.Tensor:
    """Whether each weight is trained; sampled on the CPU, so that every machine has the same mask."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(full_shape(parameter), generator=generator, dtype=torch.float64)
    return slice_for_shard(uniform < share, parameter).to(parameter.device)
