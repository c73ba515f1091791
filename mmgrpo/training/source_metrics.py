"""What each of several prompt sources earned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mmgrpo.types import Prompt, Scores


def source_metrics(scores: Scores, group_B: Tensor, prompt_of: Callable[[int], Prompt]) -> dict[str, float]:
    """The mean of each reward over the samples of each source, as ``reward/NAME/mean@LABEL``.

    Args:
        scores: of the whole job.
        group_B: of each sample.
        prompt_of: of a group.

    Returns:
        The means; none of a reward that applied to no sample of a source, and none at all where there is one source.
    """
    metrics = {}
    source_of = {group: prompt_of(group).source for group in group_B.unique().tolist()}
    source_B = [source_of[group] for group in group_B.tolist()]
    for label in dict.fromkeys(source_of.values()):
        if label is None:
            continue
        of_source_B = torch.tensor([source == label for source in source_B])
        for column, name in enumerate(scores.names):
            values = scores.value_BR[scores.valid_BR[:, column] & of_source_B, column].double()
            if len(values):
                metrics[f"reward/{name}/mean@{label}"] = float(values.mean())
    return metrics
