"""Reward explanations of a text, in words and as a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmgrpo.report.logs import finite_numbers, is_number

MAX_PARTS = 12
MAX_MOMENTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardNote:
    """The explanation of a score in words.

    Attributes:
        read: the parsed answer, or the text read from an image; None if the explanation has neither.
        expected: the reference of the explanation, if it differs from that of the row.
        reason: the reason of the score.
        parts: the parts of the score.
    """

    read: str | None = None
    expected: str | None = None
    reason: str | None = None
    parts: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """A span of a timeline, in percent of its length; ``role`` is stated or reference."""

    role: str
    left: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Spans and moments of an explanation.

    Attributes:
        start: start time.
        end: end time.
        spans: the spans.
        moments: (position in percent, overlap in percent) of each moment.
        label: the timeline in words.
    """

    start: str
    end: str
    spans: tuple[TimelineSpan, ...]
    moments: tuple[tuple[float, float], ...]
    label: str


def note_of(explanation: Mapping[str, Any], reference: str | None) -> RewardNote:
    """The explanation of a score in words.

    Args:
        explanation: the explanation.
        reference: the reference of the row, which is not repeated.

    Returns:
        The note; None for keys that the explanation lacks.
    """
    expected = _value_text(explanation.get("reference"))
    parts = explanation.get("parts")
    listed = (
        [f"{name} {f'{part:.3g}' if is_number(part) else part}" for name, part in parts.items()]
        if isinstance(parts, dict)
        else []
    )
    most = explanation.get("majority")
    listed += [f"most say {' or '.join(map(str, most))}"] if isinstance(most, list) and most else []
    more = [f"and {len(listed) - MAX_PARTS} more"] if len(listed) > MAX_PARTS else []
    key = next((key for key in ("parsed", "text") if key in explanation), None)
    return RewardNote(
        read=None if key is None else _value_text(explanation[key]) or "nothing",
        expected=None if expected == reference else expected,
        reason=explanation["reason"] if isinstance(explanation.get("reason"), str) else None,
        parts=", ".join([*listed[:MAX_PARTS], *more]) or None,
    )


def timeline_of(explanation: Mapping[str, Any]) -> Timeline | None:
    """The spans and moments of an explanation; None if it has none."""
    spans = list(_spans(explanation))
    moments = [pair for entry in _list(explanation, "overlaps") if (pair := finite_numbers(entry, 2)) is not None][
        :MAX_MOMENTS
    ]
    times = [end for _, span in spans for end in span] + [moment for moment, _ in moments]
    if not times:
        return None
    start, end = min(times), max(times)
    length = (end - start) or 1.0
    words = [f"{role} {_value_text(span[0])} to {_value_text(span[1])}" for role, span in spans]
    words += [f"overlap {overlap:.2f} at {_value_text(moment)}" for moment, overlap in moments]
    return Timeline(
        start=_value_text(start) or "",
        end=_value_text(end) or "",
        spans=tuple(
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


def _spans(explanation: Mapping[str, Any]) -> Iterator[tuple[str, list[float]]]:
    for entry in _list(explanation, "spans")[:MAX_MOMENTS]:
        span = finite_numbers(entry.get("span"), 2) if isinstance(entry, dict) else None
        if span is not None:
            yield "reference" if entry.get("role") == "reference" else "stated", span


def _list(explanation: Mapping[str, Any], key: str) -> list[Any]:
    value = explanation.get(key)
    return value if isinstance(value, list) else []


def _value_text(value: object) -> str | None:
    """A number with six digits, anything else as text."""
    return None if value is None else f"{value:.6g}" if is_number(value) else str(value)
