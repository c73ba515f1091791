"""DAPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import assert_refilled


def test_groups_of_equal_rewards_are_replaced() -> None:
    assert_refilled("dapo")
