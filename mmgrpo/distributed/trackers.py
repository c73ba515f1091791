"""The experiment trackers of a run. A tracker that fails does not end the run: it is reported, skipped for a while and
retried."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from accelerate import Accelerator

from mmgrpo.config import RunConfig
from mmgrpo.config.runtime import TrackerConfig
from mmgrpo.system.files import replace_text

logger = logging.getLogger(__name__)

PAUSE_S, MAX_PAUSE_S = 30.0, 900.0
"""Initial and maximal time for which a failing tracker is skipped: a call to one that is down may take minutes."""

DEFAULT = TrackerConfig(name="tensorboard")
"""The settings of a tracker that the configuration does not name: a live one of the accelerator."""

WANDB_ID = "wandb-id.txt"
"""File in the run folder that holds the id of the wandb run."""


def wandb_settings(config: RunConfig, folder: Path) -> dict[str, str]:
    """Returns the arguments of ``wandb.init``; a resumed run continues its wandb run, by the id in its run folder.

    Args:
        config: the run's configuration.
        folder: the run folder; the id is written to it the first time.

    Returns:
        Name, folder, id and resume mode.

    Raises:
        OutputError: the id cannot be written.
    """
    file = folder / WANDB_ID
    run_id = os.environ.get("WANDB_RUN_ID") or (file.read_text(encoding="utf-8").strip() if file.is_file() else "")
    if not run_id:
        run_id = secrets.token_hex(4)
        replace_text(file, run_id)
    return {"name": config.about.name, "dir": os.environ.get("WANDB_DIR", str(folder)), "id": run_id, "resume": "allow"}


@dataclass(slots=True)
class _Failing:
    """A failing tracker: the first error, lost calls, time of the next attempt, and the pause after that."""

    first_error: str
    num_lost: int = 0
    next_s: float = 0.0
    pause_s: float = PAUSE_S


@final
class Trackers:
    """Sends values to the trackers, on the main process only."""

    def __init__(self, accelerator: Accelerator) -> None:
        """Starts no tracker yet.

        Args:
            accelerator: holds the trackers of the configuration.
        """
        self._accelerator = accelerator
        self._failing: dict[str, _Failing] = {}
        self._not_started: dict[str, str] = {}

    @property
    def is_active(self) -> bool:
        """Whether any tracker has started."""
        return bool(self._accelerator.trackers)

    def start(self, config: RunConfig, folder: Path) -> None:
        """Starts the run in every tracker, with its name and resolved configuration.

        Args:
            config: the run's configuration.
            folder: the run folder, in which trackers write their files.
        """
        flat = {key: str(value) for key, value in config.model_dump(mode="json").items()}
        accelerator = self._accelerator
        settings: dict[str, TrackerConfig] = {tracker.name: tracker for tracker in config.runtime.trackers}
        accelerator.project_configuration.logging_dir = str(folder)
        log_with, started = accelerator.log_with, []
        for kind in log_with:  # separately: one that raises would prevent the others from starting
            accelerator.log_with, accelerator.trackers = [kind], []
            name = str(getattr(kind, "value", kind))
            tracker = settings.get(name, DEFAULT)
            uses_wandb = accelerator.is_main_process and name == "wandb"
            wandb = {**wandb_settings(config, folder), **tracker.arguments} if uses_wandb else {}
            try:
                accelerator.init_trackers(tracker.project, flat, {"wandb": wandb})
                started += accelerator.trackers
            except (Exception, SystemExit) as error:  # third-party code must not end a long run
                self._not_started[name] = f"{type(error).__name__}: {error}"[:300]
        for name, message in self._not_started.items():
            logger.warning("tracker %s could not start (%s); training continues without it", name, message)
        accelerator.log_with, accelerator.trackers = log_with, started

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Logs the values of a step.

        Args:
            values: values by metric key.
            step: step of the run.
        """
        self.call(lambda tracker: tracker.log(dict(values), step=step))

    def call(self, send: Callable[[Any], object]) -> None:
        """Calls a function with each tracker that is not currently skipped.

        Args:
            send: sends values to the tracker that it receives.
        """
        for tracker in self._accelerator.trackers:
            failing = self._failing.get(tracker.name)
            if failing is not None and time.monotonic() < failing.next_s:
                failing.num_lost += 1
            else:
                self._try_call(tracker.name, lambda tracker=tracker: send(tracker))

    def finish(self) -> list[str]:
        """Ends the run in every tracker; does not end the process group, which the caller may still use.

        Returns:
            Messages for the user about trackers that did not get everything.
        """
        for tracker in self._accelerator.trackers:
            self._try_call(tracker.name, tracker.finish)
        messages = [
            f"tracker {name} did not get everything: {failing.num_lost} call(s) were lost, the first to "
            f"{failing.first_error}; the run folder has all logged values"
            for name, failing in self._failing.items()
        ]
        messages += [
            f"tracker {name} got nothing: it could not start ({reason})" for name, reason in self._not_started.items()
        ]
        self._failing, self._not_started = {}, {}
        return messages

    def _try_call(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (Exception, SystemExit) as error:
            message = f"{type(error).__name__}: {error}"[:300]
            failing = self._failing.setdefault(name, _Failing(message))
            if not failing.num_lost:
                logger.warning("tracker %s failed (%s); training continues, and it is retried later", name, message)
            failing.num_lost += 1
            failing.next_s = time.monotonic() + failing.pause_s
            failing.pause_s = min(2 * failing.pause_s, MAX_PAUSE_S)
        else:
            if name in self._failing:
                self._failing[name].pause_s = PAUSE_S
