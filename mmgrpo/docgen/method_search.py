"""Search of the methods and of the runs of papers: by a word of ``use_for``, or by free text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import final, get_args

from mmgrpo.config.loading import find_config, shipped
from mmgrpo.config.methods import Use
from mmgrpo.docgen.methods import MethodRow, method_index
from mmgrpo.docgen.papers import GENERATORS, RUNS, run_section

NAME, NEED, SENTENCE, DETAIL = 8, 4, 2, 1
"""Weights of texts: the name; ``use_for``; ``against`` and the title; ``use_when`` and the options of TRL."""

STOP_WORDS = {"a", "an", "and", "are", "for", "get", "in", "is", "my", "of", "on", "or", "the", "to", "too", "with"}
"""Words of a query that are left out next to others."""

EQUAL_REWARDS = "groups equal rewards"

SYNONYMS: Mapping[str, str] = {
    "dead groups": EQUAL_REWARDS,
    "equal groups": EQUAL_REWARDS,
    "frac reward zero std": EQUAL_REWARDS,
    "identical rewards": EQUAL_REWARDS,
    "zero advantage": EQUAL_REWARDS,
    "zero std": EQUAL_REWARDS,
    "zero variance": EQUAL_REWARDS,
    "moe": "mixture experts",
    "self consistency": "majority",
}
"""Words of a query -> words of the texts, all of which have to match."""

NEEDS: Mapping[str, Use] = {
    "completion length": "length",
    "length bias": "length",
    "long answers": "length",
    "long completions": "length",
    "long responses": "length",
    "mask truncated completions": "length",
    "overlong": "length",
    "overthinking": "length",
    "too long": "length",
    "truncated": "length",
    "verbose": "length",
    "exploration": "diversity",
    "mode collapse": "diversity",
    "pass k": "diversity",
    "all wrong": "sparse-reward",
    "cold start": "sparse-reward",
    "no signal": "sparse-reward",
    "zero reward": "sparse-reward",
    "async": "off-policy",
    "asynchronous": "off-policy",
    "stale": "off-policy",
    "staleness": "off-policy",
    "vllm mismatch": "off-policy",
    "credit assignment": "token-credit",
    "dense reward": "token-credit",
    "prm": "token-credit",
    "process reward": "token-credit",
    "difficulty": "curriculum",
    "easy prompts": "curriculum",
    "expensive": "rollout-cost",
    "faster": "rollout-cost",
    "slow": "rollout-cost",
    "speed": "rollout-cost",
    "unlabeled": "no-labels",
    "unsupervised": "no-labels",
    "without labels": "no-labels",
    "distillation": "teacher",
    "sft": "teacher",
    "multi objective": "several-rewards",
    "multi reward": "several-rewards",
    "multiple rewards": "several-rewards",
    "preference": "preferences",
    "reward model": "preferences",
    "noisy reward": "reward-hacking",
    "overoptimization": "reward-hacking",
    "multi turn": "agents",
    "multiturn": "agents",
    "tool calling": "agents",
    "tool use": "agents",
    "text to image": "images",
    "t2i": "images",
    "vlm": "images",
    "text to video": "video",
    "t2v": "video",
}
"""Words of a query -> the need, ``USES``, that they name; entries whose texts have the words match too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A method, or a run of a paper, as a search lists it.

    Attributes:
        include: the name that a configuration includes.
        name: the same without ``methods/``.
        applies_to: kind of the policies.
        against: its difference from GRPO.
        use_for: words of ``USES``.
        texts: texts that a search reads, each with its weight.
    """

    include: str
    name: str
    applies_to: str
    against: str
    use_for: tuple[str, ...]
    texts: tuple[tuple[int, str], ...]


def method_entries() -> list[Entry]:
    """The methods, then the runs of papers.

    Returns:
        One entry a file.
    """
    return [*map(_of_method, method_index()), *map(_of_run, shipped(RUNS))]


@final
@dataclass(frozen=True, slots=True)
class _Term:
    """A word of a query, or several that are looked up together, with the need that they name."""

    stems: tuple[str, ...]
    use: Use | None = None


def use_of(words: str) -> Use | None:
    """The need that words name: one of ``USES`` or its parts (``reward hacking``, ``labels``), or a word for it.

    Args:
        words: in any case, with spaces or hyphens.

    Returns:
        The word of ``USES``; None if there is none, or several.
    """
    spaced = " ".join(words.lower().replace("-", " ").replace("_", " ").split())
    named = [use for use in get_args(Use) if use.replace("-", " ") == spaced]
    parts = [use for use in get_args(Use) if {*spaced.split()} <= {*use.split("-")}] if spaced else []
    uses = named or ([NEEDS[spaced]] if spaced in NEEDS else parts)
    return uses[0] if len(uses) == 1 else None


def search(entries: Iterable[Entry], query: str) -> list[Entry]:
    """The entries that match the most words of a query, the best first.

    A word of the query matches words that start with it, plurals aside: "collapse" matches "collapses"; "80/20" is two
    words, and "_" is "-". ``SYNONYMS`` and ``NEEDS`` have other words for the same. Of as many matching words those in
    the name count most, then needs in ``use_for``, then words in ``against`` and the title, and in ``use_when`` and the
    options of TRL: each of these comes before any number of the next.

    Args:
        entries: the methods and runs to search.
        query: words, such as "entropy collapse".

    Returns:
        The entries; none if no word matches.
    """
    terms = _terms(query)
    scored = [(entry, [_score(entry, term) for term in terms]) for entry in entries]
    most = max((sum(score > 0 for score in scores) for _, scores in scored), default=0)
    best = [(entry, scores) for entry, scores in scored if sum(score > 0 for score in scores) == most > 0]
    return [entry for entry, scores in sorted(best, key=lambda pair: _rank(*pair, terms), reverse=True)]


def _rank(entry: Entry, scores: list[int], terms: list[_Term]) -> tuple[int, ...]:
    """The numbers of terms with each weight, then the weights of their words."""
    counts = (scores.count(weight) for weight in (NAME, NEED, SENTENCE, DETAIL))
    return (*counts, sum(_word_score(entry, stem) for term in terms for stem in term.stems))


def _terms(query: str) -> list[_Term]:
    """The terms of a query: those of ``SYNONYMS`` and ``NEEDS``, then its other words."""
    text, terms = " ".join(_stems(query)), []
    for pattern, term in _phrases():
        text, number = pattern.subn(" ", text)
        terms += [term] if number else []
    words = [_Term((stem,)) for stem in text.split() if stem not in STOP_WORDS]
    return [*terms, *words] or [_Term((stem,)) for stem in text.split()]


@cache
def _phrases() -> list[tuple[re.Pattern[str], _Term]]:
    """The patterns of ``SYNONYMS`` and ``NEEDS`` in the stems of a query, the longest first."""
    terms = {phrase: _Term(_stems(words)) for phrase, words in SYNONYMS.items()}
    terms |= {phrase: _Term(_stems(phrase), use) for phrase, use in NEEDS.items()}
    return [
        (re.compile(rf"(?<![^ ]){'[ -]'.join(map(re.escape, _stems(phrase)))}(?![^ ])"), terms[phrase])
        for phrase in sorted(terms, key=len, reverse=True)
    ]


def _score(entry: Entry, term: _Term) -> int:
    words = min(_word_score(entry, stem) for stem in term.stems)
    return max(words, NEED) if term.use in entry.use_for else words


def _word_score(entry: Entry, stem: str) -> int:
    return max((weight for weight, text in entry.texts if _matches(text, stem)), default=0)


def _matches(text: str, stem: str) -> bool:
    parts = (part for word in _words(text) for part in (word, *word.split("-")))
    return any(part == stem if len(stem) == 1 else part.startswith(stem) for part in parts)


def _stems(text: str) -> tuple[str, ...]:
    return tuple(re.sub(r"(?<=..[^s])s$", "", word) for word in _words(text))


def _words(text: str) -> list[str]:
    return re.findall(r"[\w+-]+", text.lower().replace("_", "-"))


def _of_method(row: MethodRow) -> Entry:
    method = row.method
    against, title = method.against or method.title, f"{method.title} {method.paper_title or ''}"
    texts = (NAME, method.name), (NEED, " ".join(method.use_for)), (SENTENCE, f"{against} {title}")
    return Entry(
        include=row.include,
        name=row.include.removeprefix("methods/"),
        applies_to=method.applies_to,
        against=against,
        use_for=method.use_for,
        texts=(*texts, (DETAIL, f"{method.use_when or ''} {row.heading} {' '.join(method.trl)}")),
    )


def _of_run(include: str) -> Entry:
    section, modality = run_section(include), find_config(include).parent.name
    against, uses = section.get("against") or "", tuple(section.get("use_for", ()))
    title = f"{against} {section.get('title') or ''}"
    texts = (NAME, include.removeprefix(f"{RUNS}/")), (NEED, " ".join(uses)), (SENTENCE, title)
    return Entry(
        include=include,
        name=include,
        applies_to="denoising" if modality in GENERATORS else "tokens",
        against=against,
        use_for=uses,
        texts=(*texts, (DETAIL, section.get("note") or "")),
    )
