"""Multi-turn rows: after each turn of the policy the environment answers, and the row continues after that answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from mmgrpo.environment import Turn
from mmgrpo.types import Prompt

from ..completion import Completion, CompletionTurn
from .encoding import PromptEncoder
from .forward_paths import ForwardPath
from .guarded_environment import GuardedEnvironment
from .token_generation import GenerationParams, RowStart, generate_rows


def with_opening_turn(prompt: Prompt, opening: Turn) -> Prompt:
    """The prompt with the environment's opening turn appended."""
    if opening.ends:
        return prompt
    images = [*prompt.images, *opening.images]
    if prompt.messages is None:
        return replace(prompt, text="\n".join(part for part in (prompt.text, opening.text) if part), images=images)
    content = [*({"type": "image"} for _ in opening.images), {"type": "text", "text": opening.text}]
    return replace(prompt, messages=[*prompt.messages, {"role": opening.role, "content": content}], images=images)


def generate_conversations(
    path: ForwardPath,
    starts: Sequence[RowStart],
    owner_N: Sequence[int],
    seed_N: Sequence[int],
    params: GenerationParams,
    *,
    environments: Sequence[GuardedEnvironment],
    openings: Sequence[Turn],
    encoder: PromptEncoder,
    max_turns: int,
) -> Iterator[dict[int, Completion]]:
    """Generates N rows turn by turn; tokens of the environment are forced, never trained.

    A row ends when its environment ends it or returns an empty turn, after ``max_turns``, or if its next turn does
    not fit.

    Args:
        path: forward path of the rows.
        starts: beginnings of rows.
        owner_N: the beginning of each row.
        seed_N: seed of each row's random numbers.
        params: sampling parameters; its length limits the full row, including tokens of the environment.
        environments: one per row, after ``reset``.
        openings: the turn that each ``reset`` returned.
        encoder: encoder of the environment's turns.
        max_turns: maximum number of turns that the policy writes.

    Yields:
        dict[int, Completion]: finished rows.
    """
    turns: list[tuple[CompletionTurn, ...]] = [()] * len(owner_N)
    keys = [opening.state for opening in openings]
    rows, owners = list(range(len(owner_N))), list(owner_N)
    for number in range(1, max_turns + 1):
        continued: dict[int, Completion] = {}
        for batch in generate_rows(path, starts, owners, [seed_N[row] for row in rows], params):
            finished_rows: dict[int, Completion] = {}
            for position, completion in batch.items():
                row, start = rows[position], starts[owners[position]].num_initial
                reply = _reply(environments[row], completion, start, encoder)
                reward = None if reply is None else reply.reward
                turns[row] += (CompletionTurn(start, len(completion.token_T), reward, keys[row]),)
                keys[row] = None if reply is None else reply.state
                extended = _with_reply(completion, reply, encoder, params) if number < max_turns else None
                if extended is None:
                    finished = reply is not None and reply.ends
                    error = environments[row].error
                    finished_rows[row] = replace(
                        completion, turns=turns[row], finished=finished, environment_error=error
                    )
                else:
                    continued[row] = extended
            if finished_rows:
                yield finished_rows
        starts = [
            RowStart(starts[owners[position]].prompt, continued[row])
            for position, row in enumerate(rows)
            if row in continued
        ]
        rows = [row for row in rows if row in continued]
        owners = list(range(len(rows)))
        if not rows:
            return


def _reply(environment: GuardedEnvironment, completion: Completion, start: int, encoder: PromptEncoder) -> Turn | None:
    """The environment's answer to a turn; None for a turn that was cut off."""
    if not completion.finished:
        return None
    return environment.step(encoder.text(completion.token_T[start:].tolist()))


def _with_reply(
    completion: Completion, reply: Turn | None, encoder: PromptEncoder, params: GenerationParams
) -> Completion | None:
    """The row with the reply appended, ready to continue; None if it ends."""
    if reply is None or reply.ends:
        return None
    token_T = encoder.encode_reply(reply.text, reply.role, end_ids=params.end_ids.tolist())
    if len(completion.token_T) + len(token_T) >= params.length:
        return None
    return Completion.concat([completion, Completion.forced(token_T.to(torch.long), params.sampling)])
