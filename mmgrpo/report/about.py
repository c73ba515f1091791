"""What run.json and config.yaml say of a run as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mmgrpo.report.numbers import duration
from mmgrpo.report.reading import Log, is_finite
from mmgrpo.yamls import YamlError, parsed_yaml


def parse_note(config_text: str | None) -> str | None:
    """The note that the configuration carries, if any."""
    try:
        config = parsed_yaml(config_text or "")
    except YamlError:
        return None
    note = config.get("note") if isinstance(config, dict) else None
    return note.strip() if isinstance(note, str) and note.strip() else None


def facts(about: Mapping[str, Any], metrics: Log) -> list[tuple[str, str]]:
    """(label, value) of what the head of the page says in figures."""
    started = _moment(about.get("started"))
    num_steps = len({row.get("step", index) for index, row in enumerate(metrics.rows)})
    trained = f"{num_steps:,} steps, {len(metrics.rows):,} updates" if metrics.rows else "not recorded"
    return [
        ("Started", f"{started:%-d %B %Y, %H:%M %Z}" if started else "not recorded"),
        ("Duration", duration(elapsed_s(about))),
        ("Trained", trained),
        ("Seed", str(about.get("seed", "not recorded"))),
    ]


def elapsed_s(about: Mapping[str, Any]) -> float | None:
    """Seconds the run took: ``active_s``, summed over its sessions, where recorded; else from start to finish."""
    active = about.get("active_s")
    if is_finite(active):
        return active
    started, finished = _moment(about.get("started")), _moment(about.get("finished"))
    return (finished - started).total_seconds() if started and finished else None


def _moment(value: object) -> datetime | None:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
        elif isinstance(value, int | float):
            moment = datetime.fromtimestamp(value, UTC)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
