"""Finished answers under new maskings.

Axes: B rows, L positions of an answer.
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
from .unmasking_schedule import Masking, bound_maskings, equal_maskings, share_maskings

REMASKING = -2
"""Seed key of the maskings, distinct from sampling."""


def maskings_of(length: int, settings: MaskingSettings) -> list[Masking]:
    """The maskings of the settings."""
    num = settings.num_levels
    if settings.estimate == "whole":
        return equal_maskings(length, num)
    if settings.estimate == "bound":
        return bound_maskings(length, num)
    later = settings.places == "later"
    return share_maskings(length, num, low=settings.low, high=settings.high, later=later)


def remasked_trace(
    predictor: Predictor,
    samples: Sequence[Sample],
    token_BL: Tensor,
    settings: MaskingSettings,
    sampling: TokenSampling,
    *,
    keys: Sequence[Sequence[int]],
) -> MaskedTrace:
    """The trace of finished answers, masked by random numbers keyed by (seed, group, member, masking).

    Tokens after an answer's end are masked like others and not scored.

    Args:
        predictor: the model.
        samples: their prompts are the conditions.
        token_BL: their answers.
        settings: the maskings.
        sampling: the token distribution that scores them.
        keys: seed, group and member of each.

    Returns:
        One pass per masking.
    """
    condition_of = {id(sample.prompt): predictor.condition(sample.prompt) for sample in samples}
    conditions: list[Condition] = list(condition_of.values())
    number_of = {key: number for number, key in enumerate(condition_of)}
    plain_B = torch.tensor([number_of[id(sample.prompt)] for sample in samples])
    is_answer_BL = predictor.is_answer(token_BL)
    position_BL = torch.arange(token_BL.shape[1]).expand_as(token_BL)
    passes = []
    for number, masking in enumerate(maskings_of(token_BL.shape[1], settings)):
        mask_seeds = [derive_seed(seed, group, member, REMASKING, number) for seed, group, member in keys]
        generators = [torch.Generator().manual_seed(key) for key in mask_seeds]
        uniform_BL = torch.stack([torch.rand(token_BL.shape[1], generator=generator) for generator in generators])
        masked_BL = uniform_BL < masking.probability_L
        condition_B = plain_B
        if settings.prompt_share > 0:
            condition_B = torch.arange(len(samples)) + len(conditions)
            for condition, generator in zip([conditions[number] for number in plain_B], generators, strict=True):
                conditions.append(predictor.mask_prompt(condition, settings.prompt_share, generator))
        scored_Bn = masked_BL & is_answer_BL
        passes.append(
            MaskedPass(
                condition_B=condition_B,
                masked_BL=masked_BL,
                position_Bn=position_BL,
                scored_Bn=scored_Bn,
                weight=masking.weight,
            )
        )
    pooled = "sum" if settings.estimate == "bound" else None
    return MaskedTrace(conditions=conditions, token_BL=token_BL, passes=passes, pooled=pooled, sampling=sampling)
