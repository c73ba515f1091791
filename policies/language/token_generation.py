"""Generation of rows: many rows from one beginning, each with its own random numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import final

import torch

from mmgrpo.errors import DataError
from mmgrpo.types import Continuation

from ..completion import Completion
from .encoding import EncodedPrompt, PromptEncoder
from .engine_generation import EngineGenerator
from .forward_paths import CachedPath, ForwardPath
from .row_generation import GenerationParams, RowGenerator, RowRequest, shared_starts, split_at_switch
from .slot_generation import SlotGenerator


def initial_completion(
    encoder: PromptEncoder, prompt: EncodedPrompt, continuation: Continuation | None, params: GenerationParams
) -> Completion | None:
    """The beginning of the answer from a continuation, else from the prompt's prefix; None if it is empty.

    Raises: DataError for a continuation that contains an end token.
    """
    initial = _inherited_completion(encoder, prompt, continuation, params)
    if initial is None or continuation is None or not continuation.then:
        return initial
    return Completion.concat([initial, Completion.forced(encoder.encode_text(continuation.then), params.sampling)])


def _inherited_completion(
    encoder: PromptEncoder, prompt: EncodedPrompt, continuation: Continuation | None, params: GenerationParams
) -> Completion | None:
    if continuation is None:
        token_T = encoder.encode_text(prompt.prompt.prefix or "")
        return Completion.forced(token_T, params.sampling) if len(token_T) else None
    token_T = torch.as_tensor(list(continuation.token_ids), dtype=torch.long)
    if len(token_T) == 0:
        return None
    if continuation.trace is not None:
        return continuation.trace.completions[continuation.row].prefix(len(token_T))
    if bool(torch.isin(token_T, params.end_ids.cpu()).any()):
        raise DataError(
            f"the prefix to continue of {prompt.prompt.text!r:.60} contains an end token; cut it before that"
        )
    if continuation.old_logprob_T is None:
        return Completion.forced(token_T, params.sampling)
    return Completion.recorded(
        token_T, params.sampling, logprob_T=continuation.old_logprob_T, num_forced=continuation.num_forced
    )


def generate_rows(
    path: ForwardPath, requests: Sequence[RowRequest], params: GenerationParams
) -> Iterator[dict[int, Completion]]:
    """Generates rows; yields full answers, including their beginnings, by row, as soon as they are finished.

    Args:
        path: forward path of the rows.
        requests: the rows.
        params: sampling parameters.

    Yields:
        dict[int, Completion]: finished rows.
    """
    for rows in split_at_switch(requests):
        generator = row_generator(path, params, num_rows=len(rows))
        generator.submit(rows)
        while generator.is_pending:
            if finished := generator.advance():
                yield finished


def row_generator(
    path: ForwardPath, params: GenerationParams, *, num_rows: int, continues: bool = False
) -> RowGenerator:
    """The generator of rows, along a forward path or by an engine.

    Args:
        path: the path.
        params: sampling parameters.
        num_rows: number of rows of the rollout.
        continues: whether finished rows may be continued.

    Returns:
        That of the engine, if there is one; slots, if the model decodes in slots; else batch after batch.
    """
    if params.source is not None:
        return EngineGenerator(params.source, params)
    if isinstance(path, CachedPath) and path.slots:
        return SlotGenerator(path, params, num_rows=num_rows, continues=continues)
    return BatchGenerator(path, params)


@final
class BatchGenerator(RowGenerator):
    """Generates rows batch after batch; a batch ends with its longest row."""

    def __init__(self, path: ForwardPath, params: GenerationParams) -> None:
        """Begins without rows.

        Args:
            path: the forward path.
            params: sampling parameters.
        """
        self._path, self._params = path, params
        self._batches: deque[list[RowRequest]] = deque()

    @property
    def is_pending(self) -> bool:
        """Whether there are unfinished batches."""
        return bool(self._batches)

    def submit(self, requests: Sequence[RowRequest]) -> list[list[int]]:
        """Splits rows into batches, which are sampled together."""
        for request in requests:
            request.limit(self._params)
        starts, owners = shared_starts(requests)
        prompts = [start.read(self._path.fill) for start in starts]
        batches = [
            [requests[n] for n in batch]
            for batch in self._path.decode_batches(prompts, owners, self._params.batch_size)
        ]
        self._batches.extend(batches)
        return [[request.row for request in batch] for batch in batches]

    def advance(self) -> dict[int, Completion]:
        """Generates the next batch."""
        batch, params = self._batches.popleft(), self._params
        starts, owners = shared_starts(batch)
        buffer = params.buffer(torch.tensor([request.limit(params) for request in batch]))
        for position, request in enumerate(batch):
            buffer.begin(position, request.limit(params), request.uniform(params))
        prompts = [start.read(self._path.fill) for start in starts]
        self._path.write(prompts, owners, buffer, params.end_ids)
        completions = zip(batch, buffer.completions(params.end_ids), strict=True)
        return {request.row: request.start.followed_by(completion) for request, completion in completions}
