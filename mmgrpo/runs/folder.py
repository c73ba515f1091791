"""The run folder: what a run leaves behind for people and programs to read."""

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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import Tensor

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import LAUNCHED, dump_config
from mmgrpo.errors import OutputError
from mmgrpo.runs.samples import write_samples
from mmgrpo.runs.trust import note_written
from mmgrpo.system.files import append_line, read_lines, replace_folder, replace_text, sync, writing
from mmgrpo.types import Sample, Scores

PACKAGES = ("mmgrpo", "torch", "diffusers", "transformers", "accelerate", "peft")
CONFIG, HEADER = "config.yaml", "run.json"
ENDED = ("finished", "stopped by the alarm")
"""How the status of a run begins that has nothing left to do."""


class RunFolder:
    """Writes one run's folder; only the main process does.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        """Starts the clock; writes nothing yet.

        Args:
            path: the folder, which ``open`` makes.
        """
        self.path = path
        self._began = time.perf_counter()
        self._active_s = 0.0

    def open(self, config: RunConfig, *, explanation: str, machine: Mapping[str, Any]) -> None:
        """Says what is about to run, and on what."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        replace_text(self.path / CONFIG, dump_config(config))
        note_written(self.path / CONFIG)
        self._update_header(
            name=config.name,
            command=_command(),
            started=_now(),
            finished=None,
            status="running",
            seed=config.seed,
            explain=explanation,
            machine=machine,
            versions={"python": platform.python_version(), **{p: v for p in PACKAGES if (v := _version(p))}},
        )

    def reopen(self, config: RunConfig, resumed: Mapping[str, Any], *, explanation: str) -> None:
        """Goes on under a configuration; what was resumed, where and with which changes stays on record."""
        header = self.header()
        self._active_s = header.get("active_s", 0.0)
        replace_text(self.path / CONFIG, dump_config(config))
        note_written(self.path / CONFIG)
        self._update_header(
            status="running",
            finished=None,
            error=None,
            seed=config.seed,
            explain=explanation,
            resumed=[*header.get("resumed", []), {"at": _now(), "command": _command(), **resumed}],
        )

    def rewind(self, limits: Mapping[str, int]) -> list[str]:
        """Drops the lines that will be written again, and those that cannot be read.

        Args:
            limits: for each file, the last step whose lines stay.

        Returns:
            What is to be said of the lines that could not be read.
        """
        notes = []
        for left in (*self.path.glob(".*.new"), *self.path.glob("samples/.*")):  # of a process that was killed
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        for name, limit in limits.items():
            found = read_lines(self.path / name)
            kept = [row for row in found.rows if isinstance(row.get("step"), int | float) and row["step"] <= limit]
            if found.num_dropped or len(kept) < len(found.rows):
                replace_text(self.path / name, "".join(f"{json.dumps(row)}\n" for row in kept))
            if found.num_dropped:
                notes.append(f"{name}: {found.num_dropped} unreadable line(s) dropped")
        return notes

    def close(self, status: str, error: BaseException | None = None) -> None:
        """Says how the run ended, and how many seconds it really ran."""
        active_s = self._active_s + time.perf_counter() - self._began
        said = None if error is None else f"{type(error).__name__}: {error}"
        self._update_header(status=status, finished=_now(), active_s=active_s, error=said)

    def settle(self) -> None:
        """Says that the run is finished, where a process was killed before it could."""
        if self.header().get("status") != "finished":
            self._update_header(status="finished", error=None)

    def discard(self) -> bool:
        """Removes the folder of a run that failed before it did anything; says whether it is gone."""
        if {entry.name for entry in self.path.iterdir()} - {CONFIG, HEADER}:
            return False
        shutil.rmtree(self.path)
        return True

    def log(self, file: str, values: Mapping[str, Any]) -> None:
        """Appends one line to ``metrics.jsonl``, ``evaluation.jsonl``, ``alarms.jsonl`` or ``warmup.jsonl``."""
        append_line(self.path / file, json.dumps(values))

    def lines(self, file: str) -> tuple[dict[str, Any], ...]:
        """The readable lines of a file; none if there is no such file."""
        return read_lines(self.path / file).rows

    def sync(self) -> None:
        """Waits until every line so far is on the disk."""
        for file in self.path.glob("*.jsonl"):
            sync(file)

    def header(self) -> dict[str, Any]:
        """What ``run.json`` says; nothing if it cannot be read."""
        try:
            found = json.loads((self.path / HEADER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def save_samples(self, step: int, samples: Sequence[Sample], scores: Scores) -> Path:
        """Writes the samples of an evaluation, with what the rewards said of each; returns their folder."""
        return self._save_samples(f"step-{step:06d}", samples, scores)

    def save_rollout(self, step: int, samples: Sequence[Sample], scores: Scores, advantage_B: Tensor) -> Path:
        """Writes groups that were trained on, with the advantage of each sample; returns their folder."""
        return self._save_samples(f"train-{step:06d}", samples, scores, advantage_B)

    def save_skipped(
        self, step: int, update: int, samples: Sequence[Sample], scores: Scores, advantage_B: Tensor
    ) -> Path:
        """Writes the samples whose gradient is not finite, for which an update was skipped; returns their folder."""
        return self._save_samples(f"skipped-{step:06d}-{update}", samples, scores, advantage_B)

    def _save_samples(
        self, name: str, samples: Sequence[Sample], scores: Scores, advantage_B: Tensor | None = None
    ) -> Path:
        folder = self.path / "samples" / name
        aside = folder.with_name(f".{name}")
        with writing(folder):
            shutil.rmtree(aside, ignore_errors=True)
            write_samples(aside, samples, scores, advantage_B=advantage_B)
            replace_folder(aside, folder)
        return folder

    def _update_header(self, **values: Any) -> None:
        replace_text(self.path / HEADER, json.dumps(self.header() | values, indent=2))


def status_of(folder: Path) -> str:
    """What a run folder says of its run; empty if there is none."""
    try:
        said = json.loads((folder / HEADER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(said.get("status", "")) if isinstance(said, dict) else ""


def has_ended(folder: Path) -> bool:
    """Whether it holds a run that has nothing left to do."""
    return status_of(folder).startswith(ENDED)


def clear_unbegun(folder: Path) -> bool:
    """Removes a run folder without a configuration: its process was killed as it made it.

    Args:
        folder: of a run that may have begun.

    Returns:
        Whether there is a run to resume.
    """
    if folder.is_dir() and not (folder / CONFIG).is_file():
        shutil.rmtree(folder)
    return folder.exists()


def claim_folder(config: RunConfig) -> Path:
    """Makes the folder of a new run: OUTPUT/NAME, or the first free OUTPUT/NAME-2, -3, ...; nobody else gets the same.

    Raises OutputError if it cannot be made.
    """
    return claimed(Path(config.output) / config.name)


def claimed(first: Path) -> Path:
    """Makes a folder of this name, or the first free one with a number behind it.

    Raises OutputError if it cannot be made.
    """
    first = first.absolute()
    with writing(first):
        first.parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10**6):
            path = first if number == 1 else first.with_name(f"{first.name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    raise OutputError(f"{first} and a million after it are taken; give another name or output")


def require_output(config: RunConfig) -> None:
    """Looks whether run folders can be made, before anything is loaded. Raises OutputError if not; makes nothing."""
    output = Path(config.output).absolute()
    there = next(path for path in (output, *output.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "is no folder" if not there.is_dir() else "gives no leave to write"
        raise OutputError(f"output: {config.output} cannot take run folders, as {there} {what}; set output=FOLDER")


def _command() -> str:
    """What was typed; of ``accelerate launch``, what it was asked for behind it."""
    name, launched = Path(sys.argv[0]).name, os.environ.get(LAUNCHED)
    typed = shlex.join(["mmgrpo" if name == "__main__.py" else name, *sys.argv[1:]])
    return typed if launched is None else f"{typed} {launched}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
