"""The mark ``each_value`` leaves as few combinations daily as have each value of every parameter."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import pytest

from tests.few_combinations import few_combinations


def test_each_value_is_in_as_few_combinations_as_the_longest_parameter_has_values() -> None:
    combinations = list(product(("a", "b"), ("x", "y", "z"), ("on",)))
    chosen = [combinations[position] for position in sorted(few_combinations(combinations))]
    assert chosen == [("a", "x", "on"), ("a", "z", "on"), ("b", "y", "on")]
    assert few_combinations([]) == set()


def test_marked_tests_of_this_session_are_few(request: pytest.FixtureRequest) -> None:
    """An index of pytest's, which the mark read before, is of the combination and not of the value since pytest 9."""
    cases = defaultdict(list)
    for item in request.session.items:
        marks = {mark.name for mark in item.iter_markers()}
        if isinstance(item, pytest.Function) and "each_value" in marks and "nightly" not in marks:
            cases[item.nodeid.partition("[")[0]].append(item.callspec._idlist)
    for name, combinations in cases.items():
        assert len(combinations) == max(len(set(column)) for column in zip(*combinations, strict=True)), name
