"""Where the tokens of a picture stand: row by row, with what a model puts at the end of each row.

Axes: N rows of a batch, T codes of a picture, L tokens that they take in the model, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The codes of a picture.

    Attributes:
        height: rows.
        width: codes of a row.
        line_end: the token that stands at the end of each row, given and never drawn; None: nothing does.
    """

    height: int
    width: int
    line_end: int | None = None

    @property
    def num_codes(self) -> int:
        """T."""
        return self.height * self.width

    def ends_line(self, t: int) -> bool:
        """Whether a given token follows on code t, before the next code."""
        return self.line_end is not None and (t + 1) % self.width == 0

    @property
    def line_T(self) -> Tensor:
        """The number of each code's row."""
        return torch.arange(self.num_codes) // self.width

    @property
    def place_T(self) -> Tensor:
        """How many tokens of the picture come before each code."""
        place_T = torch.arange(self.num_codes)
        return place_T if self.line_end is None else place_T + self.line_T

    def laid(self, code_NTD: Tensor, line_D: Tensor | None) -> Tensor:
        """The first T' codes of pictures with what stands between them, up to the last of them.

        Shapes: (N, T', D), (D,) -> (N, L, D).
        """
        N, T, D = code_NTD.shape
        if line_D is None or T == 0:
            return code_NTD
        laid_NLD = line_D.expand(N, int(self.place_T[T - 1]) + 1 + self.ends_line(T - 1), D)
        place_T = self.place_T[:T].to(code_NTD.device)
        return laid_NLD.index_copy(1, place_T, code_NTD.to(laid_NLD.dtype))
