"""Prompt templates: functions that replace a member's prompt when it is sampled, or when a view re-scores it.

A prompt template is a function of the prompt, the member's number and the ``History`` of its group, bound to its
settings. The returned prompt keeps the columns, so that rewards read the same row. A prompt template that changes
nothing returns the same prompt object; a prompt template that does not apply to a member returns None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from mmgrpo.data.corruption import IMAGE_TEMPLATES
from mmgrpo.data.history import NOTHING, History, PromptTemplate, prompt_template
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.registry import Registry
from mmgrpo.types import Prompt, Sample

PROMPT_TEMPLATES: Registry[Callable[..., PromptTemplate]] = Registry(
    IMAGE_TEMPLATES, arguments=(), decorator="mmgrpo.data.history.prompt_template"
)
"""Prompt templates by the name that ``rollout.prompt_templates`` and ``objective.views`` use; called with their
settings.
"""

PLACEHOLDER = re.compile(r"{([^{}]+)}")
"""A name in braces within a text."""

PEER = "{prompt}\n\nAnother answer, which is right:\n\n{answer}\n\nNow answer the question."


def require_places(what: str, text: str, *names: str) -> None:
    """Raises ConfigError for a text without the placeholders of these names."""
    if any("{" + name + "}" not in text for name in names):
        placeholders = " and ".join("{" + name + "}" for name in names)
        raise ConfigError(f"the text of a {what} must contain {placeholders}, got {text!r:.80}")


def compile_pattern(name: str, pattern: str) -> re.Pattern[str]:
    """The regular expression of a setting. Raises ConfigError for one that does not compile."""
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ConfigError(f"{name} must be a regular expression, got {pattern!r:.80}: {error}") from error


def require_share(share: float) -> None:
    """Raises ConfigError for a share outside [0, 1]."""
    if not 0 <= share <= 1:
        raise ConfigError(f"a prefix is a share of the solution from 0 to 1, got {share}")


def _check_template(text: str) -> None:
    if not PLACEHOLDER.search(text):
        raise ConfigError(f"the text of a template holds {{prompt}}, or the {{COLUMN}} of its row, got {text!r:.80}")


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_template)
def template(prompt: Prompt, member: int, history: History = NOTHING, *, text: str) -> Prompt:
    """A text with ``{prompt}`` replaced by the prompt and ``{COLUMN}`` by a column of its row.

    Raises: ConfigError for a text without placeholders, which would be the same for all prompts; DataError for a row
        without the column.
    """
    del member, history
    return with_text(prompt, fill_template(prompt, text, {}))


def _check_solution_prefix(share: float | None, between: str) -> None:
    if not between:
        raise ConfigError(
            "solution_prefix needs between, the separator of the solution's words or steps; got an empty text"
        )
    if share is not None:
        require_share(share)


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_solution_prefix)
def solution_prefix(
    prompt: Prompt,
    member: int,
    history: History = NOTHING,
    *,
    column: str = "solution",
    share: float | None = None,
    between: str = " ",
) -> Prompt:
    """The prompt, with the beginning of its row's solution as the beginning of the answer; that part is not trained.

    Takes the first ``share`` of the solution's words, or of its steps if ``between`` is their separator; without a
    share, that of the rollout strategy.

    Units: share is dimensionless, 0 to 1.   Raises: ConfigError for another share, or an empty separator; DataError for
        a row without a solution.
    """
    del member
    share = history.share if share is None else share
    if share is None:
        raise ConfigError("solution_prefix needs a share, unless the strategy sets one")
    words = text_column("solution_prefix", prompt, column).split(between)
    prefix = between.join(words[: round(share * len(words))])
    return replace(prompt, prefix=prefix + between) if prefix else prompt


def _check_opening(text: str) -> None:
    if not text:
        raise ConfigError("an opening is a text that the answer begins with, got none")


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_opening)
def opening(prompt: Prompt, member: int, history: History = NOTHING, *, text: str) -> Prompt:
    """The prompt, with a text as the beginning of the answer, such as an empty thought; that part is not trained.

    Raises: ConfigError for an empty text.
    """
    del member, history
    return replace(prompt, prefix=text)


def _check_peer_answer(text: str, without: str | None) -> None:
    require_places("peer's answer", text, "prompt", "answer")
    if without is not None:
        compile_pattern("without", without)


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_peer_answer)
def peer_answer(
    prompt: Prompt,
    member: int,
    history: History = NOTHING,
    *,
    text: str = PEER,
    at_least: float = 1.0,
    without: str | None = None,
    wrong_alone: bool = False,
) -> Prompt | None:
    """The prompt with a correct answer of another member of the group: the first whose reward reaches ``at_least``.

    ``text`` has the placeholders ``{prompt}`` and ``{answer}``. The prompt template does not apply to a member without
    such a peer and, with ``wrong_alone``, to a member that is correct itself. Matches of the regular expression
    ``without`` are removed from the answer.

    Units: at_least in those of the reward.   Raises: ConfigError for a text without either placeholder, or an invalid
        regular expression; DataError for an answer that is no text.
    Source: SDPO, arXiv:2601.20802, and its code (lasgroup/SDPO, ``ray_trainer.py``). Deviation: the text's wording.
    """
    pairs = zip(history.samples, history.rewards, strict=True)
    right = [sample for sample, reward in pairs if reward is not None and reward >= at_least]
    peer = next((sample for sample in right if sample.member != member), None)
    if peer is None or (wrong_alone and any(sample.member == member for sample in right)):
        return None
    peer_text = require_text_of(peer)
    answer = peer_text if without is None else compile_pattern("without", without).sub("", peer_text)
    return with_text(prompt, fill_template(prompt, text, {"answer": answer}))


def _check_after_answers(text: str, pattern: str | None) -> None:
    if "{answer" not in text:
        raise ConfigError(f"the text of after_answers holds {{answer}}, {{answer_2}} or {{answers}}, got {text!r:.80}")
    if pattern is not None:
        compile_pattern("pattern", pattern)


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_after_answers)
def after_answers(
    prompt: Prompt,
    member: int,
    history: History = NOTHING,
    *,
    text: str,
    pattern: str | None = None,
    each: str = "{number}. {answer}",
) -> Prompt | None:
    """A text with the answers of an earlier round of the step, which the strategy ``stages`` selects per member.

    ``{answer}`` is replaced by the first answer, ``{answer_2}`` by the second, and ``{answers}`` by all of them, each
    formatted as ``each``; ``{prompt}`` and ``{COLUMN}`` as in ``template``. With a regular expression ``pattern``, its
    last match in each answer is used, the first group if it has one; the prompt template does not apply to a member
    with an answer without a match.

    Raises: ConfigError for a text without an answer, or an invalid regular expression; DataError for an answer that is
        no text.
    """
    del member
    compiled = None if pattern is None else compile_pattern("pattern", pattern)
    answers = [_last_match(require_text_of(sample), compiled) for sample in history.samples]
    if not answers or any(answer is None for answer in answers):
        return None
    values = {f"answer_{number}": str(answer) for number, answer in enumerate(answers, 1)}
    numbered = [
        each.replace("{number}", str(n)).replace("{answer}", str(answer)) for n, answer in enumerate(answers, 1)
    ]
    values |= {"answer": values["answer_1"], "answers": "\n\n".join(numbered)}
    return with_text(prompt, fill_template(prompt, text, values))


def _check_role(turn: str, without: str | None, end: str | None) -> None:
    require_places("turn", turn, "text")
    for name, pattern in (("without", without), ("end", end)):
        if pattern is not None:
            compile_pattern(name, pattern)


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_role)
def role(
    prompt: Prompt,
    member: int,
    history: History = NOTHING,
    *,
    text: str,
    turn: str = "{role}: {text}",
    same: Sequence[str] = (),
    reads: Sequence[str] | None = None,
    without: str | None = None,
    end: str | None = None,
) -> Prompt | None:
    """The prompt of a role that takes turns with others: its instruction, then the conversation so far.

    ``text`` is the instruction, with placeholders as in ``template``; it takes the place of the prompt's text. Turns of
    the role itself follow as messages of the assistant; those of others as messages of the user, each formatted as
    ``turn``, consecutive ones in one message. The role is the name of the prompt template, or of the task; ``same``
    names others that are the same role; ``reads`` names the other roles whose turns it reads, null: all. Matches of the
    regular expression ``without`` are removed from the turns of others. The prompt template does not apply after a turn
    with a match of ``end``.

    Raises: ConfigError for a turn without ``{text}``, an invalid regular expression, a role after itself, or a view,
        which has no conversation; DataError for a turn that is no text, or a row without a column.
    Source: the roles of AT-GRPO, arXiv:2510.11062, and CoMAS, arXiv:2510.08529, each of which reads a separate prompt.
        Deviation: the texts' wording; they have one message, without turns of the role itself.
    """
    del member
    if not history.role:
        raise ConfigError("role: there is no conversation in a view or an auxiliary loss: use another prompt template")
    texts = [require_text_of(each.sample) for each in history.turns]
    if end is not None and texts and compile_pattern("end", end).search(texts[-1]):
        return None
    own = (history.role, *same)
    prompt = with_text(prompt, fill_template(prompt, text, {}))
    removed = None if without is None else compile_pattern("without", without)
    for each, answer in zip(history.turns, texts, strict=True):
        if each.role in own:
            prompt = with_message(prompt, "assistant", answer)
        elif reads is None or each.role in reads:
            other = answer if removed is None else removed.sub("", answer)
            prompt = with_message(prompt, "user", turn.replace("{role}", each.role).replace("{text}", other))
    if history.turns and prompt.messages and prompt.messages[-1]["role"] == "assistant":
        raise ConfigError(f"the role {history.role!r} reads no turn after its last one: let one that it reads answer")
    return prompt


Scored = tuple[Sample, "float | None"]
"""An answer and its reward; None if no reward applied."""


def _highest_reward(scored: Sequence[Scored], member: int) -> Scored:
    del member
    return max(scored, key=lambda pair: float("-inf") if pair[1] is None else pair[1])


def _of_member(scored: Sequence[Scored], member: int) -> Scored:
    return scored[member % len(scored)]


DRAFTS: Mapping[str, Callable[[Sequence[Scored], int], Scored]] = MappingProxyType(
    {"best": _highest_reward, "own": _of_member}
)
"""Functions by name that select the answer of the group that ``draft`` inserts for a member."""


def _check_draft(of: str, text: str) -> None:
    if of not in DRAFTS:
        raise ConfigError(f"a draft is one of {', '.join(DRAFTS)}, got {of!r}")
    require_places("draft", text, "prompt", "draft")


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_draft)
def draft(
    prompt: Prompt,
    member: int,
    history: History = NOTHING,
    *,
    of: str,
    text: str,
    right: str = "",
    wrong: str = "",
    at_least: float = 1.0,
) -> Prompt:
    """The prompt with an earlier answer of its group: the ``best`` one, or the member's ``own``.

    ``text`` has the placeholders ``{prompt}`` and ``{draft}``; ``{verdict}`` is replaced by the text ``right`` if the
    answer's reward reaches ``at_least``, else by ``wrong``, both with placeholders for columns of the row. ``best`` has
    the highest reward, the first of equal ones; of n answers, ``own`` of member m is answer m modulo n. Without an
    answer the prompt is unchanged.

    Units: at_least in those of the reward.   Raises: ConfigError for another choice, or a text without a placeholder;
        DataError for an answer that is no text.
    Source: ``best``: iGRPO, arXiv:2602.09000; ``own`` with a verdict: Critique-GRPO, arXiv:2506.03106, and its
        code (zhangxy-2019/critique-GRPO, ``critique_prompts.py``, ``simple_gt``).
    """
    scored = list(zip(history.samples, history.rewards, strict=True))
    if not scored:
        return prompt
    answer, reward = DRAFTS[of](scored, member)
    verdict_text = right if reward is not None and reward >= at_least else wrong
    values = {"draft": require_text_of(answer), "verdict": fill_template(prompt, verdict_text, {})}
    return with_text(prompt, fill_template(prompt, text, values))


def require_text_of(sample: Sample) -> str:
    """The text of a sample. Raises DataError for a policy that generates no text."""
    if sample.text is None:
        raise DataError(
            "this prompt template inserts answers, but this policy generates no text: use another prompt template"
        )
    return sample.text


def text_column(name: str, prompt: Prompt, column: str) -> str:
    """The text in a column of the prompt's row. Raises DataError, with the prompt template's name, for a row without
    it.
    """
    value = prompt.columns.get(column)
    if not isinstance(value, str):
        raise DataError(f"{name} needs a text in the column {column!r}; the row has {sorted(prompt.columns)}")
    return value


def _last_match(text: str, pattern: re.Pattern | None) -> str | None:
    if pattern is None:
        return text
    matches = list(pattern.finditer(text))
    return (matches[-1][1] if pattern.groups else matches[-1][0]) if matches else None


def fill_template(prompt: Prompt, text: str, further: Mapping[str, str]) -> str:
    """The text with its placeholders replaced; placeholders within the inserted texts are not replaced.

    Raises: DataError for a placeholder that names no column of the row, or one without a value.
    """
    values = {**prompt.columns, "prompt": prompt.text, **further}

    def replacement(match: re.Match) -> str:
        if match[1] not in values and not match[1].isidentifier():
            return match[0]
        if values.get(match[1]) is None:
            names = sorted(name for name, value in prompt.columns.items() if value is not None)
            raise DataError(
                f"the row has no value in the column {match[1]!r}, which the text {text!r:.60} names; it has {names}"
            )
        return str(values[match[1]])

    return PLACEHOLDER.sub(replacement, text)


def with_message(prompt: Prompt, author: str, text: str) -> Prompt:
    """The prompt with a message appended; a text of the user joins the last message if that is the user's.

    The text of the prompt stays that of its last turn of the user.
    """
    if author == "user" and (prompt.messages is None or prompt.messages[-1]["role"] == author):
        return with_text(prompt, f"{prompt.text}\n\n{text}")
    content = prompt.parts if len(prompt.parts) > 1 else prompt.text
    messages = prompt.messages or [{"role": "user", "content": content}]
    text_of_prompt = text if author == "user" else prompt.text
    return replace(prompt, text=text_of_prompt, messages=[*messages, {"role": author, "content": text}])


def with_text(prompt: Prompt, text: str) -> Prompt:
    """The prompt with another text; in a conversation it replaces the text of the last turn."""
    if prompt.messages is None:
        return replace(prompt, text=text)
    *before, last = prompt.messages
    content: Any = last["content"]
    if not isinstance(content, str):
        parts = [part for part in content if part.get("type") != "text"]
        content = [*parts, {"type": "text", "text": text}]
    else:
        content = text
    return replace(prompt, text=text, messages=[*before, {**last, "content": content}])
