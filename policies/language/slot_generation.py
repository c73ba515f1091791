"""Generation in slots: the slot of a finished row takes the next row of any prompt."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from ..completion import Completion
from ..prefix import Prefix
from .forward_paths import CachedPath, rows_by_prompt
from .row_generation import GenerationParams, RowGenerator, RowRequest, RowStart, shared_starts
from .slot_decoding import SlotDecoder
from .slots import Slots, left_aligned


@final
class _Beginnings:
    """Beginnings that run through the model together, when the first of their rows has a slot.

    Attributes:
        num_rows: number of their rows.
    """

    def __init__(self, path: CachedPath) -> None:
        """No beginnings yet.

        Args:
            path: runs them.
        """
        self.num_rows = 0
        self._path = path
        self._number: dict[RowStart, int] = {}
        self._prefix: Prefix | None = None

    def add(self, start: RowStart, num_rows: int) -> None:
        """Adds a beginning with its rows."""
        self._number[start] = len(self._number)
        self.num_rows += num_rows

    def put(self, slots: Slots, start_of: Mapping[int, RowStart]) -> None:
        """Copies the states of beginnings into slots."""
        if self._prefix is None:
            prompts = [start.read(self._path.fill) for start in self._number]
            prefix = self._path.transformer.prefill(prompts, max_tokens=self._path.max_tokens)
            self._prefix = left_aligned(prefix)
        slots.put(list(start_of), self._prefix, [self._number[start] for start in start_of.values()])


@final
class SlotGenerator(RowGenerator):
    """Generates rows in slots.

    If there is a slot for every row of the rollout, the row of a conversation stays in its slot between its turns, and
    its next turn continues the cache. Otherwise a row leaves its slot when a turn is finished, and its next turn reads
    the conversation again. The order of answers does not decide which of the two holds, so samples do not depend on it.
    """

    def __init__(self, path: CachedPath, params: GenerationParams, *, num_rows: int, continues: bool) -> None:
        """Begins with empty slots.

        Args:
            path: the forward path.
            params: sampling parameters.
            num_rows: number of rows of the rollout.
            continues: whether finished rows may be continued.
        """
        num_slots = min(params.batch_size, num_rows)
        self._path, self._params = path, params
        self._decoder = SlotDecoder(
            path.transformer, params.buffer(torch.full((num_slots,), params.length)), params.end_ids
        )
        self._free = deque(range(num_slots))
        self._waiting: deque[tuple[RowRequest, _Beginnings]] = deque()
        self._request_in: dict[int, RowRequest] = {}  # by slot
        self._slot_of: dict[int, int] = {}  # by row, of rows that stay in their slots
        self._resumed: dict[int, RowRequest] = {}  # by slot, of rows that were not read yet
        self._stays = continues and num_rows <= num_slots

    @property
    def is_pending(self) -> bool:
        """Whether rows wait for a slot or are in one."""
        return bool(self._waiting or self._resumed or self._decoder.active)

    @torch.no_grad()
    def submit(self, requests: Sequence[RowRequest]) -> list[list[int]]:
        """Each row continues in its slot, or waits for one."""
        for request in requests:
            request.limit(self._params)
        new = [request for request in requests if not self._resume(request)]
        starts, owners = shared_starts(new)
        prompts, beginnings = [start.read(self._path.fill) for start in starts], _Beginnings(self._path)
        for rows in rows_by_prompt(prompts, owners):
            if beginnings.num_rows >= len(self._decoder.slots.num_stored):
                beginnings = _Beginnings(self._path)
            beginnings.add(starts[owners[rows[0]]], len(rows))
            self._waiting.extend((new[n], beginnings) for n in rows)
        return [[request.row] for request in requests]

    @torch.no_grad()
    def advance(self) -> dict[int, Completion]:
        """Reads the rows that continue, fills the free slots, and writes a token of each row, on a GPU several."""
        self._read()
        self._fill()
        finished: dict[int, Completion] = {}
        for slot, completion in self._decoder.step().items():
            request = self._request_in[slot]
            finished[request.row] = request.start.followed_by(completion)
            if not self._stays:
                del self._request_in[slot]
                self._free.append(slot)
        return finished

    def _fill(self) -> None:
        """Gives waiting rows a slot, those that begin together at once."""
        while self._waiting:
            entering: dict[int, RowRequest] = {}
            beginnings = self._waiting[0][1]
            while self._waiting and self._waiting[0][1] is beginnings:
                slot = self._slot(self._waiting[0][0].row)
                if slot is None:
                    break
                entering[slot] = self._waiting.popleft()[0]
            if not entering:
                return
            beginnings.put(self._decoder.slots, {slot: request.start for slot, request in entering.items()})
            for slot, request in entering.items():
                self._begin(slot, request)

    def _slot(self, row: int) -> int | None:
        """A slot for a row; None if there is none now."""
        if row in self._slot_of:
            return self._slot_of[row]
        slot = self._free.popleft() if self._free else None
        if self._stays and slot is not None:
            self._slot_of[row] = slot
        return slot

    def _resume(self, request: RowRequest) -> bool:
        """Continues a row in its slot; returns False if it has none, or if turns with media changed its prompt."""
        slot, initial = self._slot_of.get(request.row), request.start.initial
        if slot is None or initial is None or self._request_in[slot].start.prompt is not request.start.prompt:
            return False
        self._resumed[slot] = request
        return True

    def _read(self) -> None:
        """Reads the tokens that rows have got since they were in their slots, those of several rows at once."""
        slots, tokens_of = self._decoder.slots, dict[int, Tensor]()
        for slot, request in self._resumed.items():
            assert request.start.initial is not None
            num_read = slots.num_stored[slot] - request.start.prompt.length
            tokens_of[slot] = request.start.initial.token_T[num_read:]
        slots.read(tokens_of)
        for slot, request in self._resumed.items():
            self._begin(slot, request)
        self._resumed.clear()

    def _begin(self, slot: int, request: RowRequest) -> None:
        self._request_in[slot] = request
        self._decoder.begin(slot, request.limit(self._params), request.uniform(self._params))
