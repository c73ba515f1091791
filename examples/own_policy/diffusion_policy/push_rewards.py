"""What an episode was worth, read off its way alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from diffusion_policy.simulator import TOLERANCE, distance_to_goal
from mmgrpo.errors import DataError
from mmgrpo.types import Sample, Scope, Score


@dataclass(frozen=True)
class Pushed:
    """Whether the block is at the goal when the episode is over: 1 or 0."""

    tolerance: float = TOLERANCE
    deterministic = True

    def __call__(self, samples: Sequence[Sample]) -> list[Score | None]:
        """A score for each episode, with the distance that is left."""
        return [None if sample.array is None else self._score(sample.array) for sample in samples]

    def _score(self, path_NS: torch.Tensor) -> Score:
        left = float(distance_to_goal(path_NS[-1]))
        return Score(float(left <= self.tolerance), {"reason": f"{left:.2f} from the goal"})


@dataclass(frozen=True)
class PushProgress:
    """How far the block came towards the goal, in all and in each chunk."""

    chunks: int = 12
    denoising_steps: int = 8
    deterministic = True

    def __call__(self, samples: Sequence[Sample]) -> list[Score | None]:
        """A score for each episode; a chunk's decisions are a part of it."""
        return [None if sample.array is None else self._score(sample.array) for sample in samples]

    def _score(self, path_NS: torch.Tensor) -> Score:
        length, rest = divmod(len(path_NS) - 1, self.chunks)
        if rest:
            raise DataError(f"{len(path_NS) - 1} steps are no {self.chunks} chunks: set chunks to the policy's")
        left = distance_to_goal(path_NS[::length])
        gained = (left[:-1] - left[1:]).tolist()
        K = self.denoising_steps
        return Score(sum(gained), scopes=[Scope(n * K, (n + 1) * K, gain) for n, gain in enumerate(gained)])
