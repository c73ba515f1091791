"""The weights of an engine, which follow the trained ones."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from .engine import Engine


@final
class SyncedWeights:
    """Sends weights to an engine if they have changed, or if the engine has lost them."""

    def __init__(
        self, engine: Engine, parameters: Callable[[], Sequence[nn.Parameter]], save: Callable[[Path], None]
    ) -> None:
        """Sends nothing yet.

        Args:
            engine: the engine.
            parameters: returns the trained parameters.
            save: writes the weights into a folder, as ``save_pretrained`` does.
        """
        self._engine, self._parameters, self._save = engine, parameters, save
        self._run, self._num_sent = uuid.uuid4().hex[:12], 0
        self._sent: list[int] | None = None

    def sync(self) -> None:
        """Sends the weights if they differ from those of the engine.

        They are compared by their bits, since optimizers, averages that are applied for an evaluation, and checkpoints
        change them in different ways.

        Raises:
            EngineError: the engine does not answer, or cannot load them.
        """
        bits = torch.stack([bit_sum(parameter) for parameter in self._parameters()]).tolist()
        if bits == self._sent and self._engine.weight_version() == self._version:
            return
        self._num_sent += 1
        self._engine.load_weights(self._save, self._version)
        self._sent = bits

    @property
    def _version(self) -> str:
        return f"mmgrpo-{self._run}-{self._num_sent}"


def bit_sum(parameter: Tensor) -> Tensor:
    """The sum of the bit patterns of a tensor, as integers; an update of the weights changes it almost surely.

    Shapes: any -> (), int64.
    """
    patterns = {2: torch.int16, 4: torch.int32}[parameter.element_size()]
    return parameter.detach().flatten().view(patterns).sum(dtype=torch.long)
