"""The run folder: configuration, header, logs and samples of a run."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import Tensor

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import LAUNCHED, dump_config
from mmgrpo.errors import OutputError
from mmgrpo.runs.sample_files import write_samples
from mmgrpo.runs.trust import record_trusted_config
from mmgrpo.system.files import append_line, output_errors, read_lines, replace_folder, replace_text, sync
from mmgrpo.system.processes import process_record
from mmgrpo.types import Sample, Scores

PACKAGES = ("mmgrpo", "torch", "diffusers", "transformers", "accelerate", "peft")
CONFIG, HEADER = "config.yaml", "run.json"
ENGINE_LOG = "engine.log"
"""Output of an inference server that the run starts."""
ENDED = ("finished", "stopped by the alert")
"""Prefixes of the status of a run that is complete."""


class RunFolder:
    """Writes the folder of a run, on the main process only.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        """Starts the clock; writes nothing yet.

        Args:
            path: the folder, which ``open`` creates.
        """
        self.path = path
        self._started_s = time.perf_counter()
        self._active_s = 0.0

    def open(self, config: RunConfig, *, explanation: str, machine: Mapping[str, Any]) -> None:
        """Writes the configuration and the header of a new run."""
        with output_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        replace_text(self.path / CONFIG, dump_config(config))
        record_trusted_config(self.path / CONFIG)
        self._update_header(
            name=config.about.name,
            command=_command(),
            started=_now(),
            finished=None,
            status="running",
            process=process_record(),
            seed=config.seed,
            explain=explanation,
            machine=machine,
            versions={"python": platform.python_version(), **{p: v for p in PACKAGES if (v := _version(p))}},
        )

    def reopen(self, config: RunConfig, resumed: Mapping[str, Any], *, explanation: str) -> None:
        """Writes the configuration of a resumed run, and adds the resumption to the header."""
        header = self.header()
        self._active_s = header.get("active_s", 0.0)
        replace_text(self.path / CONFIG, dump_config(config))
        record_trusted_config(self.path / CONFIG)
        self._update_header(
            status="running",
            process=process_record(),
            finished=None,
            error=None,
            seed=config.seed,
            explain=explanation,
            resumed=[*header.get("resumed", []), {"at": _now(), "command": _command(), **resumed}],
        )

    def rewind(self, limits: Mapping[str, int]) -> list[str]:
        """Removes the lines of steps that will be repeated, and unreadable ones.

        Args:
            limits: for each file, the last step whose lines stay.

        Returns:
            Messages about unreadable lines.
        """
        notes = []
        for leftover in (*self.path.glob(".*.new"), *self.path.glob("samples/.*")):  # of a killed process
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        for name, limit in limits.items():
            lines = read_lines(self.path / name)
            rows = [row for row in lines.rows if isinstance(row.get("step"), int | float) and row["step"] <= limit]
            if lines.num_dropped or len(rows) < len(lines.rows):
                replace_text(self.path / name, "".join(f"{json.dumps(row)}\n" for row in rows))
            if lines.num_dropped:
                notes.append(f"{name}: {lines.num_dropped} unreadable line(s) dropped")
        return notes

    def close(self, status: str, error: BaseException | None = None) -> None:
        """Writes the status, the error and the running time, without interruptions, to the header."""
        active_s = self._active_s + time.perf_counter() - self._started_s
        message = None if error is None else f"{type(error).__name__}: {error}"
        self._update_header(status=status, finished=_now(), active_s=active_s, error=message)

    def mark_finished(self) -> None:
        """Sets the status to finished, if a process was killed before it did."""
        if self.header().get("status") != "finished":
            self._update_header(status="finished", error=None)

    def discard(self) -> bool:
        """Removes the folder of a run that failed before its first result; returns whether it did."""
        if {entry.name for entry in self.path.iterdir()} - {CONFIG, HEADER}:
            return False
        shutil.rmtree(self.path)
        return True

    def log(self, file: str, values: Mapping[str, Any]) -> None:
        """Appends one line to ``metrics.jsonl``, ``evaluation.jsonl``, ``alerts.jsonl`` or ``warmup.jsonl``."""
        append_line(self.path / file, json.dumps(values))

    def lines(self, file: str) -> tuple[dict[str, Any], ...]:
        """Returns the readable lines of a file; empty if there is no such file."""
        return read_lines(self.path / file).rows

    def sync(self) -> None:
        """Syncs all logged lines to disk."""
        for file in self.path.glob("*.jsonl"):
            sync(file)

    def header(self) -> dict[str, Any]:
        """Returns the content of ``run.json``; empty if it cannot be read."""
        return _read_header(self.path)

    def save_samples(self, step: int, samples: Sequence[Sample], scores: Scores) -> Path:
        """Writes the samples of an evaluation, with their scores; returns their folder."""
        return self._save_samples(f"step-{step:06d}", samples, scores)

    def save_rollout(self, step: int, samples: Sequence[Sample], scores: Scores, advantage_B: Tensor) -> Path:
        """Writes groups of a training step, with the advantage of each sample; returns their folder."""
        return self._save_samples(f"train-{step:06d}", samples, scores, advantage_B)

    def save_skipped(
        self, step: int, update: int, samples: Sequence[Sample], scores: Scores, advantage_B: Tensor
    ) -> Path:
        """Writes the samples whose non-finite gradient made an update be skipped; returns their folder."""
        return self._save_samples(f"skipped-{step:06d}-{update}", samples, scores, advantage_B)

    def _save_samples(
        self, name: str, samples: Sequence[Sample], scores: Scores, advantage_B: Tensor | None = None
    ) -> Path:
        folder = self.path / "samples" / name
        temporary = folder.with_name(f".{name}")
        with output_errors(folder):
            shutil.rmtree(temporary, ignore_errors=True)
            write_samples(temporary, samples, scores, advantage_B=advantage_B)
            replace_folder(temporary, folder)
        return folder

    def _update_header(self, **values: Any) -> None:
        replace_text(self.path / HEADER, json.dumps(self.header() | values, indent=2))


def run_status(folder: Path) -> str:
    """Returns the status of a run; empty if there is none."""
    return str(_read_header(folder).get("status", ""))


def _read_header(folder: Path) -> dict[str, Any]:
    try:
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


def has_ended(folder: Path) -> bool:
    """Whether a folder holds a complete run."""
    return run_status(folder).startswith(ENDED)


def remove_unstarted(folder: Path) -> bool:
    """Removes a run folder without a configuration: its process was killed while creating it.

    Args:
        folder: a folder that may hold a run.

    Returns:
        Whether there is a run to resume.
    """
    if folder.is_dir() and not (folder / CONFIG).is_file():
        shutil.rmtree(folder)
    return folder.exists()


def claim_folder(config: RunConfig) -> Path:
    """Creates the folder of a new run: OUTPUT/NAME, or the first free OUTPUT/NAME-2, -3, ...; exclusive to this run.

    Raises OutputError if it cannot be created.
    """
    return create_numbered_folder(Path(config.output) / config.about.name)


def create_numbered_folder(first: Path) -> Path:
    """Creates a folder of this name, or the first free one with a number appended.

    Raises OutputError if it cannot be created.
    """
    first = first.absolute()
    with output_errors(first):
        first.parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10**6):
            path = first if number == 1 else first.with_name(f"{first.name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    raise OutputError(f"{first} and a million names after it exist already; set another name or output")


def require_output(config: RunConfig) -> None:
    """Checks that run folders can be created, before anything is loaded; creates none. Raises OutputError."""
    output = Path(config.output).absolute()
    existing = next(path for path in (output, *output.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        reason = "is no folder" if not existing.is_dir() else "is not writable"
        raise OutputError(f"output: {config.output} cannot hold run folders: {existing} {reason}; set output=FOLDER")


def _command() -> str:
    """Returns the command line of the run, with the launch options if ``accelerate launch`` started it."""
    name, launched = Path(sys.argv[0]).name, os.environ.get(LAUNCHED)
    command = shlex.join(["mmgrpo" if name == "__main__.py" else name, *sys.argv[1:]])
    return command if launched is None else f"{command} {launched}"


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
