"""The trackers of a run, none of which ends it: one that is down is said, left alone for a while, and tried again."""

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
from mmgrpo.system.files import replace_text

logger = logging.getLogger(__name__)

PAUSE_S, MAX_PAUSE_S = 30.0, 900.0
"""How long one that failed is left alone at first, and at most: a call of one that is down may take minutes."""


WANDB_ID = "wandb-id.txt"
"""The file of a run folder with the id of its run at wandb."""


def wandb_settings(config: RunConfig, folder: Path) -> dict[str, str]:
    """Arguments of ``wandb.init``: a run that resumes continues its own run there, by an id that its folder keeps.

    Args:
        config: of the run.
        folder: of the run, into which the id is written the first time.

    Returns:
        Name, folder, id and how to resume.

    Raises:
        OutputError: the id cannot be written.
    """
    file = folder / WANDB_ID
    run_id = os.environ.get("WANDB_RUN_ID") or (file.read_text(encoding="utf-8").strip() if file.is_file() else "")
    if not run_id:
        run_id = secrets.token_hex(4)
        replace_text(file, run_id)
    return {"name": config.name, "dir": os.environ.get("WANDB_DIR", str(folder)), "id": run_id, "resume": "allow"}


@dataclass(slots=True)
class _Failing:
    """A tracker that failed: how often, when it is tried next, and how long after that."""

    first: str
    num_lost: int = 0
    next_s: float = 0.0
    pause_s: float = PAUSE_S


@final
class Trackers:
    """What is told to the trackers, on the main process alone."""

    def __init__(self, accelerator: Accelerator) -> None:
        """Begins nothing yet.

        Args:
            accelerator: has the trackers that a run asked for.
        """
        self._accelerator = accelerator
        self._failing: dict[str, _Failing] = {}
        self._absent: dict[str, str] = {}

    @property
    def are_there(self) -> bool:
        """Whether any has begun."""
        return bool(self._accelerator.trackers)

    def start(self, config: RunConfig, folder: Path) -> None:
        """Begins the run in every tracker, under its name and with its resolved configuration.

        Args:
            config: of the run.
            folder: of the run, where trackers put files of their own.
        """
        flat = {key: str(value) for key, value in config.model_dump(mode="json").items()}
        accelerator = self._accelerator
        uses_wandb = accelerator.is_main_process and "wandb" in config.tracking.trackers
        wandb = wandb_settings(config, folder) if uses_wandb else {}
        accelerator.project_configuration.logging_dir = str(folder)
        asked, begun = accelerator.log_with, []
        for one in asked:  # one by one: the first that raises would keep the others from beginning
            accelerator.log_with, accelerator.trackers = [one], []
            try:
                accelerator.init_trackers(config.tracking.project, flat, {"wandb": wandb})
                begun += accelerator.trackers
            except (Exception, SystemExit) as error:  # foreign code, beside a run of days
                self._absent[str(getattr(one, "value", one))] = f"{type(error).__name__}: {error}"[:300]
        for name, said in self._absent.items():
            logger.warning("tracker %s could not begin (%s); training goes on without it", name, said)
        accelerator.log_with, accelerator.trackers = asked, begun

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers of a step.

        Args:
            values: by their names.
            step: of the run.
        """
        self.tell(lambda tracker: tracker.log(dict(values), step=step))

    def tell(self, say: Callable[[Any], object]) -> None:
        """Hands each tracker that is not left alone to a function.

        Args:
            say: tells it something.
        """
        for tracker in self._accelerator.trackers:
            failing = self._failing.get(tracker.name)
            if failing is not None and time.monotonic() < failing.next_s:
                failing.num_lost += 1
            else:
                self._tried(tracker.name, lambda tracker=tracker: say(tracker))

    def finish(self) -> list[str]:
        """Ends the run in every tracker; the processes stay together, for whatever the caller does next.

        Returns:
            What a person should be told: the trackers that did not get everything.
        """
        for tracker in self._accelerator.trackers:
            self._tried(tracker.name, tracker.finish)
        said = [
            f"tracker {name} did not get everything: {one.num_lost} call(s) were lost, the first to {one.first}; the "
            "run folder has all that was logged"
            for name, one in self._failing.items()
        ]
        said += [f"tracker {name} got nothing: it could not begin ({why})" for name, why in self._absent.items()]
        self._failing, self._absent = {}, {}
        return said

    def _tried(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {error}"[:300]
            failing = self._failing.setdefault(name, _Failing(said))
            if not failing.num_lost:
                logger.warning("tracker %s failed (%s); training goes on, and it is tried again later", name, said)
            failing.num_lost += 1
            failing.next_s = time.monotonic() + failing.pause_s
            failing.pause_s = min(2 * failing.pause_s, MAX_PAUSE_S)
        else:
            if name in self._failing:
                self._failing[name].pause_s = PAUSE_S
