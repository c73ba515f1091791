"""The settings of another library, and what a run has in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

OMITTED = "leave it out"
"""Start of a text about a setting that needs no replacement."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another library with its settings, dotted where its files are nested.

    Attributes:
        name: its name, as messages and pages have it.
        keys: setting -> keys of a run, with the form of their values where it differs.
        replacements: setting without a key -> the replacement, or the reason to leave it out.
        rewards: its reward -> an entry of ``rewards``.
        values: key of a run -> values that the library has there -> those of mmgrpo.
    """

    name: str
    keys: Mapping[str, str]
    replacements: Mapping[str, str]
    rewards: Mapping[str, str]
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """Every setting -> a sentence about it, which starts with the name of the library."""
        keys = {setting: f"{self.name}'s {setting} is {text}" for setting, text in self.keys.items()}
        fixes = {
            key: text if text.startswith(OMITTED) else f"instead: {text}" for key, text in self.replacements.items()
        }
        return keys | {key: f"{self.name}'s {key} is not supported; {fix}" for key, fix in fixes.items()}
