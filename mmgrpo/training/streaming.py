"""A policy's evaluation as a stream of slices, checked, of rollouts that may have been joined.

A slice has as many rows as the policy's settings allow, until memory runs out: ``halve_slices`` bounds the rows of the
next slices of a policy. The gradient of an update is that of the same decisions, to rounding.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mmgrpo.errors import PolicyError
from mmgrpo.policy import Critic, Policy
from mmgrpo.training.concat_rollouts import RolloutParts
from mmgrpo.types import Evaluation, Rollout
from mmgrpo.values import Value


@dataclass(slots=True)
class _SliceRows:
    """Rows of a policy's slices.

    Attributes:
        limit: maximum; None: that of the policy's settings.
        last: rows of the last slice, or those requested before the first one.
    """

    limit: int | None = None
    last: int = 0


_rows_of: WeakKeyDictionary[Policy | Critic, _SliceRows] = WeakKeyDictionary()


def slice_limit(policy: Policy | Critic) -> int | None:
    """The maximum number of rows of a policy's slices; None: no memory ran out, and its settings apply."""
    return None if policy not in _rows_of else _rows_of[policy].limit


def halve_slices(policy: Policy | Critic) -> bool:
    """Bounds the rows of a policy's next slices to half of those of the last one; False if that had one row."""
    rows = _rows_of.setdefault(policy, _SliceRows())
    if rows.last <= 1:
        return False
    rows.limit = -(-rows.last // 2)
    return True


def evaluations(
    policy: Policy | Critic, rollout: Rollout, values: Collection[Value]
) -> Generator[Evaluation, None, None]:
    """The policy's slices, with these values; every kept decision of the rollout in exactly one.

    Values are requested in a fixed order, independent of hashing: the graph is built in it, and gradients add up in it.
    """
    values = sorted(values, key=str, reverse=True)
    missing_BT = rollout.mask_BT.clone()
    for evaluation in _slices(policy, rollout, values):
        index = index_of(evaluation)
        if not bool(missing_BT[index].eq(rollout.mask_BT[index]).all()):
            raise PolicyError(f"{type(policy).__name__}.evaluate gave a decision twice")
        if ungiven := [str(value) for value in values if value not in evaluation.values]:
            raise PolicyError(f"{type(policy).__name__}.evaluate gave no {', '.join(ungiven)}")
        missing_BT[index] = False
        yield evaluation
    if bool(missing_BT.any()):
        raise PolicyError(f"{type(policy).__name__}.evaluate left out {int(missing_BT.sum())} decisions")


def _slices(policy: Policy | Critic, rollout: Rollout, values: Collection[Value]) -> Iterator[Evaluation]:
    """The slices of every part of a concatenated rollout, with row indices in the result."""
    if isinstance(rollout.trace, RolloutParts):
        start = 0
        for number, part in enumerate(rollout.trace.rollouts):
            B, T = part.shape
            view_logits = {name: logits.of_part(number) for name, logits in rollout.view_logits.items()}
            part_rollout = replace(part, mask_BT=rollout.mask_BT[start : start + B, :T], view_logits=view_logits)
            for evaluation in _slices(policy, part_rollout, values):
                assert evaluation.rows is not None
                yield replace(evaluation, rows=evaluation.rows + start)
            start += B
        return
    rows = rollout.mask_BT.any(1).nonzero().flatten()
    if len(rows) == 0:
        return
    counted = _rows_of.setdefault(policy, _SliceRows())
    for part in rows.split(counted.limit or len(rows)):
        counted.last = len(part)
        for evaluation in policy.evaluate(rollout, part.tolist(), values=values):
            evaluation = replace(evaluation, rows=part) if evaluation.rows is None else evaluation
            assert evaluation.rows is not None
            counted.last = len(evaluation.rows)
            yield evaluation


def index_of(evaluation: Evaluation) -> tuple[Tensor, Tensor]:
    """The position of a slice in (B, T)."""
    assert evaluation.rows is not None
    return evaluation.rows[:, None], torch.as_tensor(list(evaluation.columns))[None, :]


def cells(matrix_BT: Tensor, evaluation: Evaluation) -> Tensor:
    """A slice of a matrix: the one of an evaluation."""
    return matrix_BT[index_of(evaluation)]
