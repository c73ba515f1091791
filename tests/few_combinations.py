"""As few combinations of parameters as have each value of every one: the daily ones of the mark ``each_value``."""

from __future__ import annotations

from collections.abc import Sequence


def few_combinations(combinations: Sequence[Sequence[str]]) -> set[int]:
    """Positions of combinations that together have each value of every parameter.

    Args:
        combinations: a value for each parameter; every value of one with every value of the others, or some of these
            where single tests are selected.

    Returns:
        As many positions as the parameter with the most values has values.
    """
    values = [list(dict.fromkeys(column)) for column in zip(*combinations, strict=True)]
    rounds = [
        tuple(column[number % len(column)] for column in values) for number in range(max(map(len, values), default=0))
    ]
    positions = {tuple(combination): position for position, combination in enumerate(combinations)}
    return {positions[combination] for combination in rounds if combination in positions}
