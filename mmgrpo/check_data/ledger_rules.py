"""Rules of the ledger of papers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from mmgrpo.check_data.data_files import DataFiles, Finding, Rule, rule_of
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import shipped
from mmgrpo.config.registry import POLICIES, REWARDS, settings_type
from mmgrpo.config.sections import unknown_keys
from mmgrpo.maths.combinations import COMBINATIONS
from mmgrpo.maths.surrogates import SURROGATES

KEY = re.compile(r"\b[a-z_]+\.[a-z_]+(?:\.[a-z_]+)*")
"""A dotted key in a sentence."""


def ledger_unique(data: DataFiles, line: str) -> Iterator[Finding]:
    """No two rows have the same id or title."""
    row = data.ledger_rows[line]
    for field in ("id", "title"):
        counts = Counter(getattr(other, field) for other in data.ledger_rows.values())
        if counts[getattr(row, field)] > 1:
            yield field, f"{getattr(row, field)!r} is that of {counts[getattr(row, field)]} rows"


def ledger_state(data: DataFiles, line: str) -> Iterator[Finding]:
    """A row has a setting or a contribution, not both; its group is needed."""
    row = data.ledger_rows[line]
    if bool(row.setting) + bool(row.adds) != 1:
        yield "setting", f"{row.id}: state setting or adds, one of them"
    if row.leaves_out and not row.setting:
        yield "leaves_out", f"is of a setting, and {row.id} has none"
    if row.group not in (*row.needs, "none"):
        yield "group", f"{row.group!r} is not among needs"


def ledger_setting(data: DataFiles, line: str) -> Iterator[Finding]:
    """Functions, files and keys in a setting exist."""
    text = data.ledger_rows[line].setting or ""
    for name in set(re.findall(r"name: (\w+)", text)) - {*REWARDS, *SURROGATES, *COMBINATIONS, *POLICIES}:
        yield "setting", f"no reward, surrogate, combination or policy is called {name}"
    for name in set(re.findall(r"\b(?:methods|recipes)/[\w.-]+", text)) - set(shipped()):
        yield "setting", f"there is no configuration {name}"
    for key in KEY.findall(text):
        if not _is_key(key):
            yield "setting", f"there is no key {key}"


def ledger_group(data: DataFiles, group: str) -> Iterator[Finding]:
    """The keys of a group of papers are those of a run."""
    for key in (data.groups[group][1] or "").split(", "):
        name = key.partition(":")[0].partition(" ")[0]
        if name and list(unknown_keys(RunConfig, _nested(name))):
            yield key, "is no key of a run"


def _is_key(key: str) -> bool:
    """Whether a dotted name is a key of a run or of a policy, or no key at all, as the name of a file."""
    section, _, rest = key.partition(".")
    if section == "policy":
        return any(rest.partition(".")[0] in settings_type(name).model_fields for name in ("language", "denoising"))
    return section not in RunConfig.model_fields or not list(unknown_keys(RunConfig, _nested(key)))


def _nested(key: str) -> dict[str, Any]:
    head, _, rest = key.partition(".")
    return {head: _nested(rest) if rest else None}


def _lines(data: DataFiles) -> list[str]:
    return list(data.ledger_rows)


LEDGER_RULES: tuple[Rule, ...] = (
    rule_of(ledger_unique, items=_lines),
    rule_of(ledger_state, items=_lines),
    rule_of(ledger_setting, items=_lines),
    rule_of(ledger_group, items=lambda data: data.groups),
)
