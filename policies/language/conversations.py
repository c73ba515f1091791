"""Multi-turn rows: after each turn of the policy the environment answers, and the row continues after that answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from mmgrpo.environment import Turn
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt

from ..completion import Completion, CompletionTurn
from .encoding import EncodedPrompt, PromptEncoder, media_prompt, parts_of
from .forward_paths import ForwardPath
from .guarded_environment import GuardedEnvironment
from .token_generation import GenerationParams, RowStart, generate_rows


def with_opening_turn(prompt: Prompt, opening: Turn) -> Prompt:
    """The prompt with the environment's opening turn appended."""
    if opening.ends:
        return prompt
    media: dict[str, list[Any]] = {
        name: [*getattr(prompt, name), *getattr(opening, name)] for name in ("images", "videos", "audios")
    }
    if prompt.messages is None:
        return replace(prompt, text="\n".join(part for part in (prompt.text, opening.text) if part), **media)
    turn = {"role": opening.role, "content": parts_of(media_prompt(opening))}
    return replace(prompt, messages=[*prompt.messages, turn], **media)


def with_turns(
    encoder: PromptEncoder, prompt: EncodedPrompt, completion: Completion, end_ids: Sequence[int]
) -> EncodedPrompt:
    """The prompt of a recorded row with the media of its turns.

    Args:
        encoder: encoder of the environment's turns.
        prompt: the prompt without later turns.
        completion: the row, with its turns.
        end_ids: tokens that end an answer.

    Returns:
        The prompt; the same object if no turn has media.

    Raises:
        DataError: the tokens of a turn differ from those of the row, so another processor or template made it.
    """
    for turn, following in pairwise(completion.turns):
        if turn.reply is None or not turn.reply.num_media:
            continue
        encoded, token_T = encoder.encode_reply(turn.reply, end_ids=end_ids), completion.token_T[: following.start]
        if not torch.equal(token_T[turn.end :], encoded.token_T.to(token_T)):
            raise DataError(
                f"the answer to {prompt.prompt.text!r:.60} has a turn with media whose tokens differ from those that "
                "this processor and chat template make of it: use those that sampled it"
            )
        prompt = encoder.with_media_turn(prompt, turn.reply, token_T, encoded)
    return prompt


def generate_conversations(
    path_for: Callable[[Sequence[EncodedPrompt]], ForwardPath],
    starts: Sequence[RowStart],
    owner_N: Sequence[int],
    seed_N: Sequence[int],
    params: GenerationParams,
    *,
    environments: Sequence[GuardedEnvironment],
    openings: Sequence[Turn],
    encoder: PromptEncoder,
    max_turns: int,
) -> Iterator[dict[int, ConversationRow]]:
    """Generates N rows turn by turn; tokens of the environment are forced, never trained.

    A row ends when its environment ends it or returns an empty turn, after ``max_turns``, or if its next turn does
    not fit.

    Args:
        path_for: selects the forward path for rows of some prompts.
        starts: beginnings of rows.
        owner_N: the beginning of each row.
        seed_N: seed of each row's random numbers.
        params: sampling parameters; its length limits the full row, including tokens of the environment.
        environments: one per row, after ``reset``.
        openings: the turn that each ``reset`` returned.
        encoder: encoder of the environment's turns.
        max_turns: maximum number of turns that the policy writes.

    Yields:
        dict[int, ConversationRow]: finished rows.

    Raises:
        DataError: the model can take the media of none of the environment's turns.
    """
    media_errors: list[DataError | None] = []  # of each turn with media
    turns: list[tuple[CompletionTurn, ...]] = [()] * len(owner_N)
    keys = [opening.state for opening in openings]
    rows, owners = list(range(len(owner_N))), list(owner_N)
    for number in range(1, max_turns + 1):
        continued: dict[int, ConversationRow] = {}
        path = path_for([start.prompt for start in starts])
        for batch in generate_rows(path, starts, owners, [seed_N[row] for row in rows], params):
            finished_rows: dict[int, ConversationRow] = {}
            for position, completion in batch.items():
                row, start = rows[position], starts[owners[position]]
                environment, written = environments[row], ConversationRow(start.prompt, completion)
                reply = _reply(environment, completion, start.num_initial, encoder)
                reward = None if reply is None else reply.reward
                turns[row] += (CompletionTurn(start.num_initial, len(completion.token_T), reward, keys[row], reply),)
                keys[row] = None if reply is None else reply.state
                extended = None
                if number < max_turns and reply is not None and not reply.ends:
                    try:
                        extended = _with_reply(written, reply, encoder, params)
                        media_errors += [None] * bool(reply.num_media)
                    except DataError as error:
                        if not reply.num_media:
                            raise
                        environment.fail("step", error)
                        media_errors.append(error)
                if extended is None:
                    finished = reply is not None and reply.ends
                    ended = replace(
                        completion, turns=turns[row], finished=finished, environment_error=environment.error
                    )
                    finished_rows[row] = replace(written, completion=ended)
                else:
                    continued[row] = extended
            if finished_rows:
                yield finished_rows
        rows = [row for row in rows if row in continued]
        starts = [RowStart(continued[row].prompt, continued[row].completion) for row in rows]
        owners = list(range(len(rows)))
        if not rows:
            break
    failures = [error for error in media_errors if error is not None]
    if failures and len(failures) == len(media_errors):
        raise failures[0]


@dataclass(frozen=True, slots=True, eq=False)
class ConversationRow:
    """A row of a conversation: its prompt, with the media of later turns, and its tokens."""

    prompt: EncodedPrompt
    completion: Completion


def _reply(environment: GuardedEnvironment, completion: Completion, start: int, encoder: PromptEncoder) -> Turn | None:
    """The environment's answer to a turn; None for a turn that was cut off."""
    if not completion.finished:
        return None
    return environment.step(encoder.text(completion.token_T[start:].tolist()))


def _with_reply(
    row: ConversationRow, reply: Turn, encoder: PromptEncoder, params: GenerationParams
) -> ConversationRow | None:
    """The row with the reply appended, ready to continue; None if it does not fit.

    Raises DataError for a turn that template or processor do not take.
    """
    prompt, completion = row.prompt, row.completion
    encoded = encoder.encode_reply(reply, end_ids=params.end_ids.tolist())
    if len(completion.token_T) + len(encoded.token_T) >= params.length:
        return None
    token_T = torch.cat([completion.token_T, encoded.token_T.to(torch.long)])
    if reply.num_media:
        prompt = encoder.with_media_turn(prompt, reply, token_T, encoded)
    forced = Completion.forced(encoded.token_T.to(torch.long), params.sampling)
    return ConversationRow(prompt, Completion.concat([completion, forced]))
