"""Branch points: positions in a row from which other rows may continue.

A branch point is a number of decisions, from 1 to one less than the row has: so many are shared, the next is sampled.

Axes: T decisions of a row.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY, SEMANTIC_ENTROPY, Value

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The data of a row for finding branch points.

    Attributes:
        num_decisions: number of its decisions, T, forced ones included.
        begins: number of leading decisions that were forced or shared with another row: branch points are after them.
        value_T: the value of each by which branch points are chosen, if they need one.
        turns: start and end of each turn of a conversation: branch points are within them; empty: no conversation.
        text: the generated text, if they need it.
        ends_T: number of its characters after each decision, if they need it.
    """

    num_decisions: int
    begins: int = 0
    value_T: Tensor | None = None
    turns: Sequence[tuple[int, int]] = ()
    text: str = ""
    ends_T: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """A function that finds branch points, its settings bound.

    Attributes:
        find: row -> its branch points, the first choice first.
        values: the required values of the row's decisions.
        text: whether it needs the characters of each decision.
    """

    find: Callable[[Row], Sequence[int]]
    values: tuple[Value, ...] = ()
    text: bool = False

    def __call__(self, row: Row) -> list[int]:
        """The places that are some, in their order."""
        candidates = dict.fromkeys(int(position) for position in self.find(row))
        allowed = [position for position in candidates if max(row.begins, 0) < position < row.num_decisions]
        if not row.turns:
            return allowed
        return [position for position in allowed if any(start <= position < end for start, end in row.turns)]


def height(row: Row, positions: Sequence[int]) -> float:
    """The value that the first of a row's places goes by; minus infinity where there is none."""
    return float(row.value_T[positions[0]]) if positions and row.value_T is not None else -math.inf


def at_decisions(*, at: Sequence[int]) -> Places:
    """After these numbers of decisions, the lowest first.

    Units: decisions.   Raises: ConfigError unless they increase from 1 on.
    """
    if not at or list(at) != sorted(set(at)) or at[0] < 1:
        raise ConfigError(f"branches part after increasing numbers of decisions, from 1 on; got {list(at)}")
    positions = tuple(at)
    return Places(find=lambda row: positions)


def evenly(*, every: int) -> Places:
    """After every so many decisions, the lowest first.

    Units: decisions.   Raises: ConfigError below 1.
    """
    if every < 1:
        raise ConfigError(f"branches part after every 1 decision or more, got {every}")
    return Places(find=lambda row: range(every, row.num_decisions, every))


def turn_starts() -> Places:
    """Before the turns of a conversation after the first, the first of them first.

    Units: decisions.   Source: an agent's steps as the nodes of a tree: Tree-GRPO, arXiv:2509.21240.
    """
    return Places(find=lambda row: [start for start, _ in row.turns[1:]])


def uncertain(*, apart: int = 1) -> Places:
    """Before the decisions of the highest entropy, the highest first; of equal ones the earlier.

    A decision closer than ``apart`` to one that was chosen before it is none.

    Units: entropies in nats, apart in decisions.   Raises: ConfigError below 1.
    Source: TreeRL, arXiv:2506.11902, and its code (THUDM/TreeRL, tree_node.py), which takes -log p of the sampled token
        for it.
    """
    if apart < 1:
        raise ConfigError(f"branch points must be 1 decision apart or more, got {apart}")
    return Places(find=lambda row: _highest_positions(row, apart), values=(ENTROPY,))


def meanings_part() -> Places:
    """Before the decisions of the highest semantic entropy, the highest first; of equal ones the earlier.

    Units: those of ``semantic_entropies``.   Source: ROSE, arXiv:2601.05053.
    """
    return Places(find=lambda row: _highest_positions(row, 1), values=(SEMANTIC_ENTROPY,))


def _highest_positions(row: Row, apart: int) -> Sequence[int]:
    if row.value_T is None:
        raise ConfigError("branches at uncertain decisions need their entropies, which this policy does not give")
    chosen: list[int] = []
    for position in torch.argsort(row.value_T[: row.num_decisions], descending=True, stable=True).tolist():
        if position > row.begins and all(abs(position - other) >= apart for other in chosen):
            chosen.append(position)
    return chosen


def at_text(*, pattern: str) -> Places:
    """After each match of a regular expression, the first match first: after the decision of its last character.

    Units: characters, turned into decisions.   Raises: ConfigError for no expression, or one that matches nothing.
    Source: exits of a chain of thought at its pieces are S-GRPO's, arXiv:2505.07686.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"the branches' pattern {pattern!r} is no regular expression: {error}") from error
    if compiled.search("") is not None:
        raise ConfigError(
            f"the branches' pattern {pattern!r} matches an empty text: write a pattern that matches at least one "
            f"character"
        )

    def after_matches(row: Row) -> Sequence[int]:
        return [bisect_left(row.ends_T, match.end()) + 1 for match in compiled.finditer(row.text)]

    return Places(find=after_matches, text=True)


def before_text(*, pattern: str, room: int = 0) -> Places:
    """All positions before the first match of a regular expression, ``room`` or more decisions before the row's end.

    Units: characters, turned into decisions; room in decisions.   Raises: ConfigError as ``at_text``, or for less than
        none.
    Source: exits within a chain of thought: S-GRPO, arXiv:2505.07686.
    """
    if room < 0:
        raise ConfigError(f"room, decisions before the end of a row, must be 0 or more, got {room}")
    matches = at_text(pattern=pattern)

    def before_match(row: Row) -> Sequence[int]:
        return range(1, min(next(iter(matches.find(row)), row.num_decisions), row.num_decisions - room + 1))

    return Places(find=before_match, text=True)


def budgets(*, at: Sequence[int], pattern: str, room: int = 0) -> Places:
    """After these numbers of decisions before the first match of a regular expression, and after that match.

    All but the last are ``room`` or more decisions before the row's end.

    Units: decisions.   Raises: ConfigError as ``at_decisions`` and ``before_text``.
    Source: AnytimeReasoner, arXiv:2505.13438.
    """
    before, after = before_text(pattern=pattern, room=room), at_text(pattern=pattern)
    at_budgets = at_decisions(at=at)

    def find(row: Row) -> Sequence[int]:
        within = before.find(row)
        return [*(position for position in at_budgets.find(row) if position in within), *after.find(row)[:1]]

    return Places(find=find, text=True)
