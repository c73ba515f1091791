"""GeometryZero (GCPO): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_scores import assert_rewards, texts_of_group

# right are half of those with a construction and none of those without: 1/2 of it for each
SAMPLES = texts_of_group(r"<aux></aux> \boxed{7}", r"<aux></aux> \boxed{8}", r"\boxed{8}", r"\boxed{9}")
REWARDS = (1.5, 0.5, 0.0, 0.0)


def test_rewards_of_the_method() -> None:
    assert_rewards("geometryzero", SAMPLES, REWARDS)
