"""Log-probabilities of tokens under their maskings.

Axes: N rows of one batch, n positions of a pass, V tokens, L positions of an answer, M scored tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mmgrpo.values import Value

from ..distribution import LOGIT_VALUES
from ..rescoring import scatter_to_mask
from .masked_trace import MaskedPass, MaskedTrace, TokenSampling
from .predictor import Condition, Predictor


@dataclass(frozen=True, slots=True)
class ScoredPass:
    """The scores of some rows in one pass.

    Attributes:
        logprob: float32, per token, or per row if pooled.
        values: of the distributions, likewise; means if pooled.
    """

    logprob: Tensor
    values: Mapping[Value, Tensor]


def tempered(logits: Tensor, sampling: TokenSampling, suppressed_ids: Tensor) -> Tensor:
    """Float32 logits divided by the temperature, suppressed ids at minus infinity.

    Shapes: (..., V) -> (..., V).
    """
    scaled = logits.float() / sampling.temperature
    return scaled.index_fill(-1, suppressed_ids.to(scaled.device), -torch.inf) if len(suppressed_ids) else scaled


def logits_of(
    predictor: Predictor,
    modules: Mapping[str, nn.Module],
    conditions: Sequence[Condition],
    token_NL: Tensor,
    masked_NL: Tensor,
    guidance_scale: float,
) -> Tensor:
    """(N, L, V); rows with identical inputs share one forward."""
    index_of: dict[tuple[int, bytes], int] = {}
    visible_NL = token_NL.masked_fill(masked_NL, -1)
    owners = [
        index_of.setdefault((id(condition), visible_L.numpy().tobytes()), len(index_of))
        for condition, visible_L in zip(conditions, visible_NL, strict=True)
    ]
    unique_rows = [owners.index(number) for number in range(len(index_of))]
    logits_SLV = predictor.logits(
        modules,
        [conditions[row] for row in unique_rows],
        token_NL[unique_rows],
        masked_NL[unique_rows],
        guidance_scale=guidance_scale,
    )
    return logits_SLV if len(unique_rows) == len(owners) else logits_SLV[owners]


def score_pass(
    predictor: Predictor,
    modules: Mapping[str, nn.Module],
    trace: MaskedTrace,
    masked_pass: MaskedPass,
    rows: Sequence[int],
    values: Sequence[Value] = (),
) -> ScoredPass:
    """The scores of rows of one kind in one pass, (N, n) or, pooled, (N, 1)."""
    conditions = [trace.conditions[number] for number in masked_pass.condition_B[list(rows)].tolist()]
    logits_NLV = logits_of(
        predictor, modules, conditions, trace.token_BL[rows], masked_pass.masked_BL[rows], trace.sampling.guidance_scale
    )
    device = logits_NLV.device
    position_Nn, scored_Nn = masked_pass.position_Bn[rows].to(device), masked_pass.scored_Bn[rows].to(device)
    row_M, index_M = scored_Nn.nonzero(as_tuple=True)
    logits_MV = tempered(logits_NLV[row_M, position_Nn[row_M, index_M]], trace.sampling, predictor.spec.suppressed_ids)
    token_M = trace.token_BL[rows].to(device).gather(1, position_Nn)[scored_Nn]
    logprob_M = -masked_pass.weight * cross_entropy(logits_MV, token_M, reduction="none")
    values_M = [LOGIT_VALUES[value.name](logits_MV, token_M, *value.numbers) for value in values]
    logprob_Nn, *values_Nn = (scatter_to_mask(scored_Nn, value_M) for value_M in (logprob_M, *values_M))
    if trace.pooled is not None:
        num_N1 = scored_Nn.sum(1, keepdim=True).clamp(min=1)
        logprob_Nn = logprob_Nn.sum(1, keepdim=True) / (num_N1 if trace.pooled == "mean" else 1)
        values_Nn = [value_Nn.sum(1, keepdim=True) / num_N1 for value_Nn in values_Nn]
    return ScoredPass(logprob_Nn, dict(zip(values, values_Nn, strict=True)))


def batches_of_kind(kinds: Sequence[Hashable], size: int) -> Iterator[list[int]]:
    """Indices of one kind, in batches of at most ``size``."""
    indices_of: dict[Hashable, list[int]] = {}
    for index, kind in enumerate(kinds):
        indices_of.setdefault(kind, []).append(index)
    for indices in indices_of.values():
        yield from (indices[start : start + size] for start in range(0, len(indices), size))
