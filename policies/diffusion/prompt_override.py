"""The same decisions behind other prompts."""

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
    places: dict[tuple[int, int], int] = {}
    keys = [(group, id(prompt)) for group, prompt in zip(rollout.prompt_index_B.tolist(), prompts, strict=True)]
    entry_B = torch.tensor([places.setdefault(key, len(places)) for key in keys])
    trace = rollout.trace

    def shown(row: DenoisingRow, number: int) -> DenoisingRow:
        return replace(row, prompt=prompts[number], entry=int(entry_B[number]))

    if isinstance(trace, RenoisedTrace):
        cleans = enumerate(trace.cleans)
        own = replace(
            trace, cleans=tuple(tuple(replace(c, row=shown(c.row, number)) for c in many) for number, many in cleans)
        )
    elif isinstance(trace, DenoisingTrace):
        own = replace(trace, rows=tuple(shown(row, number) for number, row in enumerate(trace.rows)))
    else:
        raise ConfigError("a denoising policy looks at denoising steps: the view is of a policy of another kind")
    return replace(rollout, trace=own, state_BT=_apart(rollout.state_BT, entry_B))


def rows_by_call(trace: DenoisingTrace | RenoisedTrace) -> list[tuple[Mapping[str, Any], list[DenoisingRow]]]:
    """The rows of a trace by the arguments that they share, in their order."""
    if isinstance(trace, RenoisedTrace):
        rows, calls = [cleans[0].row for cleans in trace.cleans], list(trace.calls)
    else:
        rows, calls = list(trace.rows), [drawing.call for drawing in trace.drawings]
    by_call: dict[int, tuple[Mapping[str, Any], list[DenoisingRow]]] = {}
    for row, call in zip(rows, calls, strict=True):
        by_call.setdefault(id(call), (call, []))[1].append(row)
    return list(by_call.values())


def _apart(state_BT: Tensor, entry_B: Tensor) -> Tensor:
    """States of rows that are shown different prompts have different numbers."""
    pairs = torch.stack([state_BT.flatten(), entry_B[:, None].expand(state_BT.shape).flatten()])
    return pairs.unique(dim=1, return_inverse=True)[1].reshape(state_BT.shape)
