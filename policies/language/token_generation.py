"""Writes rows: many from one beginning, each by random numbers of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmgrpo.errors import DataError
from mmgrpo.types import Continuation

from ..completion import Completion
from ..sampling import TokenSampling
from ..token_buffer import TokenBuffer
from .encoding import EncodedPrompt, PromptEncoder
from .forward_paths import ForwardPath


@dataclass(frozen=True, slots=True, eq=False)
class RowStart:
    """What rows go on from.

    Attributes:
        prompt: what was asked.
        begun: the answer so far; None if nothing is there.
    """

    prompt: EncodedPrompt
    initial: Completion | None = None

    @property
    def num_initial(self) -> int:
        """Tokens of the answer so far."""
        return 0 if self.initial is None else len(self.initial.token_T)

    def read(self, fill: int) -> EncodedPrompt:
        """Prompt and answer so far as one."""
        return self.prompt if self.initial is None else self.prompt.with_tokens(self.initial.token_T, fill)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationParams:
    """How rows are written.

    Attributes:
        sampling: the distribution drawn from.
        length: the most tokens of an answer, its beginning included.
        greedy: whether the likeliest token is taken.
        numbers: what is kept of each token beside its log-probability.
        batch: rows written together.
        end_ids: tokens that end an answer.
        embedding_VD: the vector that the model has for each token, if a number is made of them.
    """

    sampling: TokenSampling
    length: int
    greedy: bool
    numbers: tuple[str, ...]
    batch: int
    end_ids: Tensor
    embedding_VD: Tensor | None = None


def initial_completion(
    encoder: PromptEncoder, prompt: EncodedPrompt, continuation: Continuation | None, drawing: GenerationParams
) -> Completion | None:
    """What a continuation, or else the prompt, gives of the answer; None if nothing.

    Raises: DataError for a continuation that has ended.
    """
    initial = _taken_over(encoder, prompt, continuation, drawing)
    if initial is None or continuation is None or not continuation.then:
        return initial
    return Completion.concat([initial, Completion.forced(encoder.target(continuation.then), drawing.sampling)])


def _taken_over(
    encoder: PromptEncoder, prompt: EncodedPrompt, continuation: Continuation | None, drawing: GenerationParams
) -> Completion | None:
    if continuation is None:
        token_T = encoder.target(prompt.prompt.prefix or "")
        return Completion.forced(token_T, drawing.sampling) if len(token_T) else None
    token_T = torch.as_tensor(list(continuation.token_ids), dtype=torch.long)
    if bool(torch.isin(token_T, drawing.end_ids.cpu()).any()):
        raise DataError(f"what is to be continued of {prompt.prompt.text!r:.60} holds an end token; cut it before that")
    if len(token_T) == 0:
        return None
    if continuation.trace is not None:
        return continuation.trace.completions[continuation.row].prefix(len(token_T))
    if continuation.old_logprob_T is None:
        return Completion.forced(token_T, drawing.sampling)
    return Completion.recorded(
        token_T, drawing.sampling, logprob_T=continuation.old_logprob_T, num_forced=continuation.num_forced
    )


def generate_rows(
    path: ForwardPath,
    starts: Sequence[RowStart],
    owner_N: Sequence[int],
    seed_N: Sequence[int],
    drawing: GenerationParams,
) -> Iterator[dict[int, Completion]]:
    """Writes N rows, batch by batch.

    Decision t of a row takes the t-th random number of its seed, wherever it goes on from.

    Args:
        way: how rows go through the model.
        starts: what there is to go on from.
        owner_N: which of them each row goes on from.
        seed_N: of each row's random numbers.
        drawing: how to write.

    Yields:
        dict[int, Completion]: of a batch, by row: its whole answer, what it went on from included.

    Raises:
        DataError: a beginning leaves no room.
    """
    for start in starts:
        if start.num_initial >= drawing.length:
            raise DataError(
                f"the answer to {start.prompt.prompt.text!r:.60} begins with {start.num_initial} given tokens, which "
                f"leaves nothing of max_new_tokens={drawing.length} to write; raise it"
            )
    texts = [start.read(path.fill) for start in starts]
    for batch in path.decode_batches(texts, owner_N, drawing.batch):
        owners = sorted({owner_N[n] for n in batch})
        initial = [starts[owner_N[n]].num_initial for n in batch]
        limit_n = torch.tensor([drawing.length - count for count in initial])
        uniform_nT = None
        if not drawing.greedy:
            uniform_nT = torch.zeros(len(batch), int(limit_n.max()))
            for position, (row, count) in enumerate(zip(batch, initial, strict=True)):
                row_uniform_T = torch.rand(drawing.length, generator=torch.Generator().manual_seed(seed_N[row]))
                uniform_nT[position, : drawing.length - count] = row_uniform_T[count:]
        buffer = TokenBuffer(
            drawing.sampling,
            limit_N=limit_n,
            device=drawing.end_ids.device,
            uniform_NT=uniform_nT,
            numbers=drawing.numbers,
            embedding_VD=drawing.embedding_VD,
        )
        path.write([texts[p] for p in owners], [owners.index(owner_N[n]) for n in batch], buffer, drawing.end_ids)
        written = zip(batch, buffer.completions(drawing.end_ids), strict=True)
        yield {row: _whole(starts[owner_N[row]].initial, completion) for row, completion in written}


def _whole(initial: Completion | None, completion: Completion) -> Completion:
    return completion if initial is None else Completion.concat([initial, completion])
