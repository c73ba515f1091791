"""lambda-GRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TREE, TREE
from tests.configs.method_steps import assert_credit

# [a] is shared by three, [a b] by two
CREDIT = (TREE, [[A_TREE / 3, A_TREE / 2]] * 2 + [[-A_TREE / 3, -A_TREE], [-A_TREE, -A_TREE]])


def test_advantages_of_the_method() -> None:
    assert_credit("lambda-grpo", *CREDIT)
