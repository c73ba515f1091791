"""TEMPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import A_TREE, TREE
from tests.configs.method_steps import assert_credit, config_of

# values: root 1/2, [a] 2/3, [a b] 1, [a c] 0, [d] 0, [d e] 0; over the deviation, as 1/2 is A_TREE
CREDIT = (
    TREE,
    [
        [A_TREE * 4 / 3, A_TREE * 5 / 3],
        [A_TREE * 4 / 3, A_TREE * 5 / 3],
        [-A_TREE * 2 / 3, -A_TREE * 7 / 3],
        [-A_TREE * 2, -A_TREE],
    ],
)


def test_advantages_of_the_method() -> None:
    assert_credit("tempo", *CREDIT)


def test_bound_of_negative_advantages_is_that_of_the_authors_fork_of_verl() -> None:
    surrogate = config_of("tempo").objective.surrogate
    assert surrogate is not None
    assert (surrogate.name, surrogate.settings["bound"]) == ("dual_clipped", 3.0)  # clip_ratio_c in their scripts
