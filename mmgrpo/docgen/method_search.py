"""Search of the methods and of the runs of papers: by a word of ``use_for``, or by free text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mmgrpo.config.loading import find_config, shipped
from mmgrpo.docgen.methods import MethodRow, method_index
from mmgrpo.docgen.papers import GENERATORS, RUNS, run_section


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


def search(entries: Iterable[Entry], query: str) -> list[Entry]:
    """The entries whose texts have the most words of a query, the best first.

    A word of the query matches words that start with it, plurals aside: "collapse" matches "collapses"; "80/20" is two
    words, and "_" is "-". Of as many matching words those in the name count most, then in ``use_for``, in ``against``
    and the title, and in ``use_when`` and the options of TRL.

    Args:
        entries: the methods and runs to search.
        query: words, such as "entropy collapse".

    Returns:
        The entries; none if no word matches.
    """
    stems = [word.rstrip("s") if len(word) > 3 else word for word in _words(query)]
    scored = [(entry, [_score(entry, stem) for stem in stems]) for entry in entries]
    most = max((sum(score > 0 for score in scores) for _, scores in scored), default=0)
    best = [(sum(scores), entry) for entry, scores in scored if sum(score > 0 for score in scores) == most > 0]
    return [entry for _, entry in sorted(best, key=lambda pair: -pair[0])]


def _score(entry: Entry, stem: str) -> int:
    return max((weight for weight, text in entry.texts if _matches(text, stem)), default=0)


def _matches(text: str, stem: str) -> bool:
    return any(part.startswith(stem) for word in _words(text) for part in (word, *word.split("-")))


def _words(text: str) -> list[str]:
    return re.findall(r"[\w+-]+", text.lower().replace("_", "-"))


def _of_method(row: MethodRow) -> Entry:
    method = row.method
    against, title = method.against or method.title, f"{method.title} {method.paper_title or ''}"
    texts = (8, method.name), (4, " ".join(method.use_for)), (2, f"{against} {title}")
    return Entry(
        include=row.include,
        name=row.include.removeprefix("methods/"),
        applies_to=method.applies_to,
        against=against,
        use_for=method.use_for,
        texts=(*texts, (1, f"{method.use_when or ''} {row.heading} {' '.join(method.trl)}")),
    )


def _of_run(include: str) -> Entry:
    section, modality = run_section(include), find_config(include).parent.name
    against, uses = section.get("against") or "", tuple(section.get("use_for", ()))
    texts = (8, include.removeprefix(f"{RUNS}/")), (4, " ".join(uses)), (2, f"{against} {section.get('title') or ''}")
    return Entry(
        include=include,
        name=include,
        applies_to="denoising" if modality in GENERATORS else "tokens",
        against=against,
        use_for=uses,
        texts=(*texts, (1, section.get("note") or "")),
    )
