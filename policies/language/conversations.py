"""Multi-turn rows: after each turn of the policy the environment answers, and the row continues after that answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch

from mmgrpo.environment import Turn
from mmgrpo.errors import DataError, PolicyError
from mmgrpo.samples import joined_media
from mmgrpo.tool_calls import description
from mmgrpo.types import Continuation, Prompt

from ..completion import Completion, CompletionTurn
from .encoding import EncodedPrompt, PromptEncoder
from .engine_generation import require_engine_media
from .environment_pool import EnvironmentPool
from .forward_paths import ForwardPath
from .row_generation import GenerationParams, RowGenerator, RowRequest, RowStart, split_at_switch
from .token_generation import row_generator
from .tool_turns import media_prompt


def with_opening_turn(prompt: Prompt, opening: Turn, *, takes_tools: bool) -> Prompt:
    """The prompt with the environment's opening turn appended.

    Args:
        prompt: the prompt; a text of the turn continues its last message if that has the turn's role.
        opening: the turn.
        takes_tools: whether the chat template describes tools; if not, the text does.

    Returns:
        The prompt.
    """
    if opening.ends:
        return prompt
    if opening.tools and takes_tools:
        arguments = {**prompt.chat_template_kwargs, "tools": list(opening.tools)}
        prompt = replace(prompt, chat_template_kwargs=arguments)
    elif opening.tools:
        opening = replace(opening, text="\n".join(filter(None, [opening.text, description(opening.tools)])))
    if not (opening.text or opening.num_media):
        return prompt
    media = joined_media([prompt, opening])
    if prompt.messages is None:
        return replace(prompt, text="\n".join(part for part in (prompt.text, opening.text) if part), **media)
    *earlier, last = prompt.messages
    if last["role"] != opening.role:
        earlier, last = [*earlier, last], {"role": opening.role, "content": ""}
    return replace(prompt, messages=[*earlier, {**last, "content": _continued(last["content"], opening)}], **media)


def _continued(content: Any, opening: Turn) -> str | list[Any]:
    """The content of a message with a turn appended, on a new line unless one of them has white space there."""
    before = content if isinstance(content, str) else "".join(part.get("text") or "" for part in content[-1:])
    is_joined = not (before and opening.text) or before[-1].isspace() or opening.text[0].isspace()
    text = opening.text if is_joined else f"\n{opening.text}"
    if isinstance(content, str) and not opening.num_media:
        return content + text
    parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else list(content)
    return [*parts, *media_prompt(replace(opening, text=text)).parts]


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
        encoded, token_T = (
            encoder.encode_reply(turn.reply, prompt=prompt.prompt, end_ids=end_ids),
            completion.token_T[: following.start],
        )
        if not torch.equal(token_T[turn.end :], encoded.token_T.to(token_T)):
            raise DataError(
                f"the answer to {prompt.prompt.text!r:.60} has a turn with media whose tokens differ from those that "
                "this processor and chat template make of it: use those that sampled it"
            )
        prompt = encoder.with_media_turn(prompt, turn.reply, token_T, encoded)
    return prompt


def inherited_turns(continuation: Continuation | None) -> tuple[CompletionTurn, ...]:
    """The turns of a conversation that a row takes over from another.

    Args:
        continuation: the beginning of the row; None: it is empty.

    Returns:
        The answered turns, then the turn that the row continues; empty if it continues no conversation.
    """
    if continuation is None or continuation.trace is None:
        return ()
    turns = continuation.trace.completions[continuation.row].turns
    return tuple(turn for turn in turns if turn.start <= len(continuation.token_ids))


def replay_turns(
    pool: EnvironmentPool,
    openings: Sequence[Turn],
    starts: Sequence[RowStart],
    inherited: Sequence[Sequence[CompletionTurn]],
    encoder: PromptEncoder,
) -> None:
    """Brings new environments to the state in which rows continue others, by the turns of those.

    An environment that does not answer as it did has failed: its conversation ends, and no reward scores it.

    Args:
        pool: the environments, after ``reset``.
        openings: the turn that each ``reset`` returned.
        starts: the beginning of each row.
        inherited: the turns that each row takes over.
        encoder: encoder of the environment's turns.
    """
    for row, turns in enumerate(inherited):
        if turns and openings[row].state != turns[0].key:
            _fail_replay(pool, row, "reset")
    for number in range(max((len(turns) for turns in inherited), default=1) - 1):
        rows = [
            row
            for row, turns in enumerate(inherited)
            if number < len(turns) - 1 and pool.environments[row].error is None
        ]
        for row in rows:
            turn, initial = inherited[row][number], starts[row].initial
            assert initial is not None
            message_start = turn.start if number else 0
            pool.submit(row, encoder.message(starts[row].prompt, initial.token_T[: turn.end], message_start))
        for row in rows:
            reply, recorded = pool.reply(row), inherited[row][number].reply
            if pool.environments[row].error is None and not _is_same(reply, recorded):
                _fail_replay(pool, row, "step")


def _is_same(reply: Turn, recorded: Turn | None) -> bool:
    fields = ("text", "num_media", "ends", "state", "role")
    return recorded is not None and all(getattr(reply, name) == getattr(recorded, name) for name in fields)


def _fail_replay(pool: EnvironmentPool, row: int, method: str) -> None:
    error = DataError(
        "the environment answered the same turns otherwise than before, so that no other row can continue its "
        "conversation: make it depend on the prompt and the turns alone, or use a strategy without branches"
    )
    pool.environments[row].fail(method, error)


@dataclass(frozen=True, slots=True, eq=False)
class ConversationRow:
    """A row of a conversation: its prompt, with the media of later turns, and its tokens."""

    prompt: EncodedPrompt
    completion: Completion


@dataclass(slots=True, kw_only=True, eq=False)
class _Conversations:
    """The state of a rollout's conversations.

    Attributes:
        pool: the environments.
        encoder: encoder of the environment's turns.
        params: sampling parameters.
        max_turns: maximum number of turns that the policy writes.
        requests: the rows.
        written: what each row has, its last turn included, once that is sampled.
        starts: number of tokens before the last turn of each row.
        keys: key of the state before the last turn of each row.
        turns: turns of each row.
        contents: the last turn of each row without its calls, as ``AssistantMessage.content``.
        num_taken: number of turns that the model takes, with media and without.
        rejections: why the model or its template takes no such turn, by whether it has media.
    """

    pool: EnvironmentPool
    encoder: PromptEncoder
    params: GenerationParams
    max_turns: int
    requests: list[RowRequest]
    written: dict[int, ConversationRow]
    starts: list[int]
    keys: list[str | None]
    turns: list[tuple[CompletionTurn, ...]]
    contents: dict[int, str | None] = field(default_factory=dict)
    num_taken: Counter[bool] = field(default_factory=Counter)
    rejections: dict[bool, DataError | PolicyError] = field(default_factory=dict)

    def submit(self, row: int, completion: Completion) -> None:
        """Sends a finished turn of the policy to the row's environment."""
        prompt = self.requests[row].start.prompt
        self.written[row] = ConversationRow(prompt, completion)
        if completion.finished:
            message_start = self.starts[row] if self.turns[row] else 0
            message = self.encoder.message(prompt, completion.token_T, message_start)
            self.contents[row] = message.content
            self.pool.submit(row, message)

    def are_answered(self, rows: Sequence[int], answered: set[int]) -> bool:
        """Whether the policy has finished the turns of some rows, and the environments have answered them.

        Args:
            rows: the rows.
            answered: those that the environments have answered.

        Returns:
            Whether they have.
        """
        written = [self.written.get(row) for row in rows]
        return all(
            turn is not None and (row in answered or not turn.completion.finished)
            for row, turn in zip(rows, written, strict=True)
        )

    def answer(self, rows: Sequence[int]) -> tuple[dict[int, ConversationRow], dict[int, RowRequest]]:
        """Takes the answers of some rows; returns the rows that end, and the next turns of the others."""
        written = {row: self.written.pop(row) for row in rows}
        replies = {row: self.pool.reply(row) for row in rows if written[row].completion.finished}
        continued: dict[int, ConversationRow] = {}
        for row, reply in replies.items():
            if len(self.turns[row]) + 1 < self.max_turns and not reply.ends:
                extended = self._with_reply(row, written[row], reply)
                continued |= {} if extended is None else {row: extended}
        ended_rows = [row for row in rows if row not in continued]
        cut_off = [row for row in ended_rows if row not in replies or not replies[row].ends]
        final_rewards = self.pool.final_rewards(cut_off)
        for row in rows:
            reply, end = replies.get(row), len(written[row].completion.token_T)
            reward = None if reply is None else reply.reward
            reward = final_rewards.get(row) if reward is None else reward
            content = self.contents.pop(row, None)
            self.turns[row] += (CompletionTurn(self.starts[row], end, reward, self.keys[row], reply, content),)
        for row, extended in continued.items():
            self.starts[row] = len(extended.completion.token_T)
            self.keys[row] = replies[row].state
            start = RowStart(extended.prompt, extended.completion)
            self.requests[row] = replace(self.requests[row], start=start)
        ended = {row: self._ended(written[row], row, finished=row not in cut_off) for row in ended_rows}
        return ended, {row: self.requests[row] for row in continued}

    def _ended(self, written: ConversationRow, row: int, *, finished: bool) -> ConversationRow:
        environment = self.pool.environments[row]
        completion = replace(
            written.completion,
            turns=self.turns[row],
            finished=finished,
            environment_error=environment.error,
            environment=environment.handle,
        )
        return replace(written, completion=completion)

    def _with_reply(self, row: int, written: ConversationRow, reply: Turn) -> ConversationRow | None:
        try:
            extended = _with_reply(written, reply, self.encoder, self.params)
        except (DataError, PolicyError) as error:
            self.pool.environments[row].fail("step", error)
            if isinstance(error, PolicyError) or not self.encoder.takes_kinds(reply):
                self.rejections.setdefault(reply.num_media > 0, error)
            return None
        self.num_taken[reply.num_media > 0] += 1
        return extended

    def require_taken(self) -> None:
        """Raises an error if the model took none of the turns with media, or none of those without."""
        for has_media, error in self.rejections.items():
            if not self.num_taken[has_media]:
                raise error


def generate_conversations(
    path_for: Callable[[Sequence[EncodedPrompt]], ForwardPath],
    requests: Sequence[RowRequest],
    params: GenerationParams,
    *,
    pool: EnvironmentPool,
    openings: Sequence[Turn],
    inherited: Sequence[Sequence[CompletionTurn]],
    encoder: PromptEncoder,
    max_turns: int,
) -> Iterator[dict[int, ConversationRow]]:
    """Generates rows turn by turn; tokens of the environment are forced, never trained.

    A row ends when its environment ends it or returns an empty turn, after ``max_turns``, or if its next turn does
    not fit. Environments work while other rows are sampled. In slots, the next turn of a row is sampled as soon as it
    is answered; in batches, the rows of a batch stay together, and wait for all of their answers. Either way, samples
    do not depend on the order of answers.

    Args:
        path_for: selects the forward path for rows of some prompts.
        requests: the rows, in their order.
        params: sampling parameters; its length limits the full row, including tokens of the environment.
        pool: the environments, after ``reset``.
        openings: the turn that each ``reset`` returned.
        inherited: the turns that each row takes over from another (``inherited_turns``).
        encoder: encoder of the environment's turns.
        max_turns: maximum number of turns that the policy writes.

    Yields:
        dict[int, ConversationRow]: finished rows.

    Raises:
        DataError, PolicyError: the model takes none of the environment's turns with media, or none of the others.
    """
    conversations = _Conversations(
        pool=pool,
        encoder=encoder,
        params=params,
        max_turns=max_turns,
        requests=list(requests),
        written={},
        starts=[
            turns[-1].start if turns else request.start.num_initial
            for request, turns in zip(requests, inherited, strict=True)
        ],
        keys=[turns[-1].key if turns else opening.state for opening, turns in zip(openings, inherited, strict=True)],
        turns=[tuple(turns[:-1]) for turns in inherited],
    )
    generators: dict[tuple[ForwardPath, bool], RowGenerator] = {}

    def submitted(rows: Sequence[RowRequest]) -> list[list[int]]:
        groups: list[list[int]] = []
        path = path_for([request.start.prompt for request in rows])
        for side in split_at_switch(rows):
            key = (path, side[0].start.prompt.is_beyond_switch)
            if key not in generators:
                generators[key] = row_generator(path, params, num_rows=len(requests), continues=True)
            groups += generators[key].submit(side)
        return groups

    together = submitted(requests)  # rows whose answers are awaited together
    while together:
        pending = [generator for generator in generators.values() if generator.is_pending]
        for generator in pending:
            for row, completion in generator.advance().items():
                conversations.submit(row, completion)
        if not pending:
            pool.wait_for(
                lambda rows, groups=together: any(conversations.are_answered(group, rows) for group in groups)
            )
        answered_rows = pool.answered()
        answered = [rows for rows in together if conversations.are_answered(rows, answered_rows)]
        together = [rows for rows in together if rows not in answered]
        ended, following = conversations.answer([row for rows in answered for row in rows])
        if ended:
            yield ended
        for rows in answered:
            if next_turns := [following[row] for row in rows if row in following]:
                together += submitted(next_turns)
    conversations.require_taken()


def _with_reply(
    row: ConversationRow, reply: Turn, encoder: PromptEncoder, params: GenerationParams
) -> ConversationRow | None:
    """The row with the reply appended, ready to continue; None if it does not fit.

    Raises DataError for a turn that template or processor do not take, PolicyError for one that the engine does not
    take.
    """
    prompt, completion = row.prompt, row.completion
    if params.source is not None:
        require_engine_media(reply)
    encoded = encoder.encode_reply(reply, prompt=prompt.prompt, end_ids=params.end_ids.tolist())
    if len(completion.token_T) + len(encoded.token_T) >= params.length:
        return None
    token_T = torch.cat([completion.token_T, encoded.token_T.to(torch.long)])
    if reply.num_media:
        prompt = encoder.with_media_turn(prompt, reply, token_T, encoded)
    forced = Completion.forced(encoded.token_T.to(torch.long), params.sampling)
    return ConversationRow(prompt, Completion.concat([completion, forced]))
