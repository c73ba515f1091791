"""Which decisions are taken in one state."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ShapeError
from mmgrpo.maths.prefixes import prefix_states
from mmgrpo.maths.strategies.draft_prefix import accepted


def test_rows_share_the_states_of_their_common_prefix() -> None:
    token_BT = torch.tensor([[5, 6, 7], [5, 6, 8], [5, 9, 7], [5, 6, 7], [5, 6, 0]])
    exists_BT = torch.tensor([[1, 1, 1]] * 4 + [[1, 1, 0]]).bool()
    state_BT = prefix_states(token_BT, exists_BT, torch.tensor([0, 0, 0, 2, 0]))
    # rows 0, 1, 2, 4 begin alike; after "5" too; after "5 6" rows 0 and 1; row 4 has no third decision
    assert state_BT[:, 0].tolist() == [0, 0, 0, 2, 0]
    second = state_BT[:, 1].tolist()
    assert second[0] == second[1] == second[2] == second[4]
    assert second[3] != second[0]
    third = state_BT[:, 2].tolist()
    assert third[0] == third[1]
    assert len(set(third)) == 4
    assert len(set(second) | set(third) | {0, 2}) == 2 + 4 + 2


def test_an_id_is_of_one_column() -> None:
    generator = torch.Generator().manual_seed(0)
    token_BT = torch.randint(2, (16, 6), generator=generator)
    root_B = torch.randint(3, (16,), generator=generator)
    state_BT = prefix_states(token_BT, torch.ones(16, 6, dtype=torch.bool), root_B)
    for t in range(6):
        keys = [(int(root_B[b]), *token_BT[b, :t].tolist()) for b in range(16)]
        for b in range(16):
            for c in range(16):
                assert (keys[b] == keys[c]) == bool(state_BT[b, t] == state_BT[c, t])
    columns = [set(state_BT[:, t].tolist()) for t in range(6)]
    assert sum(map(len, columns)) == len(set().union(*columns))


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match="prefix_states needs"):
        prefix_states(torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3).bool(), torch.tensor([0, -1]))


def test_a_draft_is_kept_up_to_its_first_rejected_decision() -> None:
    """log 0.5 = -0.69 is above the second decision's -2 + 1 = -1, and at a lenience of 0.5 below its -0.5."""
    logprob_T, draft_T, uniform_T = torch.tensor([[-1.0, -2.0, -1.0], [-1.0, -1.0, -1.0], [0.5, 0.5, 0.5]])
    assert accepted(logprob_T, draft_T, uniform_T, lenience=0.0) == 1
    assert accepted(logprob_T, draft_T, uniform_T, lenience=0.5) == 3
