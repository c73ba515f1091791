"""The trace of a text rollout: per-row data from which any rows can be scored in any batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from re import Pattern
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmgrpo.maths.prefixes import prefix_states
from mmgrpo.types import Rollout, Sample
from mmgrpo.values import Value

from ..completion import Completion
from .encoding import EncodedPrompt


@dataclass(frozen=True, slots=True, eq=False)
class TextTrace:
    """Prompts and completions.

    Attributes:
        prompts: the prompts.
        prompt_of_B: the prompt of each row.
        completions: one per row.
    """

    prompts: Sequence[EncodedPrompt]
    prompt_of_B: Sequence[int]
    completions: Sequence[Completion]

    @classmethod
    def of(
        cls, prompts: Sequence[EncodedPrompt], groups: Sequence[int], completions: Sequence[Completion]
    ) -> TextTrace:
        """The trace of rows with a prompt and a group each; rows with the same prompt object and group share the
        prompt.
        """
        keys = [(group, id(prompt)) for group, prompt in zip(groups, prompts, strict=True)]
        number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
        first = dict(zip(reversed(keys), reversed(prompts), strict=True))
        return cls([first[key] for key in number], [number[key] for key in keys], completions)

    @classmethod
    def joined(cls, traces: Sequence[TextTrace]) -> TextTrace:
        """The rows of several traces, concatenated; rows with the same prompt object share the prompt."""
        row_prompts = [trace.prompts[owner] for trace in traces for owner in trace.prompt_of_B]
        number = {key: n for n, key in enumerate(dict.fromkeys(id(prompt.prompt) for prompt in row_prompts))}
        first = {id(prompt.prompt): prompt for prompt in reversed(row_prompts)}
        return cls(
            [first[key] for key in number],
            [number[id(prompt.prompt)] for prompt in row_prompts],
            [completion for trace in traces for completion in trace.completions],
        )

    def alike(self, rows: Sequence[int]) -> list[list[int]]:
        """Groups rows by their distribution, since a scoring batch has one distribution."""
        groups: dict[int, list[int]] = {}
        for row in rows:
            groups.setdefault(id(self.completions[row].sampling), []).append(row)
        return list(groups.values())

    def batches(self, rows: Sequence[int], *, max_tokens: int, shared: bool) -> list[list[int]]:
        """Scoring batches, rows of one prompt together; the tokens of a shared prompt are counted once."""
        by_prompt: dict[int, list[int]] = {}
        for row in rows:
            by_prompt.setdefault(self.prompt_of_B[row], []).append(row)
        order = sorted(by_prompt, key=lambda k: (repr(self.prompts[k].kind), self.prompts[k].length))
        batches: list[list[int]] = []
        widest, longest, num_prompts, last = 0, 0, 0, -1
        for prompt in order:
            encoded, before = self.prompts[prompt], self.prompts[last]
            is_shared = shared and encoded.media_turns is None
            for row in self._ordered(by_prompt[prompt]):
                width, length = max(widest, encoded.length), max(longest, len(self.completions[row].token_T))
                count = num_prompts + (prompt != last or not is_shared)
                fits = batches and count * width + (len(batches[-1]) + 1) * length <= max_tokens
                joins = encoded.is_beyond_switch == before.is_beyond_switch and (
                    encoded.kind == before.kind or (is_shared and before.media_turns is None)
                )
                if not fits or not joins:
                    batches.append([])
                    width, length, count = encoded.length, len(self.completions[row].token_T), 1
                batches[-1].append(row)
                widest, longest, num_prompts, last, before = width, length, count, prompt, encoded
        return batches

    def _ordered(self, rows: Sequence[int]) -> list[int]:
        """Rows of one prompt, shorter ones first; if rows continue others, sorted by their tokens."""
        tokens = {row: self.completions[row].token_T for row in rows}
        if not any(self.completions[row].num_inherited for row in rows):
            return sorted(rows, key=lambda row: len(tokens[row]))
        return sorted(rows, key=lambda row: tokens[row].tolist())


def with_completion(
    sample: Sample, completion: Completion, decode: Callable[[Sequence[int]], str], names: Sequence[str]
) -> Sample:
    """The sample with a completion and the requested means over its decisions, as rewards will see it."""
    return replace(
        sample,
        text=decode(completion.token_T.tolist()),
        tokens=completion.token_T.tolist(),
        finished=completion.finished,
        logprob=completion.mean(completion.logprob_T),
        values={name: mean for name in names if (mean := completion.mean(completion.numbers[name])) is not None},
        num_forced=completion.num_forced,
        turn_starts=[turn.start for turn in completion.turns],
        turn_ends=[turn.end for turn in completion.turns],
        turn_texts=[decode(completion.token_T[turn.start : turn.end].tolist()) for turn in completion.turns],
        turn_rewards=[turn.reward for turn in completion.turns],
        turn_keys=[turn.key for turn in completion.turns],
        turn_replies=[turn.reply for turn in completion.turns],
        turn_contents=[turn.content for turn in completion.turns],
        environment_error=completion.environment_error,
        environment=completion.environment,
    )


def build_rollout(
    trace: TextTrace,
    samples: Sequence[Sample],
    tokenizer: Any,
    *,
    segment_end: Pattern[str] | None,
    trained: bool,
    stored_values: Sequence[Value] = (),
) -> Rollout:
    """The rollout of a trace.

    Args:
        trace: the trace.
        samples: the sample of each row.
        tokenizer: the model's tokenizer.
        segment_end: pattern of a token that ends a segment.
        trained: whether the decisions were sampled at random, and so can be trained on.
        stored_values: per-token statistics that are values of the rollout.

    Returns:
        B rows, padded to the longest completion.
    """
    completions = trace.completions
    has_turns = any(completion.turns for completion in completions)
    lengths_B = torch.tensor([len(completion.token_T) for completion in completions])
    T = int(lengths_B.max())
    exists_BT = torch.arange(T)[None] < lengths_B[:, None]
    token_BT = pad_sequence([completion.token_T for completion in completions], batch_first=True)
    is_decision_BT = pad_sequence([completion.is_decision_T for completion in completions], batch_first=True)
    return Rollout(
        samples=samples,
        prompt_index_B=torch.tensor([sample.group for sample in samples]),
        old_logprob_BT=pad_sequence([completion.logprob_T for completion in completions], batch_first=True),
        mask_BT=is_decision_BT & trained,
        state_BT=prefix_states(token_BT, exists_BT, torch.tensor(trace.prompt_of_B)),
        segment_BT=_turns(completions, T) if has_turns else _segments(completions, tokenizer, segment_end, T),
        trace=trace,
        values={value: _padded(value.name, completions) for value in stored_values},
        token_BT=token_BT.where(exists_BT, -1),
        is_prefix=True,
        num_decisions_B=lengths_B,
        record_B=[completion.record() for completion in completions],
        num_forwards=len(completions),
    )


def _padded(name: str, completions: Sequence[Completion]) -> Tensor:
    return pad_sequence([completion.numbers[name] for completion in completions], batch_first=True)


def _turns(completions: Sequence[Completion], T: int) -> Tensor:
    """The number of each token's turn; tokens of the environment belong to the turn that follows."""
    segment_BT = torch.zeros(len(completions), T, dtype=torch.long)
    for row, completion in enumerate(completions):
        for turn in completion.turns[:-1]:
            segment_BT[row, turn.end : len(completion.token_T)] += 1
    return segment_BT


def _segments(completions: Sequence[Completion], tokenizer: Any, end: Pattern[str] | None, T: int) -> Tensor:
    segment_BT = torch.zeros(len(completions), T, dtype=torch.long)
    if end is None:
        return segment_BT
    for row, completion in enumerate(completions):
        pieces = tokenizer.batch_decode(completion.token_T[:, None])
        ends_T = torch.tensor([end.search(piece) is not None for piece in pieces])
        segment_BT[row, 1 : len(pieces)] = ends_T.long().cumsum(0)[:-1]
    return segment_BT
