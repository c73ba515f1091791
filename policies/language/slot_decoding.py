"""Token-by-token decoding in slots: a finished row leaves its slot to another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from ..completion import Completion
from ..prefix import Prefix
from ..token_buffer import TokenBuffer
from .slots import Slots
from .token_decoding import LOOK_EVERY_ON_GPU
from .transformer import Transformer


@final
class SlotDecoder:
    """Decodes the rows in slots.

    Attributes:
        slots: their states.
        active: slots with an unfinished row.
    """

    def __init__(self, transformer: Transformer, buffer: TokenBuffer, end_ids: Tensor) -> None:
        """Begins with empty slots.

        Args:
            transformer: the model.
            buffer: the buffer that samples and stores the tokens, with one row for each slot.
            end_ids: tokens that end a completion.
        """
        num_slots = len(buffer.limit_N)
        self.slots = Slots(transformer, num_slots)
        self.active: list[int] = []
        self._transformer, self._buffer, self._end_ids = transformer, buffer, end_ids
        self._limits: list[int] = buffer.limit_N.tolist()
        self._num_written = [0] * num_slots
        self._look_every = LOOK_EVERY_ON_GPU if transformer.device.type == "cuda" else 1

    def begin(self, slot: int, limit: int, uniform_T: Tensor | None) -> None:
        """Begins the tokens of another row, whose states ``slots`` has: at most so many, with these random numbers."""
        self._buffer.begin(slot, limit, uniform_T)
        self._limits[slot], self._num_written[slot] = limit, 0
        self.active.append(slot)

    @torch.no_grad()
    def step(self) -> dict[int, Completion]:
        """Writes the next token of every active slot; on a GPU several, since each look at them waits for the device.

        Returns:
            The tokens of the rows that are finished, by slot.
        """
        device = self._transformer.device
        num = min(self._look_every, *(self._limits[slot] - self._num_written[slot] for slot in self.active))
        token_S = torch.zeros(len(self._limits), dtype=torch.long, device=device)
        ended_S = torch.zeros_like(token_S, dtype=torch.bool)
        active_n = torch.tensor(self.active, device=device)
        for step in range(num):
            if step:
                self.slots.extend(token_S, self.active)
            logits_nV = self.slots.logits(self.active)
            t_n = torch.tensor([self._num_written[slot] for slot in self.active], device=device)
            token_S[active_n] = self._buffer.write(t_n, active_n, logits_nV)
            ended_S = ended_S | torch.isin(token_S, self._end_ids)
            for slot in self.active:
                self._num_written[slot] += 1
        completions = self._finished(ended_S.tolist())
        if self.active:
            self.slots.extend(token_S, self.active)
        return completions

    def _finished(self, is_ended: Sequence[bool]) -> dict[int, Completion]:
        """Takes the rows that have ended, or are as long as their limit, out of their slots."""
        finished = [slot for slot in self.active if is_ended[slot] or self._num_written[slot] == self._limits[slot]]
        if not finished:
            return {}
        self.active = [slot for slot in self.active if slot not in finished]
        completions = self._buffer.completions_of(finished, self._end_ids)
        for slot, completion in zip(finished, completions, strict=True):
            surplus = self._num_written[slot] - len(completion.token_T)
            self.slots.shorten(slot, self.slots.num_stored[slot] - surplus)
            self._num_written[slot] = 0
        return dict(zip(finished, completions, strict=True))


def decode_in_slots(
    transformer: Transformer, prefix: Prefix, owner_N: Sequence[int], buffer: TokenBuffer, end_ids: Tensor
) -> None:
    """Completes N rows in a slot each, until all are finished.

    Args:
        transformer: the model.
        prefix: the beginnings of rows, aligned on the left.
        owner_N: the beginning of each row.
        buffer: the buffer that samples and stores the tokens of the N rows.
        end_ids: tokens that end a completion.
    """
    decoder = SlotDecoder(transformer, buffer, end_ids)
    decoder.slots.put(range(len(owner_N)), prefix, owner_N)
    for slot, limit in enumerate(buffer.limit_N.tolist()):
        decoder.begin(slot, limit, None)
    while decoder.active:
        decoder.step()
