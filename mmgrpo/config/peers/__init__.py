"""Settings of other libraries: a key of theirs in a run is an error that names the key of a run."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

from mmgrpo.config.peers.peer import Peer
from mmgrpo.system.site_pages import page_url
from mmgrpo.system.targets import import_attribute

PEERS: Mapping[str, str] = {
    "trl": "mmgrpo.trl.arguments:PEER",
    "verl": "mmgrpo.config.peers.verl:PEER",
    "easyr1": "mmgrpo.config.peers.easyr1:PEER",
    "ms-swift": "mmgrpo.config.peers.ms_swift:PEER",
    "flow-grpo": "mmgrpo.config.peers.flow_grpo:PEER",
    "flow-factory": "mmgrpo.config.peers.flow_factory:PEER",
    "ai-toolkit": "mmgrpo.config.peers.ai_toolkit:PEER",
}
"""File name of a library's page -> its ``Peer``. Where two have a setting of one name, the first is named first."""

MAX_NAMED = 60
"""Settings of a section, such as a file of the library, that a message names; an example file has at most 50."""


def peer(name: str) -> Peer:
    """A library of ``PEERS``.

    Args:
        name: key of ``PEERS``.

    Returns:
        The library.
    """
    return import_attribute(PEERS[name])


def peer_suggestions(key: str, value: object = None) -> list[str]:
    """Sentences about an unknown key that other libraries have, such as "TRL's num_generations is rollout.group_size".

    A key matches a setting with the same last part; among several those with the most parts in common. A section that
    is itself a setting is looked up, of another one the keys in it but ``name``. A section by which the settings
    of a library begin is part of a file of that library: its keys match settings with the same section alone, and one
    sentence lists keys without a match. Of the libraries that match those with the most keys of the section are named.

    Args:
        key: dotted key.
        value: its value; that of a section is a mapping, or a list of mappings.

    Returns:
        A sentence for each setting, of a section those with a key first. After ``MAX_NAMED`` sentences the last ones
        state how many more match and the page that lists them. None if no library has such a setting.
    """
    depth = len(_parts(key)) - 1
    leaves = list(_leaves(key, value, depth))
    owners = next((owners for leaf in leaves if (owners := _owners(_parts(leaf)[depth:-1]))), {})
    matches = {leaf: _matches(leaf, depth) for leaf in leaves}
    of_section = [row for row in _matches(key, depth) if not owners or row.library in owners]
    if not owners:
        is_setting = any(row.parts == _parts(key)[depth:] for row in of_section)
        matches = {leaf: rows for leaf, rows in matches.items() if not is_setting and _parts(leaf)[-1] != "name"}
    if not any(matches.values()):
        matches[key] = of_section
    counts = Counter(library for rows in matches.values() for library in {row.library for row in rows})
    libraries = [library for library, count in counts.items() if count == max(counts.values())]
    is_of_library = bool(owners) or any(isinstance(item, Mapping | list) for _, item in _items(key, value))
    if is_of_library:
        matches = {leaf: [row for row in rows if row.library in libraries] for leaf, rows in matches.items()}
    texts = list(dict.fromkeys(row.sentence for row in sorted(_distinct(matches.values()), key=_is_replacement)))
    if not owners and not texts:
        return []
    pages = _pages(libraries or owners)
    missing = [leaf for leaf, rows in matches.items() if is_of_library and leaf != key and not rows]
    return [*_limited(texts, f"see {pages}"), *_missing(missing, depth, pages)]


def peer_pages(keys: Iterable[str]) -> str:
    """The pages of the libraries that together have keys of a file, such as ms-swift's and TRL's.

    Args:
        keys: dotted keys; those that no library has are left out.

    Returns:
        Addresses in words, that of the library with the most keys first; empty if no library has any of them.
    """
    libraries = [{row.library for row in rows} for key in keys if (rows := _matches(key, len(_parts(key)) - 1))]
    chosen = []
    while libraries:
        chosen.append(max(PEERS, key=Counter(itertools.chain(*libraries)).__getitem__))
        libraries = [names for names in libraries if chosen[-1] not in names]
    return _pages(chosen) if chosen else ""


def peer_value_suggestion(key: str, value: object) -> str | None:
    """The sentence about a value of a key that another library has; None: none has it.

    Args:
        key: dotted key of a run.
        value: the value, which is not one of mmgrpo's.

    Returns:
        Such as "flow_grpo's sde is flow_sde".
    """
    if not isinstance(value, str):
        return None
    libraries = [(library.name, library.values.get(key, {})) for library in map(peer, PEERS)]
    return next((f"{name}'s {value} is {values[value]}" for name, values in libraries if value in values), None)


def peer_reward_suggestion(name: str) -> str | None:
    """The sentence about an unknown reward that another library has; None: none has it.

    Args:
        name: of the reward, in any case.

    Returns:
        Such as "flow_grpo's pickscore is {name: pick_score}".
    """
    sentences = (
        f"{library.name}'s {reward} is {text}"
        for library in map(peer, PEERS)
        for reward, text in library.rewards.items()
        if reward.lower() == name.lower()
    )
    return next(sentences, None)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A setting of a library: its parts, the first key that replaces it and the sentence about it."""

    library: str
    parts: tuple[str, ...]
    meaning: str
    sentence: str


def _items(key: str, value: object) -> list[tuple[str, object]]:
    """The values of a section, or of the sections of a list, with their dotted keys."""
    if isinstance(value, Mapping):
        return [(f"{key}.{name}", item) for name, item in value.items()]
    sections = value if isinstance(value, list) else ()
    return [item for section in sections if isinstance(section, Mapping) for item in _items(key, section)]


def _leaves(key: str, value: object, depth: int) -> Iterator[str]:
    """The dotted keys of the values within a section that are no sections, or that only the section's name matches."""
    for name, item in _items(key, value):
        inner = list(_leaves(name, item, depth))
        yield from inner if any(_matches(leaf, depth) for leaf in inner) else [name]


def _parts(key: str) -> tuple[str, ...]:
    """The parts of a dotted key without the numbers of list items."""
    return tuple(part for part in key.split(".") if not part.isdigit())


def _is_replacement(setting: _Setting) -> bool:
    return ".".join(setting.parts) in peer(setting.library).replacements


def _pages(libraries: Iterable[str]) -> str:
    """The addresses of the pages of libraries, in words."""
    *first, last = (page_url(f"coming-from/{library}") for library in libraries)
    return f"{', '.join(first)} and {last}" if first else last


def _distinct(groups: Iterable[Sequence[_Setting]]) -> Iterator[_Setting]:
    """The first setting of each group with a meaning."""
    for rows in groups:
        yield from {row.meaning: row for row in reversed(rows)}.values()


def _limited(texts: Sequence[str], where: str) -> list[str]:
    """The first ``MAX_NAMED`` texts, and how many more there are."""
    rest = len(texts) - MAX_NAMED
    return [*texts[:MAX_NAMED], *([f"and {rest} more, {where}"] if rest > 0 else [])]


def _missing(leaves: Sequence[str], depth: int, pages: str) -> list[str]:
    """The sentence about keys of a library's section that its tables lack."""
    names = [".".join(_parts(leaf)[depth:]) for leaf in leaves]
    return [f"not in the tables of {pages}: {', '.join(_limited(names, 'which they lack too'))}"] if names else []


def _matches(key: str, depth: int) -> list[_Setting]:
    """The settings that a key may be, the shortest first.

    Args:
        key: dotted key.
        depth: number of its first parts that are sections of a run.

    Returns:
        Of a key in a section of a library those that end with the key from this section on, or that have no section
        in this library; else those with the most last parts in common.
    """
    parts = _parts(key)
    rows = _settings().get(parts[-1], []) if parts else []
    if owners := _owners(parts[depth:-1]):
        ends = {parts[depth + start :] for start in owners.values()}
        full = [row for row in rows if any(row.parts[-len(end) :] == end for end in ends)]
        return full or [row for row in rows if row.library in owners and len(row.parts) == 1]
    longest = max((_num_common(parts, row.parts) for row in rows), default=0)
    return [row for row in rows if _num_common(parts, row.parts) == longest]


def _owners(sections: Sequence[str]) -> dict[str, int]:
    """The libraries with settings that begin with the first of these sections that any has -> the last one of each."""
    libraries = next((_sections()[section] for section in sections if section in _sections()), [])
    return {
        library: index
        for library in libraries
        for index, section in enumerate(sections)
        if library in _sections().get(section, ())
    }


def _num_common(parts: Sequence[str], others: Sequence[str]) -> int:
    """Number of equal last parts."""
    pairs = list(zip(reversed(parts), reversed(others), strict=False))
    return next((number for number, (part, other) in enumerate(pairs) if part != other), len(pairs))


@cache
def _settings() -> dict[str, list[_Setting]]:
    """Last part of a setting -> the settings with it, the shortest first."""
    settings: dict[str, list[_Setting]] = {}
    for name, library in zip(PEERS, map(peer, PEERS), strict=True):
        texts = {**library.keys, **library.replacements}
        for setting, sentence in library.settings.items():
            parts, meaning = tuple(setting.split(".")), re.split("[:,]", texts[setting])[0]
            row = _Setting(library=name, parts=parts, meaning=meaning, sentence=sentence)
            settings.setdefault(parts[-1], []).append(row)
    return {name: sorted(rows, key=lambda row: len(row.parts)) for name, rows in settings.items()}


@cache
def _sections() -> dict[str, list[str]]:
    """First part of settings with several parts -> the libraries that have them."""
    sections: dict[str, list[str]] = {}
    for row in itertools.chain(*_settings().values()):
        if len(row.parts) > 1 and row.library not in sections.setdefault(row.parts[0], []):
            sections[row.parts[0]].append(row.library)
    return {section: sorted(libraries, key=list(PEERS).index) for section, libraries in sections.items()}
