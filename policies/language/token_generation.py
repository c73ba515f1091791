"""Generation of rows: many rows from one beginning, each with its own random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmgrpo.errors import DataError
from mmgrpo.types import Continuation

from ..completion import Completion
from ..sampling import SamplingDistribution
from ..token_buffer import TokenBuffer
from .encoding import EncodedPrompt, PromptEncoder
from .forward_paths import ForwardPath


@dataclass(frozen=True, slots=True, eq=False)
class RowStart:
    """The beginning of rows.

    Attributes:
        prompt: the prompt.
        initial: the beginning of the answer; None if it is empty.
    """

    prompt: EncodedPrompt
    initial: Completion | None = None

    @property
    def num_initial(self) -> int:
        """Number of tokens of the beginning of the answer."""
        return 0 if self.initial is None else len(self.initial.token_T)

    def read(self, fill: int) -> EncodedPrompt:
        """Prompt and beginning of the answer as one prompt."""
        return self.prompt if self.initial is None else self.prompt.with_tokens(self.initial.token_T, fill)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationParams:
    """Sampling parameters of a rollout.

    Attributes:
        sampling: the sampling distribution.
        length: maximum number of tokens of an answer, including its beginning.
        greedy: whether to take the likeliest token.
        numbers: statistics to store per token besides its log-probability.
        batch_size: rows per decoding batch.
        end_ids: tokens that end an answer.
        embedding_VD: the model's token embeddings, if a statistic needs them.
    """

    sampling: SamplingDistribution
    length: int
    greedy: bool
    numbers: tuple[str, ...]
    batch_size: int
    end_ids: Tensor
    embedding_VD: Tensor | None = None


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
    path: ForwardPath,
    starts: Sequence[RowStart],
    owner_N: Sequence[int],
    seed_N: Sequence[int],
    params: GenerationParams,
) -> Iterator[dict[int, Completion]]:
    """Generates N rows, batch by batch.

    Decision t of a row uses the t-th random number of its seed, wherever the row starts.

    Args:
        path: forward path of the rows.
        starts: beginnings of rows.
        owner_N: the beginning of each row.
        seed_N: seed of each row's random numbers.
        params: sampling parameters.

    Yields:
        dict[int, Completion]: the full answers of a batch by row, including their beginnings.

    Raises:
        DataError: a beginning is as long as the limit.
    """
    for start in starts:
        if start.num_initial >= params.length:
            raise DataError(
                f"the answer to {start.prompt.prompt.text!r:.60} begins with a prefix of {start.num_initial} "
                f"tokens, which leaves none of max_new_tokens={params.length} to generate; raise max_new_tokens"
            )
    texts = [start.read(path.fill) for start in starts]
    for batch in path.decode_batches(texts, owner_N, params.batch_size):
        owners = sorted({owner_N[n] for n in batch})
        initial = [starts[owner_N[n]].num_initial for n in batch]
        limit_n = torch.tensor([params.length - count for count in initial])
        uniform_nT = None
        if not params.greedy:
            uniform_nT = torch.zeros(len(batch), int(limit_n.max()))
            for position, (row, count) in enumerate(zip(batch, initial, strict=True)):
                row_uniform_T = torch.rand(params.length, generator=torch.Generator().manual_seed(seed_N[row]))
                uniform_nT[position, : params.length - count] = row_uniform_T[count:]
        buffer = TokenBuffer(
            params.sampling,
            limit_N=limit_n,
            device=params.end_ids.device,
            uniform_NT=uniform_nT,
            numbers=params.numbers,
            embedding_VD=params.embedding_VD,
        )
        path.write([texts[p] for p in owners], [owners.index(owner_N[n]) for n in batch], buffer, params.end_ids)
        written = zip(batch, buffer.completions(params.end_ids), strict=True)
        yield {row: _joined(starts[owner_N[row]].initial, completion) for row, completion in written}


def _joined(initial: Completion | None, completion: Completion) -> Completion:
    return completion if initial is None else Completion.concat([initial, completion])
