"""Rows written over several turns: after each the environment answers, and the row goes on behind what it says."""

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
    """The prompt with what the environment says before the first turn."""
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
    drawing: GenerationParams,
    *,
    environments: Sequence[GuardedEnvironment],
    openings: Sequence[Turn],
    encoder: PromptEncoder,
    max_turns: int,
) -> Iterator[dict[int, Completion]]:
    """Writes N rows turn by turn; what an environment says is given, never trained.

    A row ends when its environment says so or says nothing, after ``max_turns``, or where its next turn has no room.

    Args:
        way: how rows go through the model.
        starts: what there is to go on from.
        owner_N: which of them each row goes on from.
        seed_N: of each row's random numbers.
        drawing: how to write; its length is that of a row, what it is told included.
        environments: one per row, after ``reset``.
        openings: what each said then.
        encoder: of what they say.
        max_turns: turns that a row may write.

    Yields:
        dict[int, Completion]: rows that are over, whole.
    """
    turns: list[tuple[CompletionTurn, ...]] = [()] * len(owner_N)
    keys = [opening.state for opening in openings]
    rows, owners = list(range(len(owner_N))), list(owner_N)
    for number in range(1, max_turns + 1):
        continued: dict[int, Completion] = {}
        for batch in generate_rows(path, starts, owners, [seed_N[row] for row in rows], drawing):
            finished_rows: dict[int, Completion] = {}
            for position, completion in batch.items():
                row, start = rows[position], starts[owners[position]].num_initial
                reply = _reply(environments[row], completion, start, encoder)
                reward = None if reply is None else reply.reward
                turns[row] += (CompletionTurn(start, len(completion.token_T), reward, keys[row]),)
                keys[row] = None if reply is None else reply.state
                extended = _told(completion, reply, encoder, drawing) if number < max_turns else None
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
    """What the environment says to a turn; None to one that was cut off."""
    if not completion.finished:
        return None
    return environment.step(encoder.text(completion.token_T[start:].tolist()))


def _told(
    completion: Completion, reply: Turn | None, encoder: PromptEncoder, drawing: GenerationParams
) -> Completion | None:
    """The row with the reply behind it, ready to go on; None if it does not."""
    if reply is None or reply.ends:
        return None
    token_T = encoder.reply(reply.text, reply.role, end_ids=drawing.end_ids.tolist())
    if len(completion.token_T) + len(token_T) >= drawing.length:
        return None
    return Completion.concat([completion, Completion.forced(token_T.to(torch.long), drawing.sampling)])
