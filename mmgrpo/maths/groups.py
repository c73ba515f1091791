"""Groups as sets of rows, of any size.

Axes: B rows, P groups, G rows of the largest group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmgrpo.errors import ShapeError
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of each group, side by side; of groups that all have G rows, prompt-major, it is a reshape.

    Attributes:
        index_PG: row of each place; 0 where there is none.
        present_PG: bool, whether there is a row in the place.
    """

    index_PG: Tensor
    present_PG: Tensor

    def matrix(self, value_B: Tensor) -> Tensor:
        """A value of each row by group; in places without a row, another row's.

        Shapes: (..., B) -> (..., P, G).
        """
        return value_B[..., self.index_PG]

    def rows(self, value_PG: Tensor) -> Tensor:
        """The inverse of ``matrix``: what stands in places without a row is dropped.

        Shapes: (..., P, G) -> (..., B).
        """
        value_B = value_PG.new_empty((*value_PG.shape[:-2], int(self.present_PG.sum())))
        value_B[..., self.index_PG[self.present_PG]] = value_PG[..., self.present_PG]
        return value_B

    def valid(self, valid_B: Tensor) -> Tensor:
        """Whether there is a row in the place, and it is valid.

        Shapes: bool (..., B) -> bool (..., P, G).
        """
        return self.matrix(valid_B) & self.present_PG.to(valid_B.device)


def grouped(group_B: Tensor) -> Groups:
    """The groups of rows by their integer identities, in the order in which they first appear, rows in theirs.

    Shapes: integers (B,) -> (P, G) x 2.   Raises: ShapeError if they are no integers of one axis.
    """
    if group_B.ndim != 1 or group_B.is_floating_point():
        raise ShapeError(f"group_B must be integers (B,), got {group_B.dtype} {tuple(group_B.shape)}")
    rows_of: dict[int, list[int]] = {}
    for row, group in enumerate(group_B.tolist()):
        rows_of.setdefault(group, []).append(row)
    G = max((len(rows) for rows in rows_of.values()), default=0)
    index = [rows + [0] * (G - len(rows)) for rows in rows_of.values()]
    present = [[True] * len(rows) + [False] * (G - len(rows)) for rows in rows_of.values()]
    shape = (len(rows_of), G)
    return Groups(torch.tensor(index, dtype=torch.long).reshape(shape), torch.tensor(present).bool().reshape(shape))
