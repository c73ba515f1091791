"""How the groups of a round are shared out over the processes."""

from __future__ import annotations

import pytest

from mmgrpo.maths.strategies import Request
from mmgrpo.training.rollout_rounds import _GroupOwners


def shared(costs: list[int], processes: int) -> list[int]:
    """The process of each prompt, of which so many members are asked for."""
    owners = _GroupOwners({}, {}, [0] * processes)
    owners.assign([Request(prompt=n, members=tuple(range(c))) for n, c in enumerate(costs)])
    return [owners.process_of[n] for n in range(len(costs))]


@pytest.mark.parametrize(
    ("costs", "processes", "expected"),
    [
        ([3, 3, 3, 3], 2, [0, 0, 1, 1]),
        ([3, 4], 2, [0, 1]),  # a replayed row next to the second
        ([1, 1, 1, 10], 4, [0, 1, 2, 3]),
        ([10, 1, 1], 2, [0, 1, 1]),
        ([2, 2, 2], 2, [0, 1, 1]),
        ([5], 2, [0]),
    ],
)
def test_blocks_are_even_and_no_process_is_empty(costs: list[int], processes: int, expected: list[int]) -> None:
    assert shared(costs, processes) == expected
