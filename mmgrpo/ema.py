"""The average of the trained weights, and the swap that evaluates it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from mmgrpo.config import EmaConfig


class Average:
    """diffusers' ``EMAModel`` over a fixed list of parameters, updated every few optimiser updates."""

    def __init__(self, parameters: Sequence[nn.Parameter], config: EmaConfig) -> None:
        from diffusers.training_utils import EMAModel  # seconds to import, and few runs average

        self._parameters = list(parameters)
        self._config = config
        self._updates = 0
        self._model = EMAModel(self._parameters, decay=config.decay)

    def update(self) -> None:
        """Counts an optimiser update, and averages when it is due."""
        self._updates += 1
        if self._updates % self._config.every == 0:
            self._model.step(self._parameters)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within it the parameters hold their averages."""
        self._model.store(self._parameters)
        self._model.copy_to(self._parameters)
        try:
            yield
        finally:
            self._model.restore(self._parameters)

    def state_dict(self) -> dict[str, Any]:
        """The averages and how many updates they have seen."""
        return {"model": self._model.state_dict(), "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""
        self._model.load_state_dict(state["model"])
        self._model.to(self._parameters[0].device)
        self._updates = state["updates"]
