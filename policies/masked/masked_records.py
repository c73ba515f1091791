"""Rows of rollouts: what each records so that it can be read as the same decisions again, and how that is done.

Axes: B rows, N rows of one kind, L places of an answer, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmgrpo.errors import DataError
from mmgrpo.types import OffPolicySample, Origin, Rollout, Sample

from .masked_trace import MaskedTrace, MaskedTraces, TokenSampling, unmasking_passes
from .predictor import Predictor
from .remasking import read_trace
from .settings import MaskingSettings

Record = Mapping[str, Any]


def sampled_records(trace: MaskedTrace, order_BL: Tensor, sampled_T: Tensor) -> list[dict[str, Any]]:
    """The records of sampled rows: the order of unmasking, the tokens of each step, and which steps sampled.

    Args:
        trace: of the rows.
        order_BL: places in the order in which they were unmasked.
        sampled_T: bool, the decisions that are sampled.

    Returns:
        One per row.
    """
    shared = {
        "settings": _settings(trace.drawing),
        "counts": [look.place_Bn.shape[1] for look in trace.looks],
        "pooled": trace.pooled,
        "sampled": sampled_T.clone(),
    }
    return [{**shared, "order": order_L.clone()} for order_L in order_BL]


def read_again(
    predictor: Predictor,
    given: Sequence[OffPolicySample],
    tokens: Sequence[Tensor],
    reading: MaskingSettings,
    drawing: TokenSampling,
    *,
    seed: int,
) -> Rollout:
    """Rows of answers, without log-probabilities: the decisions of a record where there is one, else new maskings.

    Args:
        predictor: the model.
        given: the answers.
        tokens: of each, (L,).
        reading: how those without a record are masked.
        drawing: the distribution of those without sampling settings in a record.
        seed: of new maskings.

    Returns:
        The rollout.

    Raises:
        DataError: a replayed row with log-probabilities and without a record of its decisions, or a token that is never
            sampled.
    """
    _require_sampled(predictor, given, tokens)
    rows_of: dict[str, list[int]] = {}
    for row, one in enumerate(given):
        if one.record is None and one.origin == Origin.REPLAY and one.old_logprob_T is not None:
            raise DataError(
                f"the replayed answer to {one.sample.prompt.text!r:.60} has log-probabilities, and no record says of "
                "which decisions: give Given.record as Rollout.record_B has it, or no old_logprob_T"
            )
        rows_of.setdefault(_kind(one.record or {}), []).append(row)
    parts, masks, records = [], [], {}
    for rows in rows_of.values():
        record = given[rows[0]].record or {}
        found = TokenSampling(**record["settings"]) if "settings" in record else drawing
        own, token_NL = [given[row] for row in rows], torch.stack([tokens[row] for row in rows])
        if "order" in record:
            trace = _unmasked_trace(predictor, own, token_NL, found)
            mask_NT = trace.mask_BT() & torch.stack([(one.record or {})["sampled"] for one in own])
            new = sampled_records(trace, torch.stack([(one.record or {})["order"] for one in own]), mask_NT[0])
            new = [{**each, "sampled": mask_T.clone()} for each, mask_T in zip(new, mask_NT, strict=True)]
        else:
            keys = [(one.record or {}).get("key") or (seed, one.sample.group, one.sample.member) for one in own]
            settings = MaskingSettings(**record["reading"]) if "reading" in record else reading
            trace = read_trace(predictor, [one.sample for one in own], token_NL, settings, found, keys=keys)
            mask_NT = trace.mask_BT()
            plain = {"settings": _settings(found), "reading": settings.model_dump()}
            new = [{**plain, "key": list(key)} for key in keys]
        parts.append((torch.tensor(rows), trace))
        masks.append(mask_NT)
        records |= dict(zip(rows, new, strict=True))
    samples = [one.sample for one in given]
    return assembled(parts, samples, masks, [records[row] for row in range(len(given))])


def assembled(
    parts: Sequence[tuple[Tensor, MaskedTrace]],
    samples: Sequence[Sample],
    masks: Sequence[Tensor],
    records: Sequence[Record],
) -> Rollout:
    """A rollout whose log-probabilities are not known yet, of rows of one trace or of several.

    Args:
        parts: rows and their trace; no row is in two.
        samples: B, in the order of the rows.
        masks: (N, T) bool of each part, the decisions that are trained.
        records: per row.

    Returns:
        The rollout; decisions of parts that have fewer are in the first columns.
    """
    T = max(mask_NT.shape[1] for mask_NT in masks)
    order_B = torch.cat([row_N for row_N, _ in parts]).argsort()

    def whole(matrix_of: Callable[[MaskedTrace], Tensor], value: int = 0) -> Tensor:
        matrices = [matrix_of(trace) for _, trace in parts]
        return torch.cat([pad(each, (0, T - each.shape[1]), value=value) for each in matrices])[order_B]

    mask_of = {id(trace): mask_NT for (_, trace), mask_NT in zip(parts, masks, strict=True)}
    starts, taken = {}, 0
    for _, trace in parts:
        starts[id(trace)] = taken
        taken += int(trace.state_BT().max()) + 1
    counts = torch.cat([torch.full((len(row_N),), trace.num_decisions) for row_N, trace in parts])[order_B]
    have_tokens = all(trace.token_BT() is not None for _, trace in parts)
    mask_BT = whole(lambda trace: mask_of[id(trace)])
    return Rollout(
        samples=samples,
        prompt_index_B=torch.tensor([sample.group for sample in samples]),
        old_logprob_BT=torch.zeros(mask_BT.shape),
        mask_BT=mask_BT,
        state_BT=whole(lambda trace: trace.state_BT() + starts[id(trace)]),
        segment_BT=whole(lambda trace: trace.segment_BT()),
        trace=parts[0][1] if len(parts) == 1 else MaskedTraces(parts),
        token_BT=whole(lambda trace: _present(trace.token_BT()), -1) if have_tokens else None,
        num_decisions_B=counts,
        record_B=records,
    )


def parts_of(trace: MaskedTrace | MaskedTraces) -> Iterator[tuple[Tensor, MaskedTrace]]:
    """The rows of each trace, with the trace."""
    if isinstance(trace, MaskedTrace):
        yield torch.arange(len(trace.token_BL)), trace
    else:
        yield from trace.parts


def _unmasked_trace(
    predictor: Predictor, given: Sequence[OffPolicySample], token_NL: Tensor, drawing: TokenSampling
) -> MaskedTrace:
    """The trace of rows that were sampled, from their records, which are of one kind."""
    made = {id(one.sample.prompt): one.sample.prompt for one in given}
    number_of = {key: number for number, key in enumerate(made)}
    condition_N = torch.tensor([number_of[id(one.sample.prompt)] for one in given])
    records = [one.record or {} for one in given]
    return MaskedTrace(
        conditions=[predictor.condition(prompt) for prompt in made.values()],
        token_BL=token_NL,
        looks=unmasking_passes(condition_N, torch.stack([record["order"] for record in records]), records[0]["counts"]),
        pooled=records[0]["pooled"],
        drawing=drawing,
    )


def _require_sampled(predictor: Predictor, given: Sequence[OffPolicySample], tokens: Sequence[Tensor]) -> None:
    """Raises DataError for a token that the policy never samples, whose log-probability is infinite."""
    for one, token_L in zip(given, tokens, strict=True):
        never_L = torch.isin(token_L, predictor.facts.never) & predictor.until_end(token_L[None])[0]
        if bool(never_L.any()):
            place, sample = int(never_L.nonzero()[0]), one.sample
            raise DataError(
                f"the answer to {sample.prompt.text!r:.60} (group {sample.group}, member {sample.member}) has the "
                f"token {int(token_L[place])} at place {place}, which the policy never samples: remove it from "
                "policy.suppress, or from the answer"
            )


def _kind(record: Record) -> str:
    """Rows of one kind have one trace: as many decisions, of one distribution."""
    return repr([record.get(name) for name in ("settings", "counts", "pooled", "reading")])


def _settings(drawing: TokenSampling) -> dict[str, float]:
    return {"temperature": drawing.temperature, "guidance_scale": drawing.guidance_scale}


def _present(matrix: Tensor | None) -> Tensor:
    assert matrix is not None
    return matrix
