"""Finished answers under maskings of their own.

Axes: B rows, L places of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmgrpo.maths.seeds import derive_seed
from mmgrpo.types import Sample

from .masked_trace import MaskedPass, MaskedTrace, TokenSampling
from .predictor import Condition, Predictor
from .settings import MaskingSettings
from .unmasking_schedule import Masking, bound_maskings, share_maskings, whole_maskings

READ = -2
"""Keys the maskings, apart from the random numbers of drawing."""


def maskings_of(length: int, settings: MaskingSettings) -> list[Masking]:
    """The maskings that the settings ask for."""
    num = settings.num_levels
    if settings.estimate == "whole":
        return whole_maskings(length, num)
    if settings.estimate == "bound":
        return bound_maskings(length, num)
    later = settings.places == "later"
    return share_maskings(length, num, low=settings.low, high=settings.high, later=later)


def read_trace(
    predictor: Predictor,
    samples: Sequence[Sample],
    token_BL: Tensor,
    settings: MaskingSettings,
    drawing: TokenSampling,
    *,
    keys: Sequence[Sequence[int]],
) -> MaskedTrace:
    """The trace of answers that are there, hidden again by numbers of (seed, group, member, masking).

    Tokens behind an answer's end are hidden with the others and not asked for.

    Args:
        predictor: the model.
        samples: whose prompts are the conditions.
        token_BL: their answers.
        settings: how they are hidden.
        drawing: the distribution that they are scored by.
        keys: seed, group and member of each.

    Returns:
        A look for each masking.
    """
    made = {id(sample.prompt): predictor.condition(sample.prompt) for sample in samples}
    conditions: list[Condition] = list(made.values())
    number_of = {key: number for number, key in enumerate(made)}
    plain_B = torch.tensor([number_of[id(sample.prompt)] for sample in samples])
    kept_BL = predictor.until_end(token_BL)
    place_BL = torch.arange(token_BL.shape[1]).expand_as(token_BL)
    looks = []
    for number, masking in enumerate(maskings_of(token_BL.shape[1], settings)):
        keyed = [derive_seed(seed, group, member, READ, number) for seed, group, member in keys]
        generators = [torch.Generator().manual_seed(key) for key in keyed]
        uniform_BL = torch.stack([torch.rand(token_BL.shape[1], generator=generator) for generator in generators])
        hidden_BL = uniform_BL < masking.probability_L
        condition_B = plain_B
        if settings.prompt_share > 0:
            condition_B = torch.arange(len(samples)) + len(conditions)
            for condition, generator in zip([conditions[number] for number in plain_B], generators, strict=True):
                conditions.append(predictor.hidden(condition, settings.prompt_share, generator))
        asked_Bn = hidden_BL & kept_BL
        looks.append(
            MaskedPass(
                condition_B=condition_B,
                hidden_BL=hidden_BL,
                place_Bn=place_BL,
                asked_Bn=asked_Bn,
                weight=masking.weight,
            )
        )
    pooled = "sum" if settings.estimate == "bound" else None
    return MaskedTrace(conditions=conditions, token_BL=token_BL, looks=looks, pooled=pooled, drawing=drawing)
