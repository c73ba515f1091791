"""Several optimizers of torch as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from torch.optim import Optimizer


@final
class JointOptimizer(Optimizer):
    """Optimizers of different weights that step together, with one state dict and one schedule.

    Attributes:
        optimizers: the optimizers.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        """Takes their groups of weights and their states.

        Args:
            optimizers: of disjoint weights.
        """
        self.optimizers = list(optimizers)
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """One step of each optimizer. A closure is not supported.

        Args:
            closure: None.

        Raises:
            ValueError: there is a closure.
        """
        if closure is not None:
            raise ValueError("a joint optimizer takes no closure")
        groups = iter(self.param_groups)
        for optimizer in self.optimizers:  # loading a state dict replaces groups and state
            optimizer.param_groups = [next(groups) for _ in optimizer.param_groups]
            optimizer.state = self.state
            optimizer.step()
