"""What rewards said of a text, in words and on a line of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmgrpo.report.logs import finite_numbers, is_number

MAX_PARTS = 12
MAX_MOMENTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardNote:
    """What a reward said beside its score.

    Attributes:
        read: the answer as it was read, or the text of a picture; None where the reward does not say.
        wanted: what that was held against, where it says so and the row's own reference does not.
        reason: what decided.
        parts: what the score is made of.
    """

    read: str | None = None
    wanted: str | None = None
    reason: str | None = None
    parts: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """A span on a line of time, in percent of it; ``role`` is stated or reference."""

    role: str
    left: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Spans and moments on one line of time.

    Attributes:
        start: where it begins.
        end: where it ends.
        stretches: the spans.
        moments: (place in percent, overlap in percent) of each moment.
        label: the same in words.
    """

    start: str
    end: str
    stretches: tuple[TimelineSpan, ...]
    moments: tuple[tuple[float, float], ...]
    label: str


def note_of(said: Mapping[str, Any], reference: str | None) -> RewardNote:
    """What an explanation says in words.

    Args:
        said: the explanation.
        reference: the row's own, which needs no repeating.

    Returns:
        The note; of what the explanation does not hold, None.
    """
    wanted = _written(said.get("reference"))
    parts = said.get("parts")
    listed = (
        [f"{name} {f'{part:.3g}' if is_number(part) else part}" for name, part in parts.items()]
        if isinstance(parts, dict)
        else []
    )
    most = said.get("majority")
    listed += [f"most say {' or '.join(map(str, most))}"] if isinstance(most, list) and most else []
    more = [f"and {len(listed) - MAX_PARTS} more"] if len(listed) > MAX_PARTS else []
    key = next((key for key in ("parsed", "text") if key in said), None)
    return RewardNote(
        read=None if key is None else _written(said[key]) or "nothing",
        wanted=None if wanted == reference else wanted,
        reason=said["reason"] if isinstance(said.get("reason"), str) else None,
        parts=", ".join([*listed[:MAX_PARTS], *more]) or None,
    )


def timeline_of(said: Mapping[str, Any]) -> Timeline | None:
    """The spans and moments of an explanation; None if it has none."""
    spans = list(_spans(said))
    moments = [two for one in _list(said, "overlaps") if (two := finite_numbers(one, 2)) is not None][:MAX_MOMENTS]
    times = [end for _, span in spans for end in span] + [moment for moment, _ in moments]
    if not times:
        return None
    start, end = min(times), max(times)
    length = (end - start) or 1.0
    words = [f"{role} {_written(span[0])} to {_written(span[1])}" for role, span in spans]
    words += [f"overlap {overlap:.2f} at {_written(moment)}" for moment, overlap in moments]
    return Timeline(
        start=_written(start) or "",
        end=_written(end) or "",
        stretches=tuple(
            TimelineSpan(
                role=role,
                left=round(100 * (min(span) - start) / length, 2),
                width=round(100 * abs(span[1] - span[0]) / length, 2),
            )
            for role, span in spans
        ),
        moments=tuple(
            (round(100 * (moment - start) / length, 2), round(100 * min(max(overlap, 0.0), 1.0), 1))
            for moment, overlap in moments
        ),
        label="; ".join(words),
    )


def _spans(said: Mapping[str, Any]) -> Iterator[tuple[str, list[float]]]:
    for one in _list(said, "spans")[:MAX_MOMENTS]:
        span = finite_numbers(one.get("span"), 2) if isinstance(one, dict) else None
        if span is not None:
            yield "reference" if one.get("role") == "reference" else "stated", span


def _list(said: Mapping[str, Any], key: str) -> list[Any]:
    value = said.get(key)
    return value if isinstance(value, list) else []


def _written(value: object) -> str | None:
    """A number in few digits, anything else as it is."""
    return None if value is None else f"{value:.6g}" if is_number(value) else str(value)
