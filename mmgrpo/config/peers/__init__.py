"""Settings of other libraries: a key of theirs in a run is an error that names the key of a run."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

from mmgrpo.config.peers.peer import Peer
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

MAX_NAMED = 4
"""Settings of a section that a message names."""

MAX_OF_FILE = 30
"""Settings of a section with sections in it, such as a file of the library, that a message names."""


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

    A key matches a setting with the same last part; among several those with the most parts in common. Of a section
    the keys in it are looked up, and the section itself if no library has any of them. A section with sections or lists
    of sections in it is part of a file of one library, that with the most of its keys: the others are not named, and
    its settings with a key come first.

    Args:
        key: dotted key.
        value: its value; that of a section is a mapping, or a list of mappings.

    Returns:
        At most ``MAX_NAMED`` sentences, or ``MAX_OF_FILE`` of a section with sections; none if no library has such a
        setting.
    """
    inner = [matches for name in _leaves(key, value) if (matches := _matches(name))]
    if not any(isinstance(item, Mapping | list) for _, item in _items(key, value)):
        texts = [match.sentence for match in (itertools.chain(*inner) if inner else _matches(key))]
        return list(dict.fromkeys(texts))[:MAX_NAMED]
    counts = Counter(library for matches in inner for library in {match.library for match in matches})
    libraries = [library for library, _ in counts.most_common(1)]
    matches = sorted((match for match in itertools.chain(*inner) if match.library in libraries), key=_is_replacement)
    texts = [match.sentence for match in matches or _matches(key)]
    return list(dict.fromkeys(texts))[:MAX_OF_FILE]


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


def _leaves(key: str, value: object) -> Iterator[str]:
    """The dotted keys of the values within a section that are no sections, or that only the section's name matches."""
    for name, item in _items(key, value):
        inner = list(_leaves(name, item))
        yield from inner if any(map(_matches, inner)) else [name]


def _is_replacement(setting: _Setting) -> bool:
    return ".".join(setting.parts) in peer(setting.library).replacements


def _matches(key: str) -> list[_Setting]:
    """The settings with the most last parts in common with a key, one for each meaning."""
    parts = [part for part in key.split(".") if not part.isdigit()]
    by_length: dict[int, dict[str, _Setting]] = {}
    for setting in _settings().get(parts[-1], ()):
        length = _num_common(parts, setting.parts)
        by_length.setdefault(length, {}).setdefault(setting.meaning, setting)
    return list(by_length[max(by_length)].values()) if by_length else []


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
