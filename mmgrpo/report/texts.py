"""The texts of a run, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmgrpo.report.albums import Album, Change, reward_changes, shared_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """One request's answers, a text per step, and their rewards."""

    prompt: str
    answers: tuple[str | None, ...]
    changes: tuple[Change, ...]


def written_requests(ends: Sequence[Album]) -> list[int]:
    """Requests that were answered with a text at the first step or the last."""
    return [index for index in shared_requests(ends) if any(album.shots[index].text is not None for album in ends)]


def text_rows(ends: Sequence[Album], requests: Sequence[int]) -> list[TextRow]:
    """A row per request."""
    return [
        TextRow(
            prompt=ends[0].shots[index].prompt,
            answers=tuple(album.shots[index].text for album in ends),
            changes=reward_changes(ends, [index]),
        )
        for index in requests
    ]
