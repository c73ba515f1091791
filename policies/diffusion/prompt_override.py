"""The same decisions under other prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt, Rollout

from .denoising_rows import DenoisingRow
from .denoising_trace import DenoisingTrace
from .renoising import RenoisedTrace


def override_prompts(rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
    """``SupportsPromptOverride.override_prompts``: the same latents under other prompts.

    Rows share a state if they did before and get one prompt object.
    """
    entries: dict[tuple[int, int], int] = {}
    keys = [(group, id(prompt)) for group, prompt in zip(rollout.prompt_index_B.tolist(), prompts, strict=True)]
    entry_B = torch.tensor([entries.setdefault(key, len(entries)) for key in keys])
    trace = rollout.trace

    def with_prompt(row: DenoisingRow, number: int) -> DenoisingRow:
        return replace(row, prompt=prompts[number], entry=int(entry_B[number]))

    if isinstance(trace, RenoisedTrace):
        clean_samples = enumerate(trace.clean_samples)
        new_trace = replace(
            trace,
            clean_samples=tuple(
                tuple(replace(clean, row=with_prompt(clean.row, number)) for clean in levels)
                for number, levels in clean_samples
            ),
        )
    elif isinstance(trace, DenoisingTrace):
        new_trace = replace(trace, rows=tuple(with_prompt(row, number) for number, row in enumerate(trace.rows)))
    else:
        raise ConfigError(
            "prompt overrides of a denoising policy need its own rollout; got one of another kind of policy"
        )
    return replace(rollout, trace=new_trace, state_BT=_distinct_states(rollout.state_BT, entry_B))


def rows_by_call(trace: DenoisingTrace | RenoisedTrace) -> list[tuple[Mapping[str, Any], list[DenoisingRow]]]:
    """The rows of a trace grouped by the call arguments that they share, in their order."""
    if isinstance(trace, RenoisedTrace):
        rows, calls = [clean_samples[0].row for clean_samples in trace.clean_samples], list(trace.calls)
    else:
        rows, calls = list(trace.rows), [params.call for params in trace.row_params]
    by_call: dict[int, tuple[Mapping[str, Any], list[DenoisingRow]]] = {}
    for row, call in zip(rows, calls, strict=True):
        by_call.setdefault(id(call), (call, []))[1].append(row)
    return list(by_call.values())


def _distinct_states(state_BT: Tensor, entry_B: Tensor) -> Tensor:
    """State numbers that differ between rows with different prompts."""
    pairs = torch.stack([state_BT.flatten(), entry_B[:, None].expand(state_BT.shape).flatten()])
    return pairs.unique(dim=1, return_inverse=True)[1].reshape(state_BT.shape)
