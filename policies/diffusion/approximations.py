"""Approximations of the denoisers at the steps of a rollout that are not trained, where the ratio stays exact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import prod

from torch import nn

from .pipeline_run import PipelineRun


class Approximation(ABC):
    """A cheaper way to run the denoisers, installed for a run of the pipeline and removed after it.

    Attributes:
        key: the setting that selects it.
    """

    key: str

    @abstractmethod
    def require_effect(self, is_untrained: Callable[[int], bool], num_steps: int) -> None:
        """Raises ConfigError if it would save nothing in a rollout of ``num_steps`` steps."""

    @abstractmethod
    def installed(self) -> AbstractContextManager[None]:
        """The context of a run of the pipeline."""

    @abstractmethod
    def is_on(self, module: nn.Module) -> bool:
        """Whether it is installed on a module."""

    @abstractmethod
    def at(self, module: nn.Module, iteration: int) -> AbstractContextManager[list[float]]:
        """The context of a call of a denoiser at an untrained step, from 0.

        It yields a list; after the context the list has the share of the parameters that ran, from 0 to 1.
        """

    @abstractmethod
    def off(self) -> AbstractContextManager[None]:
        """The context of a call at a trained step, which is exact and does not change the state."""


@contextmanager
def approximated(approximations: Sequence[Approximation], run: PipelineRun, module: nn.Module) -> Iterator[list[float]]:
    """The context of a denoiser call in a run; after it the list has the shares of the parameters that ran."""
    shares: list[list[float]] = []
    result: list[float] = []
    with ExitStack() as stack:
        for approximation in approximations:
            if run.is_untrained is None or not approximation.is_on(module):
                continue
            if run.is_untrained(run.iteration):
                shares.append(stack.enter_context(approximation.at(module, run.iteration)))
            else:
                stack.enter_context(approximation.off())
        yield result
    result.append(prod(share[0] for share in shares))


def share_that_ran(module: nn.Module, skipped: Iterable[nn.Module]) -> float:
    """The share of a denoiser's parameters that are not in skipped blocks, from 0 to 1."""
    num_skipped = sum(parameter.numel() for block in skipped for parameter in block.parameters())
    return 1.0 - num_skipped / max(sum(parameter.numel() for parameter in module.parameters()), 1)
