"""Values that are the same for all decisions of one state, so that thresholds do not separate equal decisions.

Results of different batches differ by rounding errors.

Axes: B samples, T decisions, N kept decisions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mmgrpo.maths.decisions import Decisions
from mmgrpo.types import Rollout
from mmgrpo.values import OF_STATE


def shared(decisions: Decisions, rollout: Rollout) -> Decisions:
    """The decisions with the value of the first of each state, in the order of rows and columns, on all of the state.

    A state is one of the rollout's under the same sampling settings. Values of the distribution are shared by state,
    log-probabilities by state and token; all others are left as they are, those of views among them, which may have
    another prompt for each row.

    Args:
        decisions: of complete rows, with values at the current weights, without grad.
        rollout: whose decisions they are.

    Returns:
        The decisions, for comparisons alone.
    """
    keep_BT = decisions.mask_BT
    if not bool(keep_BT.any()):
        return decisions
    sampling_BT = _sampling(rollout)[:, None].expand(rollout.shape)
    state_N2 = torch.stack([sampling_BT[keep_BT], rollout.state_BT[keep_BT]], dim=1)
    first_N = _first(state_N2)
    values = {
        value: _taken(matrix_BT, keep_BT, first_N) if value.view is None and value.name in OF_STATE else matrix_BT
        for value, matrix_BT in decisions.values.items()
    }
    logprob_BT = decisions.logprob_BT
    if rollout.token_BT is not None:
        first_N = _first(torch.cat([state_N2, rollout.token_BT[keep_BT][:, None]], dim=1))
        logprob_BT = _taken(logprob_BT, keep_BT, first_N)
    return replace(decisions, logprob_BT=logprob_BT, values=values)


def _sampling(rollout: Rollout) -> Tensor:
    """(B,) a number of each row's sampling settings; 0 for all where no record holds them."""
    records = rollout.record_B or [None] * len(rollout.samples)
    keys = [repr(None if record is None else record.get("settings")) for record in records]
    number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    return torch.tensor([number[key] for key in keys])


def _taken(matrix_BT: Tensor, keep_BT: Tensor, index_N: Tensor) -> Tensor:
    return matrix_BT.masked_scatter(keep_BT, matrix_BT[keep_BT][index_N])


def _first(key_Nk: Tensor) -> Tensor:
    """The place of the first key that equals each.

    Shapes: (N, k) -> (N,).
    """
    number_N = key_Nk.unique(dim=0, return_inverse=True)[1]
    index_N = torch.arange(len(number_N))
    first_K = torch.full_like(index_N, len(index_N)).scatter_reduce(0, number_N, index_N, reduce="amin")
    return first_K[number_N]
