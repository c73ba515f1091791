"""Credit of groups that are all of one size, prompt-major."""

from __future__ import annotations

import torch
from torch import Tensor

from mmgrpo.algorithm import AdvantageChain
from mmgrpo.config import AdvantageConfig
from mmgrpo.training.compute_advantages import SampleAdvantages, group_advantages
from mmgrpo.types import Scores


def credit_of(
    scores: Scores, group_size: int, config: AdvantageConfig, divergence_B: Tensor | None = None
) -> SampleAdvantages:
    group_B = torch.arange(len(scores.value_BR)) // group_size
    return group_advantages(scores, group_B, AdvantageChain.of(config), divergence_B)
