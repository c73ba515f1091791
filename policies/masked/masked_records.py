"""Records of rows, from which the same decisions can be scored again.

Axes: B rows, N rows of one kind, L positions of an answer, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmgrpo.errors import DataError
from mmgrpo.types import OffPolicySample, Rollout, Sample, Source

from .masked_trace import MaskedTrace, MaskedTraces, TokenSampling, unmasking_passes
from .predictor import Predictor
from .remasking import remasked_trace
from .settings import MaskingSettings

Record = Mapping[str, Any]


def sampled_records(trace: MaskedTrace, order_BL: Tensor, sampled_T: Tensor) -> list[dict[str, Any]]:
    """The records of sampled rows: unmasking order, tokens per step, and stochastic decisions.

    Args:
        trace: of the rows.
        order_BL: positions in unmasking order.
        sampled_T: bool, the stochastic decisions.

    Returns:
        One per row.
    """
    shared = {
        "settings": _settings(trace.sampling),
        "counts": [masked_pass.position_Bn.shape[1] for masked_pass in trace.passes],
        "pooled": trace.pooled,
        "sampled": sampled_T.clone(),
    }
    return [{**shared, "order": order_L.clone()} for order_L in order_BL]


def remasked_rollout(
    predictor: Predictor,
    items: Sequence[OffPolicySample],
    tokens: Sequence[Tensor],
    reading: MaskingSettings,
    sampling: TokenSampling,
    *,
    seed: int,
) -> Rollout:
    """Rows of answers, without log-probabilities: the decisions of a record if there is one, else new maskings.

    Args:
        predictor: the model.
        items: the answers.
        tokens: of each, (L,).
        reading: maskings of answers without a record.
        sampling: token distribution of answers without sampling settings in a record.
        seed: of new maskings.

    Returns:
        The rollout.

    Raises:
        DataError: a replayed row with log-probabilities and without a record of its decisions, or a token that is never
            sampled.
    """
    _require_sampled(predictor, items, tokens)
    rows_of: dict[str, list[int]] = {}
    for row, item in enumerate(items):
        if item.record is None and item.source == Source.REPLAY and item.old_logprob_T is not None:
            raise DataError(
                f"the replayed answer to {item.sample.prompt.text!r:.60} has log-probabilities without a record of "
                "their decisions: set OffPolicySample.record from Rollout.record_B, or remove old_logprob_T"
            )
        rows_of.setdefault(_kind(item.record or {}), []).append(row)
    parts, masks, records = [], [], {}
    for rows in rows_of.values():
        record = items[rows[0]].record or {}
        row_sampling = TokenSampling(**record["settings"]) if "settings" in record else sampling
        kind_items, token_NL = [items[row] for row in rows], torch.stack([tokens[row] for row in rows])
        if "order" in record:
            trace = _unmasked_trace(predictor, kind_items, token_NL, row_sampling)
            mask_NT = trace.mask_BT() & torch.stack([(item.record or {})["sampled"] for item in kind_items])
            order_NL = torch.stack([(item.record or {})["order"] for item in kind_items])
            new_records = sampled_records(trace, order_NL, mask_NT[0])
            new_records = [
                {**new_record, "sampled": mask_T.clone()}
                for new_record, mask_T in zip(new_records, mask_NT, strict=True)
            ]
        else:
            keys = [
                (item.record or {}).get("key") or (seed, item.sample.group, item.sample.member) for item in kind_items
            ]
            settings = MaskingSettings(**record["reading"]) if "reading" in record else reading
            trace = remasked_trace(
                predictor, [item.sample for item in kind_items], token_NL, settings, row_sampling, keys=keys
            )
            mask_NT = trace.mask_BT()
            shared = {"settings": _settings(row_sampling), "reading": settings.model_dump()}
            new_records = [{**shared, "key": list(key)} for key in keys]
        parts.append((torch.tensor(rows), trace))
        masks.append(mask_NT)
        records |= dict(zip(rows, new_records, strict=True))
    samples = [item.sample for item in items]
    return assembled(parts, samples, masks, [records[row] for row in range(len(items))])


def assembled(
    parts: Sequence[tuple[Tensor, MaskedTrace]],
    samples: Sequence[Sample],
    masks: Sequence[Tensor],
    records: Sequence[Record],
) -> Rollout:
    """A rollout without log-probabilities, from rows of one trace or of several.

    Args:
        parts: rows and their trace, disjoint.
        samples: B, in the order of the rows.
        masks: (N, T) bool of each part, the trained decisions.
        records: per row.

    Returns:
        The rollout; parts with fewer decisions use the first columns.
    """
    T = max(mask_NT.shape[1] for mask_NT in masks)
    order_B = torch.cat([row_N for row_N, _ in parts]).argsort()

    def merged(matrix_of: Callable[[MaskedTrace], Tensor], value: int = 0) -> Tensor:
        matrices = [matrix_of(trace) for _, trace in parts]
        return torch.cat([pad(matrix, (0, T - matrix.shape[1]), value=value) for matrix in matrices])[order_B]

    mask_of = {id(trace): mask_NT for (_, trace), mask_NT in zip(parts, masks, strict=True)}
    starts, num_states = {}, 0
    for _, trace in parts:
        starts[id(trace)] = num_states
        num_states += int(trace.state_BT().max()) + 1
    counts = torch.cat([torch.full((len(row_N),), trace.num_decisions) for row_N, trace in parts])[order_B]
    have_tokens = all(trace.token_BT() is not None for _, trace in parts)
    mask_BT = merged(lambda trace: mask_of[id(trace)])
    return Rollout(
        samples=samples,
        prompt_index_B=torch.tensor([sample.group for sample in samples]),
        old_logprob_BT=torch.zeros(mask_BT.shape),
        mask_BT=mask_BT,
        state_BT=merged(lambda trace: trace.state_BT() + starts[id(trace)]),
        segment_BT=merged(lambda trace: trace.segment_BT()),
        trace=parts[0][1] if len(parts) == 1 else MaskedTraces(parts),
        token_BT=merged(lambda trace: _require_matrix(trace.token_BT()), -1) if have_tokens else None,
        num_decisions_B=counts,
        record_B=records,
    )


def parts_of(trace: MaskedTrace | MaskedTraces) -> Iterator[tuple[Tensor, MaskedTrace]]:
    """The rows of each trace, and the trace."""
    if isinstance(trace, MaskedTrace):
        yield torch.arange(len(trace.token_BL)), trace
    else:
        yield from trace.parts


def _unmasked_trace(
    predictor: Predictor, items: Sequence[OffPolicySample], token_NL: Tensor, sampling: TokenSampling
) -> MaskedTrace:
    """The trace of sampled rows of one kind, from their records."""
    prompts = {id(item.sample.prompt): item.sample.prompt for item in items}
    number_of = {key: number for number, key in enumerate(prompts)}
    condition_N = torch.tensor([number_of[id(item.sample.prompt)] for item in items])
    records = [item.record or {} for item in items]
    return MaskedTrace(
        conditions=[predictor.condition(prompt) for prompt in prompts.values()],
        token_BL=token_NL,
        passes=unmasking_passes(
            condition_N, torch.stack([record["order"] for record in records]), records[0]["counts"]
        ),
        pooled=records[0]["pooled"],
        sampling=sampling,
    )


def _require_sampled(predictor: Predictor, items: Sequence[OffPolicySample], tokens: Sequence[Tensor]) -> None:
    """Raises DataError for a token that the policy never samples, whose log-probability is infinite."""
    for item, token_L in zip(items, tokens, strict=True):
        suppressed_L = torch.isin(token_L, predictor.spec.suppressed_ids) & predictor.is_answer(token_L[None])[0]
        if bool(suppressed_L.any()):
            position, sample = int(suppressed_L.nonzero()[0]), item.sample
            raise DataError(
                f"the answer to {sample.prompt.text!r:.60} (group {sample.group}, member {sample.member}) has the "
                f"token {int(token_L[position])} at position {position}, which the policy never samples; remove it "
                "from policy.suppress, or from the answer"
            )


def _kind(record: Record) -> str:
    """The key of rows with one trace: the same number of decisions and distribution."""
    return repr([record.get(name) for name in ("settings", "counts", "pooled", "reading")])


def _settings(sampling: TokenSampling) -> dict[str, float]:
    return {"temperature": sampling.temperature, "guidance_scale": sampling.guidance_scale}


def _require_matrix(matrix: Tensor | None) -> Tensor:
    assert matrix is not None
    return matrix
