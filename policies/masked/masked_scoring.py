"""How likely the tokens of masked rows are under the maskings that they are asked for.

Axes: N rows of one batch, n places of a look, V tokens, L places of an answer, M asked-for tokens.
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
    """What a look says of some rows.

    Attributes:
        logprob: float32, of each token, or of all of a row.
        values: of the distributions, likewise; a mean where they are together.
    """

    logprob: Tensor
    values: Mapping[Value, Tensor]


def tempered(logits: Tensor, drawing: TokenSampling, never: Tensor) -> Tensor:
    """Float32 logits over the temperature, what is never drawn at minus infinity.

    Shapes: (..., V) -> (..., V).
    """
    scaled = logits.float() / drawing.temperature
    return scaled.index_fill(-1, never.to(scaled.device), -torch.inf) if len(never) else scaled


def logits_of(
    predictor: Predictor,
    modules: Mapping[str, nn.Module],
    conditions: Sequence[Condition],
    token_NL: Tensor,
    hidden_NL: Tensor,
    guidance_scale: float,
) -> Tensor:
    """(N, L, V), rows that see the same asked once."""
    place: dict[tuple[int, bytes], int] = {}
    seen_NL = token_NL.masked_fill(hidden_NL, -1)
    owner = [
        place.setdefault((id(condition), seen_L.numpy().tobytes()), len(place))
        for condition, seen_L in zip(conditions, seen_NL, strict=True)
    ]
    first = [owner.index(number) for number in range(len(place))]
    logits_SLV = predictor.logits(
        modules,
        [conditions[row] for row in first],
        token_NL[first],
        hidden_NL[first],
        guidance_scale=guidance_scale,
    )
    return logits_SLV if len(first) == len(owner) else logits_SLV[owner]


def score_pass(
    predictor: Predictor,
    modules: Mapping[str, nn.Module],
    trace: MaskedTrace,
    look: MaskedPass,
    rows: Sequence[int],
    values: Sequence[Value] = (),
) -> ScoredPass:
    """What one look says of rows of one kind, (N, n) or, pooled, (N, 1)."""
    conditions = [trace.conditions[number] for number in look.condition_B[list(rows)].tolist()]
    logits_NLV = logits_of(
        predictor, modules, conditions, trace.token_BL[rows], look.hidden_BL[rows], trace.drawing.guidance_scale
    )
    device = logits_NLV.device
    place_Nn, asked_Nn = look.place_Bn[rows].to(device), look.asked_Bn[rows].to(device)
    row_M, at_M = asked_Nn.nonzero(as_tuple=True)
    logits_MV = tempered(logits_NLV[row_M, place_Nn[row_M, at_M]], trace.drawing, predictor.facts.never)
    token_M = trace.token_BL[rows].to(device).gather(1, place_Nn)[asked_Nn]
    logprob_M = -look.weight * cross_entropy(logits_MV, token_M, reduction="none")
    found = [LOGIT_VALUES[value.name](logits_MV, token_M, *value.numbers) for value in values]
    logprob_Nn, *found_Nn = (scatter_to_mask(asked_Nn, each_M) for each_M in (logprob_M, *found))
    if trace.pooled is not None:
        num_N1 = asked_Nn.sum(1, keepdim=True).clamp(min=1)
        logprob_Nn = logprob_Nn.sum(1, keepdim=True) / (num_N1 if trace.pooled == "mean" else 1)
        found_Nn = [each_Nn.sum(1, keepdim=True) / num_N1 for each_Nn in found_Nn]
    return ScoredPass(logprob_Nn, dict(zip(values, found_Nn, strict=True)))


def batches_of_kind(kinds: Sequence[Hashable], size: int) -> Iterator[list[int]]:
    """Places of one kind, at most so many together."""
    of_kind: dict[Hashable, list[int]] = {}
    for place, kind in enumerate(kinds):
        of_kind.setdefault(kind, []).append(place)
    for places in of_kind.values():
        yield from (places[start : start + size] for start in range(0, len(places), size))
