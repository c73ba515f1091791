"""Contexts: what a member is shown in place of the prompt, when it is drawn or when it is looked at in a view.

A context is a function of the prompt, the member's number and what is known of its group, bound to its settings; the
prompt that it gives keeps the columns, so that rewards see the row that they know. One that changes nothing gives the
prompt itself, and one that has nothing for a member to see gives None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from mmgrpo.data.corruption import IMAGE_CONTEXTS
from mmgrpo.data.history import NOTHING, Context, History
from mmgrpo.data.system_texts import SYSTEM_CONTEXTS
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.registry import Registry
from mmgrpo.types import Prompt, Sample

CONTEXTS: Registry[Callable[..., Context]] = Registry(IMAGE_CONTEXTS, SYSTEM_CONTEXTS)
"""Contexts by the name that ``rollout.prompt_templates`` and ``views`` use; called with their settings."""

PLACEHOLDER = re.compile(r"{([^{}]+)}")
"""What a text names in braces."""

PEER = "{prompt}\n\nAnother answer, which is right:\n\n{answer}\n\nNow answer the question."


@CONTEXTS.register
def template(*, text: str) -> Context:
    """The prompt within a text, or what its row has in its place: ``{prompt}`` and ``{COLUMN}`` stand for the two.

    Raises: ConfigError for a text that would be the same for all prompts; DataError where a row has no such column.
    """
    if not PLACEHOLDER.search(text):
        raise ConfigError(f"the text of a template holds {{prompt}}, or the {{COLUMN}} of its row, got {text!r:.80}")
    return partial(in_template, text=text)


@CONTEXTS.register
def solution_prefix(*, column: str = "solution", share: float | None = None, between: str = " ") -> Context:
    """The prompt, and the beginning of its row's solution as the beginning of the answer: never trained.

    The first ``share`` of the solution's words, or of its steps where ``between`` says what stands between two; without
    a share as much as the planner says.

    Units: share is dimensionless, 0 to 1.   Raises: ConfigError for another share, or nothing between; DataError for a
        row without it.
    """
    if not between:
        raise ConfigError("a prefix is a share of the solution by what stands between its words or steps, got nothing")
    return partial(_begun, column=column, share=None if share is None else require_share(share), between=between)


@CONTEXTS.register
def opening(*, text: str) -> Context:
    """The prompt, and a text as the beginning of the answer, such as an empty thought: never trained.

    Raises: ConfigError for an empty text.
    """
    if not text:
        raise ConfigError("an opening is a text that the answer begins with, got none")
    return lambda prompt, member, history=NOTHING: replace(prompt, prefix=text)


@CONTEXTS.register
def peer_answer(
    *, text: str = PEER, at_least: float = 1.0, without: str | None = None, wrong_alone: bool = False
) -> Context:
    """The prompt with the answer of another member of the group that is right: the first whose reward reaches a bound.

    ``{prompt}`` and ``{answer}`` stand for the two; a member without such a peer has nothing to be shown. What matches
    the regular expression ``without`` is left out of the answer. ``wrong_alone`` shows it to no member that is right
    itself.

    Units: at_least in those of the reward.   Raises: ConfigError for a text that lacks either place, or for what is no
        regular expression; DataError for an answer that is no text.
    Source: SDPO, arXiv:2601.20802, and its code (lasgroup/SDPO, ``ray_trainer.py``). Deviation: the words of the text.
    """
    require_places("peer's answer", text, "prompt", "answer")
    omitted = None if without is None else compile_pattern("without", without)
    return partial(_after_peer, text=text, at_least=at_least, omitted=omitted, wrong_alone=wrong_alone)


@CONTEXTS.register
def after_answers(*, text: str, pattern: str | None = None, each: str = "{number}. {answer}") -> Context:
    """A text with what was written in an earlier round of the step: the planner ``stages`` says what is shown to whom.

    ``{answer}`` stands for the first of the texts, ``{answer_2}`` for the second, and ``{answers}`` for all of them,
    each as in ``each``; ``{prompt}`` and the columns of the row stand for theirs. Of each text the last match of the
    regular expression ``pattern`` is shown, its first group where it has one; without a match there is nothing to show.

    Raises: ConfigError for a text that shows no answer, or for what is no regular expression; DataError for an answer
        that is no text.
    """
    if "{answer" not in text:
        raise ConfigError(f"the text of after_answers holds {{answer}}, {{answer_2}} or {{answers}}, got {text!r:.80}")
    return partial(
        _after_answers, text=text, pattern=None if pattern is None else compile_pattern("pattern", pattern), each=each
    )


@CONTEXTS.register
def draft(*, of: str, text: str, right: str = "", wrong: str = "", at_least: float = 1.0) -> Context:
    """The prompt with an answer that its group has by now: the ``best`` one, or the member's ``own``.

    ``{prompt}`` and ``{draft}`` stand for the two, ``{verdict}`` for the text ``right`` where the answer's reward
    reaches ``at_least``, else for ``wrong``; either may name columns of the row. The best has the highest reward, of
    equal ones the first; of n answers, member m's own is that of member m modulo n. Where there is none, the prompt.

    Units: at_least in those of the reward.   Raises: ConfigError for another choice, or a text that lacks a place;
        DataError for an answer that is no text.
    Source: the best: iGRPO, arXiv:2602.09000; each its own, with a verdict: Critique-GRPO, arXiv:2506.03106, and its
        code (zhangxy-2019/critique-GRPO, ``critique_prompts.py``, ``simple_gt``).
    """
    if of not in DRAFTS:
        raise ConfigError(f"a draft is one of {', '.join(DRAFTS)}, got {of!r}")
    require_places("draft", text, "prompt", "draft")
    return partial(_after_draft, choose=DRAFTS[of], text=text, verdicts=(right, wrong), at_least=at_least)


def require_places(what: str, text: str, *names: str) -> None:
    if any("{" + name + "}" not in text for name in names):
        placeholders = " and ".join("{" + name + "}" for name in names)
        raise ConfigError(f"the text of a {what} holds {placeholders}, got {text!r:.80}")


def compile_pattern(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ConfigError(f"{name} must be a regular expression, got {pattern!r:.80}: {error}") from error


def require_share(share: float) -> float:
    if not 0 <= share <= 1:
        raise ConfigError(f"a prefix is a share of the solution from 0 to 1, got {share}")
    return share


def in_template(prompt: Prompt, member: int, history: History = NOTHING, *, text: str) -> Prompt:
    del member, history
    return with_text(prompt, fill_template(prompt, text, {}))


def _after_peer(
    prompt: Prompt,
    member: int,
    history: History = NOTHING,
    *,
    text: str,
    at_least: float,
    omitted: re.Pattern | None,
    wrong_alone: bool,
) -> Prompt | None:
    pairs = zip(history.samples, history.rewards, strict=True)
    right = [sample for sample, reward in pairs if reward is not None and reward >= at_least]
    peer = next((sample for sample in right if sample.member != member), None)
    if peer is None or (wrong_alone and any(sample.member == member for sample in right)):
        return None
    text_of_peer = require_text_of(peer)
    answer = text_of_peer if omitted is None else omitted.sub("", text_of_peer)
    return with_text(prompt, fill_template(prompt, text, {"answer": answer}))


Scored = tuple[Sample, "float | None"]
"""An answer and its reward, None where none applied."""


def require_text_of(sample: Sample) -> str:
    if sample.text is None:
        raise DataError("this context shows answers, and what this policy makes is no text: use another context")
    return sample.text


def _best(scored: Sequence[Scored], member: int) -> Scored:
    del member
    return max(scored, key=lambda pair: float("-inf") if pair[1] is None else pair[1])


def _of_member(scored: Sequence[Scored], member: int) -> Scored:
    return scored[member % len(scored)]


DRAFTS: Mapping[str, Callable[[Sequence[Scored], int], Scored]] = MappingProxyType({"best": _best, "own": _of_member})
"""Which answer of its group ``draft`` shows to a member, by name."""


def _after_draft(
    prompt: Prompt,
    member: int,
    history: History = NOTHING,
    *,
    choose: Callable[[Sequence[Scored], int], Scored],
    text: str,
    verdicts: tuple[str, str],
    at_least: float,
) -> Prompt:
    scored = list(zip(history.samples, history.rewards, strict=True))
    if not scored:
        return prompt
    answer, reward = choose(scored, member)
    verdict_text = verdicts[0] if reward is not None and reward >= at_least else verdicts[1]
    values = {"draft": require_text_of(answer), "verdict": fill_template(prompt, verdict_text, {})}
    return with_text(prompt, fill_template(prompt, text, values))


def text_column(name: str, prompt: Prompt, column: str) -> str:
    """A text that the prompt's row brings along."""
    value = prompt.columns.get(column)
    if not isinstance(value, str):
        raise DataError(f"{name} needs a text in the column {column!r}; the row has {sorted(prompt.columns)}")
    return value


def _after_answers(
    prompt: Prompt, member: int, history: History = NOTHING, *, text: str, pattern: re.Pattern | None, each: str
) -> Prompt | None:
    del member
    answers = [_matched(require_text_of(sample), pattern) for sample in history.samples]
    if not answers or any(answer is None for answer in answers):
        return None
    values = {f"answer_{number}": str(answer) for number, answer in enumerate(answers, 1)}
    numbered = [
        each.replace("{number}", str(n)).replace("{answer}", str(answer)) for n, answer in enumerate(answers, 1)
    ]
    values |= {"answer": values["answer_1"], "answers": "\n\n".join(numbered)}
    return with_text(prompt, fill_template(prompt, text, values))


def _matched(text: str, pattern: re.Pattern | None) -> str | None:
    if pattern is None:
        return text
    matches = list(pattern.finditer(text))
    return (matches[-1][1] if pattern.groups else matches[-1][0]) if matches else None


def fill_template(prompt: Prompt, text: str, further: Mapping[str, str]) -> str:
    """The text with what its places stand for; what comes in is not looked at for places again."""
    values = {**prompt.columns, "prompt": prompt.text, **further}

    def replacement(match: re.Match) -> str:
        if match[1] not in values and not match[1].isidentifier():
            return match[0]
        if match[1] not in values:
            raise DataError(f"a context asks for the column {match[1]!r}; the row has {sorted(prompt.columns)}")
        return str(values[match[1]])

    return PLACEHOLDER.sub(replacement, text)


def with_text(prompt: Prompt, text: str) -> Prompt:
    """The prompt with another text; of a conversation its last turn says it."""
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


def _begun(
    prompt: Prompt, member: int, history: History = NOTHING, *, column: str, share: float | None, between: str
) -> Prompt:
    del member
    share = history.share if share is None else share
    if share is None:
        raise ConfigError("solution_prefix needs a share, unless the planner says how much is shown")
    words = text_column("solution_prefix", prompt, column).split(between)
    begun = between.join(words[: round(share * len(words))])
    return replace(prompt, prefix=begun + between) if begun else prompt
