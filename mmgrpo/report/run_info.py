"""Metadata of a run from run.json and config.yaml."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mmgrpo.config.tasks import TASK_NAME
from mmgrpo.report.logs import Log, is_finite, parse_mapping
from mmgrpo.report.number_format import clip, duration
from mmgrpo.report.run_files import RunFiles
from mmgrpo.system.processes import is_gone
from mmgrpo.system.targets import is_python_target
from mmgrpo.system.yamls import YamlError, parse_yaml

MAX_ROWS = 30


def parse_note(config_text: str | None) -> str | None:
    """The note of the configuration, if any."""
    about = _config_value(config_text, "about")
    note = about.get("note") if isinstance(about, dict) else None
    return note.strip() if isinstance(note, str) and note.strip() else None


def parse_tasks(config_text: str | None) -> list[str]:
    """Names of the tasks of a mixed run; each has a folder in the run folder."""
    tasks = _config_value(config_text, "tasks")
    names = list(tasks)[:MAX_ROWS] if isinstance(tasks, dict) else []
    return [name for name in names if isinstance(name, str) and re.fullmatch(TASK_NAME, name)]


def read_about(files: RunFiles) -> dict[str, Any]:
    """The content of run.json; its status is "killed" if the process of a running run has ended without a word."""
    about: dict[str, Any] = parse_mapping(files.text("run.json") or "") or {}
    killed = about.get("status") == "running" and is_gone(_mapping(about.get("process")))
    return about | {"status": "killed"} if killed else about


def run_name(files: RunFiles) -> str:
    """The name of a run: that of run.json, else that of its folder."""
    name = read_about(files).get("name")
    return name if isinstance(name, str) and name else files.root.name


def training_summary(config_text: str | None) -> str | None:
    """One sentence: the model, the method if the configuration names one, the rewards and the prompts.

    None for a configuration without a model, such as that of a mixed run.
    """
    about, policy, prompts = (_mapping(_config_value(config_text, key)) for key in ("about", "policy", "prompts"))
    model, method = policy.get("model"), _mapping(about.get("method")).get("name")
    if not isinstance(model, str):
        return None
    rewards = _config_value(config_text, "rewards")
    members = [_mapping(reward) for reward in rewards] if isinstance(rewards, list) else []
    labels = [str(name) for reward in members if (name := reward.get("label") or reward.get("name"))]
    listed = prompts.get("sources")
    sources = [_mapping(source) for source in listed] if isinstance(listed, list) and listed else [prompts]
    names = [_short_source(source) for value in sources if isinstance(source := value.get("source"), str)]
    parts = [
        _short_source(model),
        f"trained by {method}" if isinstance(method, str) else "trained",
        f"for {', '.join(labels)}" if labels else "",
        f"on the prompts of {', '.join(names)}" if names else "",
    ]
    return clip(" ".join(filter(None, parts)), 400)


def _short_source(source: str) -> str:
    """A path or hub id; of an object in Python its name, without the module."""
    return source.rpartition(":")[2] if is_python_target(source) else source


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _config_value(config_text: str | None, key: str) -> object:
    try:
        config = parse_yaml(config_text or "")
    except YamlError:
        return None
    return config.get(key) if isinstance(config, dict) else None


def overview_rows(about: Mapping[str, Any], metrics: Log) -> list[tuple[str, str]]:
    """(label, value) of the figures at the top of the page."""
    started = _moment(about.get("started"))
    num_steps = len({row.get("step", index) for index, row in enumerate(metrics.rows)})
    trained = f"{_plural(num_steps, 'step')}, {_plural(len(metrics.rows), 'update')}"
    return [
        ("Started", f"{started:%-d %B %Y, %H:%M %Z}" if started else "not recorded"),
        ("Duration", "running" if about.get("status") == "running" else duration(elapsed_s(about))),
        ("Trained", trained if metrics.rows else "not recorded"),
        ("Seed", str(about.get("seed", "not recorded"))),
    ]


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def environment(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(label, value) of the machines that the run was started and resumed on; empty if none is recorded."""
    sessions = about.get("resumed")
    later = (
        [session.get("machine") for session in sessions if isinstance(session, dict)]
        if isinstance(sessions, list)
        else []
    )
    rows, machines = [], []
    for machine in (about.get("machine"), *later):
        if isinstance(machine, dict) and machine not in machines:
            rows += [(f"{label}, resumed" if machines else label, value) for label, value in _machine(machine)]
            machines.append(machine)
    return rows[:MAX_ROWS]


def _machine(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    gpus = machine.get("gpus")
    named = Counter(str(gpu) for gpu in gpus) if isinstance(gpus, list) else {}
    cores = f", {machine['cores']} cores" if is_finite(machine.get("cores")) else ""
    rows = {
        "Processor": f"{machine.get('processor') or 'not recorded'}{cores}",
        "GPU": ", ".join(f"{num} x {name}" if num > 1 else name for name, num in named.items()) or "none used",
        "Processes": str(machine.get("processes", "not recorded")),
        "Threads of each": str(machine.get("threads", "not recorded")),
        "Commit of mmgrpo": str(machine.get("commit") or "not recorded"),
    }
    return [(label, clip(value, 200)) for label, value in rows.items()]


def elapsed_s(about: Mapping[str, Any]) -> float | None:
    """Duration of the run in seconds: ``active_s`` summed over its sessions if recorded, else from start to finish."""
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
