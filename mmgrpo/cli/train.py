"""``mmgrpo train``: a run, tasks together in one, or a series of runs, each from the weights of the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.cli.run_inputs import SERIES, prompts_of, settings_of
from mmgrpo.config.loading import dump_config
from mmgrpo.config.parts import runs_of
from mmgrpo.errors import ConfigError

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.config import RunConfig


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A run that came to an end without an error: its folder, how it ended, whether this process talks for it."""

    run: Path
    status: str
    main: bool


def train_one(settings: RunConfig, resume: Path | None = None) -> RunEnd:
    """A single run, or a mixed one.

    Args:
        settings: its configuration.
        resume: the run folder or checkpoint that it goes on from; None: it is new.

    Returns:
        How it ended.
    """
    with _accelerator(settings, is_new=resume is None) as accelerator:
        return (_mixed if settings.tasks else _trained)(settings, accelerator, resume)


def train_series(settings: RunConfig, say: Callable[[str], None]) -> RunEnd:
    """A new series, in a folder of its own.

    Args:
        settings: its configuration, with ``runs``.
        say: is given lines to print.

    Returns:
        How the last run of it ended that was begun.
    """
    from mmgrpo.distributed.job import Job
    from mmgrpo.runs.folder import claim_folder
    from mmgrpo.system.files import replace_text

    with _accelerator(settings, is_new=True) as accelerator:
        job = Job(accelerator)
        folder = job.run_on_main(lambda: claim_folder(settings))
        if job.is_main:
            replace_text(folder / SERIES, dump_config(settings))
        return _trained_in_turn(settings, folder, accelerator, say)


def resume_series(folder: Path, overrides: list[str], say: Callable[[str], None]) -> RunEnd:
    """A series that was cut off: runs that ended stay, the one at hand goes on, the others follow.

    Args:
        folder: of the series.
        overrides: none are taken.
        say: is given lines to print.

    Returns:
        How the last run of it ended that was begun.

    Raises:
        ConfigError: there are overrides.
    """
    if overrides:
        raise ConfigError(
            f"a series goes on as it began, without {', '.join(overrides)}; for one run of it, resume that"
        )
    folder = folder.absolute()  # as the runs were told of each other
    settings = settings_of(str(folder / SERIES), [], trains=True)
    with _accelerator(settings, is_new=False) as accelerator:
        return _trained_in_turn(settings, folder, accelerator, say)


def _trained_in_turn(settings: RunConfig, folder: Path, accelerator: Accelerator, say: Callable[[str], None]) -> RunEnd:
    from mmgrpo.distributed.job import Job
    from mmgrpo.runs.folder import clear_unbegun, has_ended

    ended = RunEnd(folder, "finished", accelerator.is_main_process)
    runs = runs_of(settings)
    for number, config in enumerate(runs):
        run = folder / config.name
        if has_ended(run):
            continue
        if accelerator.is_main_process:
            say(f"run {number + 1} of {len(runs)}: {run}")
        started = config.model_copy(update={"output": str(folder), **_from(folder, runs[:number], config)})
        can_resume = Job(accelerator).run_on_main(partial(clear_unbegun, run))
        ended = _trained(started, accelerator, run if can_resume else None)
        if not has_ended(run):
            if accelerator.is_main_process:
                say(f"to go on with the series: mmgrpo train --resume {folder}")
            break
    return ended


def _from(folder: Path, before: list[RunConfig], config: RunConfig) -> dict[str, object]:
    """The policy with the weights of the run before, if there is one and the run names no others."""
    own = config.policy.numbers.get("adapter") if config.policy else None
    if not before or config.policy is None or own != (before[-1].policy or config.policy).numbers.get("adapter"):
        return {}
    return {"policy": config.policy.model_copy(update={"adapter": str(folder / before[-1].name)})}


@contextmanager
def _accelerator(settings: RunConfig, *, is_new: bool) -> Iterator[Accelerator]:
    from mmgrpo.distributed.accelerator import make_accelerator
    from mmgrpo.runs.folder import require_output

    if is_new:
        require_output(settings)
    accelerator = make_accelerator(settings)
    try:
        yield accelerator
    finally:
        accelerator.state.destroy_process_group()


def _trained(settings: RunConfig, accelerator: Accelerator, resume: Path | None) -> RunEnd:
    from mmgrpo.training.build import build_rewards
    from mmgrpo.training.trainer import Trainer

    judges, prompts = build_rewards(settings.rewards), prompts_of(settings)
    trainer = Trainer(None, judges, prompts, settings, accelerator=accelerator, resume=resume)
    return RunEnd(trainer.train(), trainer.status, accelerator.is_main_process)


def _mixed(settings: RunConfig, accelerator: Accelerator, resume: Path | None) -> RunEnd:
    from mmgrpo.training.mixed import MixedTrainer

    trainer = MixedTrainer(settings, accelerator=accelerator, resume=resume)
    return RunEnd(trainer.train(), trainer.status, accelerator.is_main_process)
