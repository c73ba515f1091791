"""SPO (single stream): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit, config_of

# of prompts never seen 0.5 is expected: 0.5 and -0.5, of deviation 0.7071068
CREDIT = (Step(reward=ONE_OF_TWO, groups=[0, 1], lengths=[1, 1]), [[A_TWO], [-A_TWO]])


def test_advantages_of_the_method() -> None:
    assert_credit("spo", *CREDIT)


def test_bound_of_negative_advantages_is_that_of_the_authors_fork_of_verl() -> None:
    surrogate = config_of("spo").objective.surrogate
    assert surrogate is not None
    assert (surrogate.name, surrogate.settings["bound"]) == ("dual_clipped", 10.0)  # clip_ratio_c in their scripts


def test_a_single_sample_is_not_normalized() -> None:
    """The deviation of one number is none: the gain over the expected 0.5 remains."""
    assert_credit("spo", Step(reward=(1,), groups=[0], lengths=[1]), [[0.5]])
