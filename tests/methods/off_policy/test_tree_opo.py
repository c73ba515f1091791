"""Tree-OPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import assert_prompt_templates
from tests.configs.method_steps import Step, assert_credit

# from 0, 1, 2, 3 on there succeed 1/2, 2/3, 1/2, 1: -1/4, 2/3, -1/4, 1/2, less their mean 1/6
CREDIT = (Step(reward=(0, 1, 0, 1), lengths=[1] * 4), [[-5 / 12], [1 / 2], [-5 / 12], [1 / 3]])


def test_advantages_of_the_method() -> None:
    assert_credit("tree-opo", *CREDIT)


def test_contexts_of_a_group() -> None:
    assert_prompt_templates("tree-opo", [None, "quarter", "half", "most"])
