"""How a property is checked on examples, and the functions that are exempt from one.

A check is a function of a case and of the examples' data, which raises AssertionError where the property does not hold.
``tests/properties/exemptions.py`` names the functions for which one does not hold by design.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.properties.exemptions import EXEMPT
from tests.properties.registered import Case, cases

Check = Callable[[Case, st.DataObject], None]

PER_COMMIT, NIGHTLY, STALE = 2, 100, 1000
"""Examples of each case: at every commit, nightly, and at most in search of one that shows an exemption to
be needed; of most_varied, hypothesis 6.130 has none in the first 300."""

EXAMPLES = [PER_COMMIT, pytest.param(NIGHTLY, marks=pytest.mark.nightly)]


def holds(check: Check, case: Case, examples: int, *, shrink: bool = True) -> None:
    """Checks a property of a case on the same examples each time. Raises the error of the smallest one that fails."""

    @seed(crc32(f"{check.__name__} {case.label} {dict(case.numbers)}".encode()))
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        check(case, data)

    run()


Checks = Mapping[str, Sequence[Check]]
"""Checks of the functions of registries, by the key of the registry."""


def checked(checks: Checks) -> Any:
    """Parametrizes a test with every function of some registries."""
    every = [(number, case) for kind in checks for number, case in enumerate(cases(kind))]
    parameters = [
        pytest.param(case, id=f"{case.label}-{number}", marks=pytest.mark.nightly if case.nightly else ())
        for number, case in every
    ]
    return pytest.mark.parametrize("case", parameters)


def all_hold(checks: Checks, case: Case, examples: int) -> None:
    """Checks the properties of a case that it is not exempt from. Raises the errors of those that do not hold."""
    errors = []
    for check in checks[case.kind]:
        if case.label not in EXEMPT.get(check.__name__, {}):
            try:
                holds(check, case, examples)
            except Exception as error:
                error.add_note(f"{case.label} with {dict(case.numbers)}: {check.__doc__}")
                errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} properties of {case.label} do not hold", errors)


def exempt(checks: Checks) -> Any:
    """Parametrizes a test with every exemption from these checks."""
    parameters = [
        pytest.param(check, label, id=f"{check.__name__}-{label}")
        for kind, checks_of_kind in checks.items()
        for check in checks_of_kind
        for label in EXEMPT.get(check.__name__, {})
        if label.partition(".")[0] == kind
    ]
    return pytest.mark.parametrize(("check", "label"), parameters)


def fails(check: Check, label: str) -> None:
    """Checks that an exemption is needed: that the property fails for some numbers of the function.

    Raises AssertionError if it holds.
    """
    kind = label.partition(".")[0]
    for case in cases(kind):
        if case.label == label:
            try:
                holds(check, case, STALE, shrink=False)
            except Exception:  # of any kind: the property does not hold
                return
    raise AssertionError(f"{label} has the property {check.__name__}: remove it from EXEMPT")


def checks_as_tests(checks: Checks) -> tuple[Callable[..., None], Callable[..., None]]:
    """The tests of a module: that the properties hold, and that each exemption from them is needed."""

    @pytest.mark.parametrize("examples", EXAMPLES)
    @checked(checks)
    def test_properties_hold(case: Case, examples: int) -> None:
        all_hold(checks, case, examples)

    @pytest.mark.nightly
    @exempt(checks)
    def test_exemption_is_needed(check: Check, label: str) -> None:
        fails(check, label)

    return test_properties_hold, test_exemption_is_needed


def assert_near(result: Tensor, expected: Tensor, keep: Tensor | None = None, *, tolerance: float = 2e-5) -> None:
    """Asserts that kept elements are the same up to rounding; all elements without ``keep``."""
    if keep is not None:
        result, expected = result[keep.expand(result.shape)], expected[keep.expand(expected.shape)]
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_dtype=False)


def assert_same(result: Tensor, expected: Tensor, keep: Tensor | None = None) -> None:
    """Asserts that kept elements are bitwise the same."""
    if keep is not None:
        result, expected = result[keep.expand(result.shape)], expected[keep.expand(expected.shape)]
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def tensors_of(value: Any) -> list[Tensor]:
    """Every tensor in a value: those of its attributes, of mappings and sequences too."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for inner in value.values() for tensor in tensors_of(inner)]
    if isinstance(value, list | tuple):
        return [tensor for inner in value for tensor in tensors_of(inner)]
    names = getattr(type(value), "__dataclass_fields__", ())
    return [tensor for name in names for tensor in tensors_of(getattr(value, name))]


def assert_unchanged(inputs: Sequence[Any], call: Callable[[], Any]) -> None:
    """Asserts that a call changes none of the tensors that it is given."""
    tensors = tensors_of(list(inputs))
    before = [tensor.detach().clone() for tensor in tensors]
    call()
    for tensor, copy in zip(tensors, before, strict=True):
        assert_same(tensor.detach(), copy)
