"""The forest of the states of a group's samples, and the values below each state.

A node is a state, or the end of a sample (a leaf). A kept decision leads from its state to the state of the row's next
kept decision, or to the row's leaf. Rows that share a state share a node; the depth of a node is the number of kept
decisions before it. The nodes of depth 0 of a group count as one: all its samples begin at the prompt.

Axes: B samples, T decisions, M nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """The nodes of some rows, numbered.

    Attributes:
        from_BT: node that each kept decision was taken in.
        to_BT: node that it led to; both are 0 where the mask is False.
        mask_BT: bool, the kept decisions.
        depth_M: decisions before each node.
        group_M: group of each node.
        parent_M: node that it was reached from; its own number at depth 0.
    """

    from_BT: Tensor
    to_BT: Tensor
    mask_BT: Tensor
    depth_M: Tensor
    group_M: Tensor
    parent_M: Tensor

    def below(self, value_B: Tensor, valid_B: Tensor) -> Tensor:
        """The mean of a value over the leaves below each node, a leaf being below itself; NaN where none is valid.

        Shapes: (B,), bool (B,) -> (M,).
        """
        rows_BT = torch.arange(len(value_B))[:, None].expand_as(self.mask_BT)
        first_B = self._first_B()
        has_B = first_B >= 0
        node_K = torch.cat([first_B[has_B], self.to_BT[self.mask_BT]])
        row_K = torch.cat([has_B.nonzero().flatten(), rows_BT[self.mask_BT]])
        valid_K = valid_B[row_K]
        sum_M = value_B.new_zeros(len(self.depth_M)).index_add(0, node_K[valid_K], value_B[row_K[valid_K]])
        count_M = value_B.new_zeros(len(self.depth_M)).index_add(
            0, node_K[valid_K], value_B.new_ones(int(valid_K.sum()))
        )
        return sum_M / count_M

    def expected(self, value_B: Tensor, valid_B: Tensor) -> Tensor:
        """The mean over the children of each node, from the leaves up; NaN without a valid leaf below.

        It equals the mean of the leaves if all branches have equally many, and otherwise does not weight a branch by
        its leaves.

        Shapes: (B,), bool (B,) -> (M,).
        """
        value_M = self.below(value_B, valid_B)
        for node_K in reversed(self._by_depth()[1:]):
            has_value_K = node_K[~value_M[node_K].isnan()]
            sum_M = torch.zeros_like(value_M).index_add(0, self.parent_M[has_value_K], value_M[has_value_K])
            count_M = torch.zeros_like(value_M).index_add(
                0, self.parent_M[has_value_K], torch.ones_like(value_M[has_value_K])
            )
            value_M = (sum_M / count_M).where(count_M > 0, value_M)
        return value_M

    def parts(self) -> Tensor:
        """Which nodes were reached where branches part: they have siblings, or depth 1.

        Shapes: -> bool (M,).
        """
        below_M = self.depth_M > 0
        num_M = torch.zeros_like(self.depth_M).index_add(
            0, self.parent_M[below_M], torch.ones_like(self.depth_M)[below_M]
        )
        return below_M & ((num_M[self.parent_M] > 1) | (self.depth_M == 1))

    def levels(self) -> Tensor:
        """How many of the nodes on the way to each were reached where branches part, the node itself among them.

        Shapes: -> integer (M,).
        """
        level_M = self.parts().long()
        for node_K in self._by_depth()[1:]:
            level_M[node_K] += level_M[self.parent_M[node_K]]
        return level_M

    def at_decisions(self, value_M: Tensor) -> Tensor:
        """Each kept decision's value of the node that it led to; 0 elsewhere.

        Shapes: (M,) -> (B, T).
        """
        value_BT = value_M.new_zeros(self.mask_BT.shape)
        value_BT[self.mask_BT] = value_M[self.to_BT[self.mask_BT]]
        return value_BT

    def sharing(self) -> Tensor:
        """The number of rows that took each kept decision, from the same node to the same node; 0 where there is no
        decision.

        Shapes: -> integer (B, T).
        """
        reached_K = self.to_BT[self.mask_BT]
        return self.at_decisions(torch.zeros_like(self.depth_M).index_add(0, reached_K, torch.ones_like(reached_K)))

    def _by_depth(self) -> list[Tensor]:
        """The nodes of each depth, from 0 on."""
        order_M = self.depth_M.argsort(stable=True)
        return list(order_M.split(self.depth_M.bincount().tolist())) if len(order_M) else []

    def _first_B(self) -> Tensor:
        """Node of depth 0 of each row; -1 for a row without a decision."""
        first_B1 = self.mask_BT.int().argmax(1, keepdim=True)
        return self.from_BT.gather(1, first_B1)[:, 0].where(self.mask_BT.any(1), -1)


def forest(state_BT: Tensor, mask_BT: Tensor, group_B: Tensor) -> Forest:
    """The nodes that rows pass through.

    Shapes: integer (B, T), bool (B, T), integer (B,) -> nodes.
    """
    B, T = state_BT.shape
    # a group's root, then states, then leaves: numbers of one kind never meet those of another
    root_B = group_B.unique(return_inverse=True)[1] if B else group_B
    num_roots = int(root_B.max()) + 1 if B else 0
    lowest = int(state_BT.min()) if state_BT.numel() else 0
    past = num_roots + (int(state_BT.max()) - lowest + 1 if state_BT.numel() else 0)
    before_BT = mask_BT.long().cumsum(1) - mask_BT.long()
    node_BT = (state_BT - lowest + num_roots).where(before_BT > 0, root_B[:, None])
    leaf_B1 = past + torch.arange(B)[:, None]
    following_BT = _following(mask_BT)
    next_BT = torch.cat([node_BT, leaf_B1], dim=1).gather(1, following_BT)
    cells = mask_BT.nonzero(as_tuple=True)
    names_M, number_K = torch.cat([node_BT[cells], next_BT[cells]]).unique(return_inverse=True)
    from_BT, to_BT = torch.zeros_like(state_BT), torch.zeros_like(state_BT)
    from_BT[cells], to_BT[cells] = number_K.chunk(2) if len(number_K) else (number_K, number_K)
    depth_M, group_M = torch.zeros_like(names_M), torch.zeros_like(names_M)
    parent_M = torch.arange(len(names_M))
    depth_M[to_BT[cells]] = before_BT[cells] + 1
    group_M[from_BT[cells]] = group_B[:, None].expand(B, T)[cells]
    group_M[to_BT[cells]] = group_B[:, None].expand(B, T)[cells]
    parent_M[to_BT[cells]] = from_BT[cells]
    return Forest(from_BT=from_BT, to_BT=to_BT, mask_BT=mask_BT, depth_M=depth_M, group_M=group_M, parent_M=parent_M)


def sampled_states(sampled_by_BT: Tensor) -> Tensor:
    """State ids by the row that sampled the previous decision: rows share the states that one continued from the other,
    and no others.

    Positions without a previous decision have an id per row; ``forest`` starts at the group in any case.

    Shapes: integer (B, T) rows -> integer (B, T).
    """
    B, T = sampled_by_BT.shape
    column_T = torch.arange(T)
    before_BT = torch.cat([torch.arange(B)[:, None], sampled_by_BT[:, :-1]], dim=1)[:, :T]
    return before_BT * T + column_T


def _following(mask_BT: Tensor) -> Tensor:
    """Column of the next kept decision after each column; T where there is none."""
    T = mask_BT.shape[1]
    column_BT = torch.arange(T).expand_as(mask_BT).where(mask_BT, T)
    from_here_BT = column_BT.flip(1).cummin(1).values.flip(1) if T else column_BT
    return torch.cat([from_here_BT[:, 1:], torch.full((len(mask_BT), min(T, 1)), T)], dim=1)
