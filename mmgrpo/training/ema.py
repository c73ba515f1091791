"""The average of the trained weights, and the swap that evaluates it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from mmgrpo.config import EmaConfig
from mmgrpo.distributed.parameter_shards import ParameterShard, as_piece, local_shards, slice_for_shard


def kept_share(num_updates: int, config: EmaConfig) -> float:
    """The share of the average that stays when the weights after ``num_updates`` optimizer updates join it.

    share = min((1 + n) / (10 + n), decay) ** times where n + 1 is a multiple of ``every``, 1 elsewhere.

    Source: flow_grpo, flow_grpo/ema.py, EMAModuleWrapper.step, which its scripts call after each micro-batch with the
    number of optimizer updates so far: a due update is averaged in as often as it has micro-batches (``times``).
    """
    if (num_updates + 1) % config.every:
        return 1.0
    return min((1 + num_updates) / (10 + num_updates), config.decay) ** config.times


class Average:
    """Exponential moving average of a fixed list of parameters, from their values when it is made."""

    def __init__(self, parameters: Sequence[nn.Parameter], config: EmaConfig) -> None:
        self._parameters = local_shards(parameters)
        self._config = config
        self._updates = 0
        self._average = [parameter.detach().clone() for parameter in self._parameters]

    @property
    def is_sharded(self) -> bool:
        """Whether it is of sharded weights, which all processes must swap together."""
        return any(isinstance(parameter, ParameterShard) for parameter in self._parameters)

    @torch.no_grad()
    def restart(self) -> None:
        """Restarts from the current parameters."""
        self._updates = 0
        for average, parameter in zip(self._average, self._parameters, strict=True):
            average.copy_(parameter)

    @torch.no_grad()
    def update(self) -> None:
        """Counts an optimizer update, and averages when it is due."""
        self._updates += 1
        share = kept_share(self._updates, self._config)
        if share < 1:
            for average, parameter in zip(self._average, self._parameters, strict=True):
                average.lerp_(parameter, 1 - share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within it the parameters hold their averages."""
        trained = [parameter.detach().cpu().clone() for parameter in self._parameters]
        self._set(self._average)
        try:
            yield
        finally:
            self._set(trained)

    def state_dict(self) -> dict[str, Any]:
        """The averages and their number of updates; of sharded weights, the shards."""
        pairs = zip(self._average, self._parameters, strict=True)
        return {"average": [as_piece(average, parameter) for average, parameter in pairs], "updates": self._updates}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""
        for average, stored, parameter in zip(self._average, state["average"], self._parameters, strict=True):
            average.copy_(slice_for_shard(stored, parameter))
        self._updates = state["updates"]

    @torch.no_grad()
    def _set(self, values: Sequence[torch.Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.copy_(value)
