"""Which part of a sample each decision wrote: by hand."""

from __future__ import annotations

import torch

from mmgrpo.maths.parts import part_of_decisions


def part_of(ends: list[int], parts: list[tuple[int, int]]) -> list[int]:
    start_S, end_S = torch.tensor(parts, dtype=torch.long).reshape(-1, 2).T
    return part_of_decisions(torch.tensor(ends), start_S, end_S).tolist()


def test_a_decision_belongs_to_the_part_with_most_of_its_text() -> None:
    # " cat" wrote 3 to 7: one character of the first part, three of the second
    assert part_of([3, 7, 9], [(0, 4), (4, 9)]) == [0, 1, 1]
    # two of each: the first
    assert part_of([2, 6], [(0, 4), (4, 6)]) == [0, 0]
    # text between parts is in none
    assert part_of([2, 4, 6], [(0, 2), (4, 6)]) == [0, -1, 1]


def test_empty_decisions_belong_to_the_character_before_them() -> None:
    assert part_of([0, 3, 3, 6, 6], [(0, 3), (3, 6)]) == [0, 0, 0, 1, 1]
    assert part_of([3, 5, 5], [(0, 3)]) == [0, -1, -1]  # an end after text that is in no part


def test_steps_are_their_own_parts() -> None:
    assert part_of([1, 2, 3, 4], [(0, 1), (2, 4)]) == [0, -1, 1, 1]
    assert part_of([1, 2], []) == [-1, -1]
