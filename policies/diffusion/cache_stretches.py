"""Stretches of consecutive untrained steps, in which a cache is filled and read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn

from mmgrpo.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CacheStretches:
    """Where a cache may be read, and the calls of the denoisers at each step.

    Attributes:
        name: name of the cache, for messages.
        num_filling: steps at the beginning of each stretch that are computed completely.
        first_reuse: the first step of a rollout that may be skipped.
    """

    name: str
    num_filling: int
    first_reuse: int = 0
    _has_warned: bool = False
    _calls: dict[nn.Module, tuple[int, int]] = field(default_factory=dict)

    def require_reuse(self, is_untrained: Callable[[int], bool], num_steps: int) -> None:
        """Checks that the cache can skip something in a rollout; if only another window could, it warns once.

        Args:
            is_untrained: whether a step may use the cache.
            num_steps: number of steps of the rollout.

        Raises:
            ConfigError: so few steps may use it that no window of this size leaves a step that reuses an earlier one.
        """
        steps = [step for step in range(num_steps) if is_untrained(step)]
        if any(self._may_reuse(step, start) for step, start in zip(steps, _starts(steps), strict=True)):
            return
        idle = (
            f"policy.cache: {len(steps)} of {num_steps} steps are not trained, and none of them reuses what "
            f"{self.name} stored: it fills {self.num_filling} steps after each trained one"
            + (f" and all up to step {self.first_reuse - 1}, from 0" if self.first_reuse else "")
        )
        last_steps = range(num_steps - len(steps), num_steps)
        if not any(self._may_reuse(step, last_steps.start) for step in last_steps):
            raise ConfigError(f"{idle}; train fewer steps (rollout.window), or remove policy.cache")
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s; a rollout.window at one end of the schedule leaves longer stretches", idle)

    def _may_reuse(self, step: int, start: int) -> bool:
        """Whether the cache may skip something at a step of a stretch of cached steps from ``start`` on."""
        return step - start >= self.num_filling and step >= self.first_reuse

    def next_call(self, module: nn.Module, iteration: int) -> tuple[int, bool]:
        """The number of a denoiser's call among those of its step, and whether a new stretch begins after the last."""
        last, ordinal = self._calls.get(module, (iteration, -1))
        ordinal = ordinal + 1 if iteration == last else 0
        self._calls[module] = iteration, ordinal
        return ordinal, iteration - last > 1

    def forget_calls(self) -> None:
        """Begins another run of the pipeline."""
        self._calls.clear()


def _starts(steps: Sequence[int]) -> Iterator[int]:
    """The first step of the stretch of consecutive steps that each step is in."""
    start = None
    for step, previous in zip(steps, (None, *steps), strict=False):
        start = step if start is None or previous is None or step > previous + 1 else start
        yield start
