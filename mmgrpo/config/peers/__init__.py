"""Settings of other libraries: a key of theirs in a run is an error that names the key of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

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
    the keys in it are looked up, and the section itself if no library has any of them.

    Args:
        key: dotted key.
        value: its value; that of a section is a mapping.

    Returns:
        At most ``MAX_NAMED`` sentences; none if no library has such a setting.
    """
    inner_keys = value.items() if isinstance(value, Mapping) else ()
    inner = [sentence for name, item in inner_keys for sentence in peer_suggestions(f"{key}.{name}", item)]
    return list(dict.fromkeys(inner or _sentences(key)))[:MAX_NAMED]


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


def _sentences(key: str) -> list[str]:
    """The sentences of the settings with the most last parts in common with a key, one for each meaning."""
    parts = [part for part in key.split(".") if not part.isdigit()]
    by_length: dict[int, dict[str, str]] = {}
    for setting_parts, meaning, sentence in _settings().get(parts[-1], ()):
        length = _num_common(parts, setting_parts)
        by_length.setdefault(length, {}).setdefault(meaning, sentence)
    return list(by_length[max(by_length)].values()) if by_length else []


def _num_common(parts: list[str], others: list[str]) -> int:
    """Number of equal last parts."""
    pairs = list(zip(reversed(parts), reversed(others), strict=False))
    return next((number for number, (part, other) in enumerate(pairs) if part != other), len(pairs))


@cache
def _settings() -> dict[str, list[tuple[list[str], str, str]]]:
    """Last part of a setting -> the parts, the first key and the sentence of each setting, the shortest first."""
    settings: dict[str, list[tuple[list[str], str, str]]] = {}
    for library in map(peer, PEERS):
        texts = {**library.keys, **library.replacements}
        for setting, sentence in library.settings.items():
            parts, meaning = setting.split("."), re.split("[:,]", texts[setting])[0]
            settings.setdefault(parts[-1], []).append((parts, meaning, sentence))
    return {name: sorted(rows, key=lambda row: len(row[0])) for name, rows in settings.items()}
