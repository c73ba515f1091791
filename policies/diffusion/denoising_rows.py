"""Row identities: everything random about a row is a function of its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmgrpo.maths.seeds import derive_seed
from mmgrpo.splits import NO_BRANCHING, Branching
from mmgrpo.types import Prompt

INITIAL_NOISE = -1  # seed key of the pipeline's own generator, before every decision


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoisingRow:
    """The identity of a sample, which determines everything random about it.

    Attributes:
        prompt: its prompt.
        seed: the step's seed.
        group: the prompt's id in the job.
        member: position in the group.
        branching: how long the group's members share their noise.
        entry: index of its prompt in the rollout; rows of one group and entry may share states.
    """

    prompt: Prompt
    seed: int
    group: int
    member: int
    branching: Branching = NO_BRANCHING
    entry: int = 0

    def branch(self, decision: int) -> int:
        """The branch of the row after a decision, named by its first member."""
        return self.branching.first(self.member, decision)

    def generator(self) -> torch.Generator:
        """A new generator for random numbers of the pipeline (initial noise, encoder samples)."""
        seed = derive_seed(self.seed, self.group, self.branch(INITIAL_NOISE), INITIAL_NOISE)
        return torch.Generator().manual_seed(seed)

    def noise(self, shape: Sequence[int], *, iteration: int, ordinal: int) -> Tensor:
        """Standard normal noise of one decision, float32, on the CPU so that it is the same on every device."""
        seed = derive_seed(self.seed, self.group, self.branch(iteration), iteration, ordinal)
        return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def call_has_media(call: Mapping[str, Any]) -> bool:
    """Whether the call has an image, a mask or a video for every prompt.

    Rows then run alone: pipelines encode such an argument once per batch, with the first row's generator.
    """
    return any(_is_media(value) for value in call.values())


def _is_media(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_is_media(item) for item in value)
    return isinstance(value, (Image.Image, Tensor, np.ndarray))
