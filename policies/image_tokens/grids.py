"""Positions of the tokens of an image: row by row, with the token that a model puts at the end of each row.

Axes: N rows of a batch, T codes of an image, L tokens of the image in the model, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The grid of an image's codes.

    Attributes:
        height: number of rows.
        width: codes per row.
        line_end: the token at the end of each row, forced and never sampled; None: no such token.
    """

    height: int
    width: int
    line_end: int | None = None

    @property
    def num_codes(self) -> int:
        """T."""
        return self.height * self.width

    def ends_line(self, t: int) -> bool:
        """Whether a forced token follows code t."""
        return self.line_end is not None and (t + 1) % self.width == 0

    @property
    def line_T(self) -> Tensor:
        """The row number of each code."""
        return torch.arange(self.num_codes) // self.width

    @property
    def position_T(self) -> Tensor:
        """The number of image tokens before each code."""
        position_T = torch.arange(self.num_codes)
        return position_T if self.line_end is None else position_T + self.line_T

    def with_line_ends(self, code_NTD: Tensor, line_D: Tensor | None) -> Tensor:
        """The first T' codes of images with the line ends between them, up to the last code.

        Shapes: (N, T', D), (D,) -> (N, L, D).
        """
        N, T, D = code_NTD.shape
        if line_D is None or T == 0:
            return code_NTD
        token_NLD = line_D.expand(N, int(self.position_T[T - 1]) + 1 + self.ends_line(T - 1), D)
        position_T = self.position_T[:T].to(code_NTD.device)
        return token_NLD.index_copy(1, position_T, code_NTD.to(token_NLD.dtype))
