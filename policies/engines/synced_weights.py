"""The weights of an engine, which follow the trained ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from .engine import Engine, WeightVersions


@final
class SyncedWeights:
    """Sends weights to an engine if it has other ones.

    Their version is a function of their bits, so that all processes of a run know it without a message, and a server
    that another run or an earlier one filled is recognized.
    """

    def __init__(self, engine: Engine, parameters: Sequence[nn.Parameter], *, sends: bool) -> None:
        """Sends nothing yet.

        Args:
            engine: the engine.
            parameters: all parameters of its model.
            sends: whether this process sends them; otherwise another process of the run does.
        """
        self._engine, self._sends = engine, sends
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._frozen = digest(
            parameter
            for parameter in parameters
            if not parameter.requires_grad and type(parameter) is nn.Parameter  # types of quantized ones have no bits
        )

    def sync(self) -> None:
        """Sends the weights, if the engine has other ones.

        They are compared by their bits, since optimizers, averages that are applied for an evaluation, and checkpoints
        change them in different ways.

        Raises:
            EngineError: the engine does not answer, or cannot load them.
        """
        versions = WeightVersions(frozen=self._frozen, trained=digest(self._trained))
        self._engine.load_weights(versions, sends=self._sends)


def digest(parameters: Iterable[nn.Parameter]) -> str:
    """A short text that an update of any parameter changes almost surely."""
    sums = [bit_sum(parameter) for parameter in parameters]
    numbers = torch.stack(sums).tolist() if sums else []
    return hashlib.sha256(repr(numbers).encode()).hexdigest()[:12]


def bit_sum(parameter: Tensor) -> Tensor:
    """The sum of the bit patterns of a tensor, as integers; an update of the weights changes it almost surely.

    Shapes: any -> (), int64.
    """
    patterns = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[parameter.element_size()]
    return parameter.detach().flatten().view(patterns).sum(dtype=torch.long)
