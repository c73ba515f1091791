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

PLACE = re.compile(r"{([^{}]+)}")
"""What a text names in braces."""

PEER = "{prompt}\n\nAnother answer, which is right:\n\n{answer}\n\nNow answer the question."


def template(*, text: str) -> Context:
    """The prompt within a text, or what its row has in its place: ``{prompt}`` and ``{COLUMN}`` stand for the two.

    Raises: ConfigError for a text that would be the same for all prompts; DataError where a row has no such column.
    """
    if not PLACE.search(text):
        raise ConfigError(f"the text of a template holds {{prompt}}, or the {{COLUMN}} of its row, got {text!r:.80}")
    return partial(_within, text=text)


def column_hint(*, column: str, text: str = "{prompt}\n\nHint: {hint}") -> Context:
    """The prompt with a hint that its row brings along.

    ``{prompt}`` and ``{hint}`` stand for the two.

    Raises: ConfigError for a text that lacks either; DataError where a row has no such column.
    """
    _require_places("hint", text, "prompt", "hint")
    return partial(_within, text=text.replace("{hint}", "{" + column + "}"))


def solution_prefix(*, column: str = "solution", share: float | None = None, between: str = " ") -> Context:
    """The prompt, and the beginning of its row's solution as the beginning of the answer: never trained.

    The first ``share`` of the solution's words, or of its steps where ``between`` says what stands between two; without
    a share as much as the planner says.

    Units: share is dimensionless, 0 to 1.   Raises: ConfigError for another share, or nothing between; DataError for a
        row without it.
    """
    if not between:
        raise ConfigError("a prefix is a share of the solution by what stands between its words or steps, got nothing")
    return partial(_begun, column=column, share=None if share is None else _share(share), between=between)


def opening(*, text: str) -> Context:
    """The prompt, and a text as the beginning of the answer, such as an empty thought: never trained.

    Raises: ConfigError for an empty text.
    """
    if not text:
        raise ConfigError("an opening is a text that the answer begins with, got none")
    return lambda prompt, member, history=NOTHING: replace(prompt, prefix=text)


def bare() -> Context:
    """The prompt of the data row itself, whatever its sample was drawn behind; of use in a view alone."""
    return lambda prompt, member, history=NOTHING: prompt


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
    _require_places("peer's answer", text, "prompt", "answer")
    omitted = None if without is None else _expression("without", without)
    return partial(_after_peer, text=text, at_least=at_least, omitted=omitted, wrong_alone=wrong_alone)


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
        _after_answers, text=text, pattern=None if pattern is None else _expression("pattern", pattern), each=each
    )


def carried_over(*, tail: int, head: int = 0) -> Context:
    """The prompt, and of an answer that was cut off its beginning and its end as the beginning of the answer.

    The first ``head`` and the last ``tail`` of its tokens, what it was given itself among them; all of a shorter one.
    They are never trained, and stand there as their text, which the tokenizer may cut otherwise.

    Units: tokens.   Raises: ConfigError for numbers that carry nothing over.
    Source: Delethink, arXiv:2510.06557, and its code (McGill-NLP/the-markovian-thinker, ``delethink_trimmers.py``).
    """
    if tail < 1 or head < 0:
        raise ConfigError(f"carried_over needs tail >= 1 and head >= 0, got {tail} and {head}")
    return partial(_carried_over, tail=tail, head=head)


def column_part(*, column: str, share: float, text: str = "{prompt}\n\nThe solution begins: {part}") -> Context:
    """The prompt with the beginning of a text that its row brings along: the first ``share`` of its characters.

    ``{prompt}`` and ``{part}`` stand for the two.

    Units: share is dimensionless, 0 to 1.   Raises: ConfigError for another share or a text that lacks a place;
        DataError for a row without the column.
    Source: GHPO, arXiv:2507.10628, and its code (hkgc-1/GHPO, ``ghpo_trainer.py``).
    """
    _require_places("part of a column", text, "prompt", "part")
    return partial(_with_part, column=column, share=_share(share), text=text)


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
    _require_places("draft", text, "prompt", "draft")
    return partial(_after_draft, choose=DRAFTS[of], text=text, verdicts=(right, wrong), at_least=at_least)


def found_in_answer(*, pattern: str, text: str) -> Context:
    """The prompt with what a regular expression finds in an answer of the group: the last that has it.

    ``{prompt}`` stands for the prompt, ``{found}`` for the expression's first group. Where nobody has it, the prompt.

    Raises: ConfigError for no expression with a group, or a text that lacks a place.
    Source: hints that the policy wrote before: SAGE, arXiv:2602.03143, and its code (BaohaoLiao/SAGE).
    """
    _require_places("found text", text, "prompt", "found")
    compiled = _expression("pattern", pattern)
    if compiled.groups < 1:
        raise ConfigError(f"the pattern says in brackets what is to be shown, got {pattern!r:.80}")
    return partial(_with_found, pattern=compiled, text=text)


CONTEXTS: Registry[Callable[..., Context]] = Registry(
    {
        "template": template,
        "column_hint": column_hint,
        "column_part": column_part,
        "draft": draft,
        "found_in_answer": found_in_answer,
        "solution_prefix": solution_prefix,
        "opening": opening,
        "bare": bare,
        "peer_answer": peer_answer,
        "after_answers": after_answers,
        "carried_over": carried_over,
    },
    IMAGE_CONTEXTS,
    SYSTEM_CONTEXTS,
)
"""Contexts by the name that ``rollout.contexts`` and ``views`` use; called with their settings."""


def _require_places(what: str, text: str, *places: str) -> None:
    if any("{" + place + "}" not in text for place in places):
        named = " and ".join("{" + place + "}" for place in places)
        raise ConfigError(f"the text of a {what} holds {named}, got {text!r:.80}")


def _expression(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ConfigError(f"{name} must be a regular expression, got {pattern!r:.80}: {error}") from error


def _share(share: float) -> float:
    if not 0 <= share <= 1:
        raise ConfigError(f"a prefix is a share of the solution from 0 to 1, got {share}")
    return share


def _within(prompt: Prompt, member: int, history: History = NOTHING, *, text: str) -> Prompt:
    del member, history
    return _told(prompt, _filled(prompt, text, {}))


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
    written = _text_of(peer)
    answer = written if omitted is None else omitted.sub("", written)
    return _told(prompt, _filled(prompt, text, {"answer": answer}))


Scored = tuple[Sample, "float | None"]
"""An answer and its reward, None where none applied."""


def _text_of(sample: Sample) -> str:
    if sample.text is None:
        raise DataError("this context shows answers, and what this policy makes is no text: use another context")
    return sample.text


def _best(scored: Sequence[Scored], member: int) -> Scored:
    del member
    return max(scored, key=lambda one: float("-inf") if one[1] is None else one[1])


def _own(scored: Sequence[Scored], member: int) -> Scored:
    return scored[member % len(scored)]


DRAFTS: Mapping[str, Callable[[Sequence[Scored], int], Scored]] = MappingProxyType({"best": _best, "own": _own})
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
    chosen, reward = choose(scored, member)
    verdict = verdicts[0] if reward is not None and reward >= at_least else verdicts[1]
    return _told(prompt, _filled(prompt, text, {"draft": _text_of(chosen), "verdict": _filled(prompt, verdict, {})}))


def _with_found(
    prompt: Prompt, member: int, history: History = NOTHING, *, pattern: re.Pattern[str], text: str
) -> Prompt:
    del member
    found = [match[1] for sample in history.samples if (match := pattern.search(_text_of(sample)))]
    return _told(prompt, _filled(prompt, text, {"found": found[-1]})) if found else prompt


def _with_part(
    prompt: Prompt, member: int, history: History = NOTHING, *, column: str, share: float, text: str
) -> Prompt:
    del member, history
    whole = _solution("column_part", prompt, column)
    return _told(prompt, _filled(prompt, text, {"part": whole[: round(share * len(whole))]}))


def _solution(name: str, prompt: Prompt, column: str) -> str:
    """A text that the prompt's row brings along."""
    whole = prompt.columns.get(column)
    if not isinstance(whole, str):
        raise DataError(f"{name} needs a text in the column {column!r}; the row has {sorted(prompt.columns)}")
    return whole


def _after_answers(
    prompt: Prompt, member: int, history: History = NOTHING, *, text: str, pattern: re.Pattern | None, each: str
) -> Prompt | None:
    del member
    found = [_matched(_text_of(sample), pattern) for sample in history.samples]
    if not found or any(one is None for one in found):
        return None
    answers = {f"answer_{number}": str(answer) for number, answer in enumerate(found, 1)}
    shown = [each.replace("{number}", str(n)).replace("{answer}", str(answer)) for n, answer in enumerate(found, 1)]
    return _told(
        prompt, _filled(prompt, text, {**answers, "answer": answers["answer_1"], "answers": "\n\n".join(shown)})
    )


def _matched(text: str, pattern: re.Pattern | None) -> str | None:
    if pattern is None:
        return text
    matches = list(pattern.finditer(text))
    return (matches[-1][1] if pattern.groups else matches[-1][0]) if matches else None


def _carried_over(prompt: Prompt, member: int, history: History = NOTHING, *, tail: int, head: int) -> Prompt | None:
    del member
    if not history.samples:
        return None
    if not history.ends:
        raise ConfigError("carried_over counts tokens of a text, which this policy does not tell: use another context")
    text, ends = _text_of(history.samples[0]), history.ends[0]
    if len(ends) <= head + tail:
        return replace(prompt, prefix=text)
    return replace(prompt, prefix=text[: ends[head - 1] if head else 0] + text[ends[len(ends) - tail - 1] :])


def _filled(prompt: Prompt, text: str, further: Mapping[str, str]) -> str:
    """The text with what its places stand for; what comes in is not looked at for places again."""
    known = {**prompt.columns, "prompt": prompt.text, **further}

    def found(place: re.Match) -> str:
        if place[1] not in known and not place[1].isidentifier():
            return place[0]
        if place[1] not in known:
            raise DataError(f"a context asks for the column {place[1]!r}; the row has {sorted(prompt.columns)}")
        return str(known[place[1]])

    return PLACE.sub(found, text)


def _told(prompt: Prompt, text: str) -> Prompt:
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
    words = _solution("solution_prefix", prompt, column).split(between)
    begun = between.join(words[: round(share * len(words))])
    return replace(prompt, prefix=begun + between) if begun else prompt
