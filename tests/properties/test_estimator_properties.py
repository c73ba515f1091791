"""Properties of every estimator and every filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from mmgrpo.maths.feedback import Feedback
from tests.properties.exemptions import EXEMPT
from tests.properties.harness import assert_near, assert_same, assert_unchanged, checks_as_tests
from tests.properties.registered import Case
from tests.properties.row_examples import (
    advantage_of,
    double,
    feedback_of,
    junk,
    junk_feedback,
    map_feedback,
    permuted,
    process_parts,
    relabeled,
    rows,
    unlikely,
    without_decisions,
)

LABELS = ("accuracy", "answers", "explained", "proved", "steps")
"""Labels of single rewards that functions name by default."""


class SumNeededError(Exception):
    """A process has to know what the others add to a sum."""


def sample_case(case: Case, data: st.DataObject, **kinds: Any) -> tuple[Callable[..., Tensor], Feedback, Tensor]:
    """The function, and feedback and advantages for it."""
    part = case.bind()()
    some = data.draw(rows(**kinds))
    labels = {*LABELS, *(value for value in case.numbers.values() if isinstance(value, str))}
    feedback = feedback_of(some, part, sorted(labels))
    return getattr(part, "assign", None) or part.keep, feedback, advantage_of(some)


def by_decision(result: Tensor, feedback: Feedback) -> Tensor:
    """(B, T) of what is one for each sample, or each decision."""
    return (result[:, None] if result.ndim == 1 else result).expand(feedback.mask_BT.shape)


def at_decisions(result: Tensor, feedback: Feedback) -> Tensor:
    """The result at kept decisions, all of one shape."""
    return by_decision(result, feedback)[feedback.mask_BT]


def permutation(data: st.DataObject, feedback: Feedback, *, within: bool) -> Tensor:
    """An order of the rows; unless ``within``, rows of a group stay in theirs."""
    order = data.draw(st.permutations(range(len(feedback.group_B))))
    if not within:
        groups = feedback.group_B.tolist()
        of_group = {group: iter([row for row in range(len(groups)) if groups[row] == group]) for group in groups}
        order = [next(of_group[groups[row]]) for row in order]
    return torch.tensor(order)


def result_has_the_shape_and_dtype(case: Case, data: st.DataObject) -> None:
    """Numbers of the advantages' shape and dtype; of a filter flags, of samples or decisions."""
    function, feedback, advantage_BT = sample_case(case, data)
    for dtype in (torch.float32, torch.float64):
        result = function(feedback, advantage_BT.to(dtype))
        assert bool(at_decisions(result, feedback).isfinite().all())
        if case.kind == "filters":
            assert result.dtype == torch.bool
            assert result.shape in (advantage_BT.shape, advantage_BT.shape[:1])
        else:
            assert (result.dtype, result.shape) == (dtype, advantage_BT.shape)


def equal_rewards_are_finite(case: Case, data: st.DataObject) -> None:
    """Numbers where all rewards of a group are equal."""
    function, feedback, advantage_BT = sample_case(case, data, rewards="equal")
    assert bool(at_decisions(function(feedback, advantage_BT), feedback).isfinite().all())


def unlikely_decisions_are_finite(case: Case, data: st.DataObject) -> None:
    """Numbers where decisions are as unlikely as they get, and other values are 0."""
    function, feedback, advantage_BT = sample_case(case, data)
    feedback = unlikely(feedback)
    assert bool(at_decisions(function(feedback, advantage_BT), feedback).isfinite().all())


def empty_selection_is_no_error(case: Case, data: st.DataObject) -> None:
    """A result where no decision of any row is kept."""
    function, feedback, advantage_BT = sample_case(case, data)
    assert len(function(without_decisions(feedback), advantage_BT)) == len(advantage_BT)


def inputs_stay_and_calls_repeat(case: Case, data: st.DataObject) -> None:
    """No input is changed, and a second call gives the same."""
    function, feedback, advantage_BT = sample_case(case, data)
    results: list[Tensor] = []
    assert_unchanged([feedback, advantage_BT], lambda: results.append(function(feedback, advantage_BT).clone()))
    assert_same(function(feedback, advantage_BT), results[0])


def groups_may_interleave(case: Case, data: st.DataObject) -> None:
    """The order of the groups' rows among each other does not matter, where the order within a group does."""
    if case.label not in EXEMPT[order_of_rows_does_not_matter.__name__]:
        return
    function, feedback, advantage_BT = sample_case(case, data)
    order = permutation(data, feedback, within=False)
    result = by_decision(function(permuted(feedback, order), advantage_BT[order]), feedback)
    assert_near(result, by_decision(function(feedback, advantage_BT), feedback)[order], feedback.mask_BT[order])


def order_of_rows_does_not_matter(case: Case, data: st.DataObject) -> None:
    """The order of the rows of a group does not matter either."""
    function, feedback, advantage_BT = sample_case(case, data)
    order = permutation(data, feedback, within=True)
    result = by_decision(function(permuted(feedback, order), advantage_BT[order]), feedback)
    assert_near(result, by_decision(function(feedback, advantage_BT), feedback)[order], feedback.mask_BT[order])


def numbers_of_groups_do_not_matter(case: Case, data: st.DataObject) -> None:
    """Groups may have any numbers that differ."""
    function, feedback, advantage_BT = sample_case(case, data)
    numbers = torch.tensor(data.draw(st.lists(st.integers(-50, 10**6), min_size=4, max_size=4, unique=True)))
    result = function(relabeled(feedback, lambda group: numbers[group]), advantage_BT)
    assert_near(at_decisions(result, feedback), at_decisions(function(feedback, advantage_BT), feedback))


def on_processes(
    function: Callable[[Feedback, Tensor], Tensor], parts: Sequence[tuple[Feedback, Tensor]]
) -> list[Tensor]:
    """The results of the processes of a job, each with its part; sums are those over all of them."""
    totals: list[Tensor] = []
    while True:
        results, added = [], []
        for feedback, advantage_BT in parts:
            calls: list[Tensor] = []

            def summed(local: Tensor, calls: list[Tensor] = calls) -> Tensor:
                calls.append(local)
                if len(calls) > len(totals):
                    raise SumNeededError
                return totals[len(calls) - 1]

            try:
                results.append(function(replace(feedback, summed=summed), advantage_BT))
            except SumNeededError:
                added.append(calls[-1])
        if len(results) == len(parts):
            return results
        assert len(added) == len(parts), "the processes of a job add up different numbers of tensors"
        totals.append(torch.stack(added).sum(0))


def processes_do_not_matter(case: Case, data: st.DataObject) -> None:
    """Each process gets for its complete groups the values that one process with all groups gets."""
    function, feedback, advantage_BT = sample_case(case, data)
    order = feedback.group_B.argsort(stable=True)
    num = int((feedback.group_B < data.draw(st.integers(1, 3))).sum())
    parts = process_parts(feedback, order, num)
    sizes = [len(part.group_B) for part in parts]
    results = on_processes(function, list(zip(parts, advantage_BT[order].split(sizes), strict=True)))
    result = torch.cat([by_decision(each, part) for each, part in zip(results, parts, strict=True)])
    expected = by_decision(function(permuted(feedback, order), advantage_BT[order]), feedback)
    assert_near(result, expected, feedback.mask_BT[order])


def junk_does_not_matter(case: Case, data: st.DataObject) -> None:
    """What a number may be where nothing is kept, or no reward applies, changes nothing at kept decisions."""
    function, feedback, advantage_BT = sample_case(case, data)
    # a row without a kept decision still has the advantage of its sample
    has_advantage_BT = feedback.mask_BT | ~feedback.mask_BT.any(1, keepdim=True)
    result = function(junk_feedback(feedback), junk(advantage_BT, has_advantage_BT))
    assert_same(at_decisions(result, feedback), at_decisions(function(feedback, advantage_BT), feedback))


def precision_does_not_matter(case: Case, data: st.DataObject) -> None:
    """float32 gives what float64 does, to rounding."""
    function, feedback, advantage_BT = sample_case(case, data)
    result = function(double(feedback), advantage_BT.double())
    assert_near(
        at_decisions(function(feedback, advantage_BT), feedback), at_decisions(result, feedback), tolerance=1e-4
    )


def columns_without_decisions_do_not_matter(case: Case, data: st.DataObject) -> None:
    """Rows may be padded further."""
    function, feedback, advantage_BT = sample_case(case, data)

    def padded(tensor: Tensor) -> Tensor:
        if tensor.shape != feedback.mask_BT.shape:
            return tensor
        return torch.cat([tensor, tensor[:, :1] if tensor.dtype != torch.bool else tensor[:, :1] & False], dim=1)

    wide = map_feedback(feedback, padded, lambda tensor: tensor, torch.arange(len(feedback.group_B)))
    if wide.sampled_by_BT is not None:
        wide.sampled_by_BT[:, -1] = torch.arange(len(feedback.group_B))
    result = by_decision(function(wide, padded(advantage_BT)), wide)[:, :-1]
    assert_near(at_decisions(result, feedback), at_decisions(function(feedback, advantage_BT), feedback))


EVERY = [
    result_has_the_shape_and_dtype,
    equal_rewards_are_finite,
    unlikely_decisions_are_finite,
    empty_selection_is_no_error,
    inputs_stay_and_calls_repeat,
    groups_may_interleave,
    order_of_rows_does_not_matter,
    numbers_of_groups_do_not_matter,
    processes_do_not_matter,
    junk_does_not_matter,
    precision_does_not_matter,
    columns_without_decisions_do_not_matter,
]
CHECKS = {"estimators": EVERY, "filters": EVERY}

test_properties_hold, test_exemption_is_needed = checks_as_tests(CHECKS)
