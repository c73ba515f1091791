"""The run folder: what a run leaves behind for people and programs to read."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import Tensor

from mmgrpo.config import RunConfig
from mmgrpo.extras import is_installed, missing
from mmgrpo.loading import dump_config
from mmgrpo.samples import write_samples
from mmgrpo.types import Sample, Scores

PACKAGES = ("mmgrpo", "torch", "diffusers", "transformers", "accelerate", "peft")


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

    def open(self, config: RunConfig, *, explanation: str) -> None:
        """Makes the folder and says what is about to run."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "config.yaml").write_text(dump_config(config))
        self._update_header(
            name=config.name,
            command=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            started=_now(),
            finished=None,
            status="running",
            seed=config.seed,
            explain=explanation,
            versions={"python": platform.python_version(), **{p: v for p in PACKAGES if (v := _version(p))}},
        )

    def reopen(self, step: int, warmup_step: int) -> None:
        """Goes on after a checkpoint: lines that will be written again are dropped."""
        limits = {
            "metrics.jsonl": step,
            "alarms.jsonl": step,
            "skipped.jsonl": step,
            "evaluation.jsonl": step - 1,
            "warmup.jsonl": warmup_step,
        }
        for name, limit in limits.items():
            file = self.path / name
            if file.is_file():
                kept = [line for line in file.read_text().splitlines() if json.loads(line)["step"] <= limit]
                file.write_text("".join(f"{line}\n" for line in kept))
        self._active_s = self._header().get("active_s", 0.0)
        self._update_header(status="running", finished=None)

    def close(self, status: str) -> None:
        """Says how the run ended, and how many seconds it really ran."""
        active_s = self._active_s + time.perf_counter() - self._began
        self._update_header(status=status, finished=_now(), active_s=active_s)

    def log(self, file: str, values: Mapping[str, Any]) -> None:
        """Appends one line to ``metrics.jsonl``, ``evaluation.jsonl``, ``alarms.jsonl`` or ``warmup.jsonl``."""
        with (self.path / file).open("a") as lines:
            lines.write(json.dumps(values) + "\n")

    def lines(self, file: str) -> list[dict[str, Any]]:
        """The lines of a file; none if there is no such file."""
        path = self.path / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def save_samples(self, step: int, samples: Sequence[Sample], scores: Scores) -> Path:
        """Writes the samples of an evaluation, with what the rewards said of each; returns their folder."""
        return write_samples(self.path / "samples" / f"step-{step:06d}", samples, scores)

    def save_rollout(self, step: int, samples: Sequence[Sample], scores: Scores, advantage_B: Tensor) -> Path:
        """Writes groups that were trained on, with the advantage of each sample; returns their folder."""
        folder = self.path / "samples" / f"train-{step:06d}"
        return write_samples(folder, samples, scores, advantage_B=advantage_B)

    def _update_header(self, **values: Any) -> None:
        (self.path / "run.json").write_text(json.dumps(self._header() | values, indent=2))

    def _header(self) -> dict[str, Any]:
        file = self.path / "run.json"
        return json.loads(file.read_text()) if file.is_file() else {}


def fresh_folder(config: RunConfig) -> Path:
    """The folder a new run gets: OUTPUT/NAME, or the first free OUTPUT/NAME-2, -3, ...; nothing is overwritten."""
    first = Path(config.output) / config.name
    candidates = (first if number == 1 else first.with_name(f"{first.name}-{number}") for number in range(1, 10**6))
    return next(path for path in candidates if not (path / "config.yaml").exists())


def make_accelerator(config: RunConfig) -> Accelerator:
    """accelerate's view of the processes, with the run's trackers, whose files go beside the run's own.

    Raises MissingPackageError for a tracker that is not installed, which accelerate would leave out.
    """
    for tracker in config.tracking.trackers:
        if not is_installed(tracker):
            raise missing(tracker, f"tracking.trackers: {tracker}")
    return Accelerator(
        cpu=config.runtime.device == "cpu",
        log_with=list(config.tracking.trackers) or None,
        project_dir=str(fresh_folder(config)),
    )


def start_trackers(accelerator: Accelerator, config: RunConfig) -> None:
    """Begins the run in every tracker, under the run's name and with its resolved configuration."""
    flat = {key: str(value) for key, value in config.model_dump(mode="json").items()}
    accelerator.init_trackers(config.tracking.project, flat, {"wandb": {"name": config.name}})


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
