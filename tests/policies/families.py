"""The tiny models of tests for every policy: a few daily, the others nightly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from mmgrpo import testing
from mmgrpo.testing import LAWS, Subject
from tests.policies import contract

Law = Callable[[Subject], None]
Settings = Mapping[str, Any]

OF_WEIGHTS: tuple[Law, ...] = (
    testing.check_on_policy_gap,
    testing.check_gradients,
    testing.check_reference,
    testing.check_save_and_load,
)
"""The laws in which it matters what is trained."""

OF_OURS: tuple[Law, ...] = tuple(
    contract.check_emitted_samples if law is testing.check_emitted_samples else law for law in LAWS
)
"""The laws of policies that emit samples while others are generated."""

EVERYDAY = {
    "denoising": ("sd15", "wan"),  # a U-Net that keeps the variance, a flow of five axes
    "drawing": ("wan",),  # what is of our code alone
    "language": ("llama", "qwen3-vl"),
    "masked": ("eurobert", "amused"),
    "image_tokens": ("janus",),
    "reading": ("qwen-image",),  # the four daily ones have separate tests too
}


def families(of: str, names: Iterable[str]) -> list[Any]:
    """The parameters of a test, a family each; those that are not of every day have the mark ``nightly``."""
    valid_names = tuple(names)
    assert set(EVERYDAY[of]) <= set(valid_names)
    return [pytest.param(name, marks=() if name in EVERYDAY[of] else pytest.mark.nightly) for name in valid_names]


def daily(cases: Iterable[Any], *names: Any) -> list[Any]:
    """The parameters of a test, tuples of several; cases that are not among ``names`` have the mark ``nightly``."""
    listed = list(cases)
    assert all(name in listed for name in names)
    values = [case if isinstance(case, tuple) else (case,) for case in listed]
    return [
        pytest.param(*value, marks=() if case in names else pytest.mark.nightly)
        for case, value in zip(listed, values, strict=True)
    ]


def laws(**variants: Settings) -> pytest.MarkDecorator:
    """Parameters ``law`` and ``settings``: every law under the first of some settings, those of weights under each."""
    first = next(iter(variants))
    cases = [(law, name) for name in variants for law in (OF_OURS if name == first else OF_WEIGHTS)]
    return pytest.mark.parametrize(
        ("law", "settings"),
        [pytest.param(law, variants[name], id=f"{law.__name__.removeprefix('check_')}-{name}") for law, name in cases],
    )
