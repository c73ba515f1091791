"""``mmgrpo train``: a run, a mixed run of several tasks, or a series of runs that pass their weights on."""

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
    """The end of a run without an error: its folder, its status, whether this is the main process."""

    run: Path
    status: str
    main: bool


def train_one(settings: RunConfig, resume: Path | None = None) -> RunEnd:
    """Trains a single run or a mixed run.

    Args:
        settings: the configuration.
        resume: the run folder or checkpoint to resume; None: a new run.

    Returns:
        The end of the run.
    """
    with _accelerator(settings, is_new=resume is None) as accelerator:
        return (_train_mixed if settings.mixed else _train_single)(settings, accelerator, resume)


def train_series(settings: RunConfig, print_line: Callable[[str], None]) -> RunEnd:
    """Trains a new series in a new folder.

    Args:
        settings: the configuration, with a list under ``tasks``.
        print_line: prints a line.

    Returns:
        The end of the last run that was started.
    """
    from mmgrpo.distributed.job import Job
    from mmgrpo.runs.folder import claim_folder
    from mmgrpo.system.files import replace_text

    with _accelerator(settings, is_new=True) as accelerator:
        job = Job(accelerator)
        folder = job.run_on_main(lambda: claim_folder(settings))
        if job.is_main:
            replace_text(folder / SERIES, dump_config(settings))
        return _train_in_turn(settings, folder, accelerator, print_line)


def resume_series(folder: Path, overrides: list[str], print_line: Callable[[str], None]) -> RunEnd:
    """Resumes a series: finished runs are skipped, the interrupted run is resumed, the others follow.

    Args:
        folder: folder of the series.
        overrides: must be empty.
        print_line: prints a line.

    Returns:
        The end of the last run that was started.

    Raises:
        ConfigError: there are overrides.
    """
    if overrides:
        raise ConfigError(
            f"a series resumes under its own configuration, without {', '.join(overrides)}; to change one run, resume "
            "the folder of that run"
        )
    folder = folder.absolute()  # the runs refer to each other by absolute paths
    settings = settings_of(str(folder / SERIES), [], trains=True)
    with _accelerator(settings, is_new=False) as accelerator:
        return _train_in_turn(settings, folder, accelerator, print_line)


def _train_in_turn(
    settings: RunConfig, folder: Path, accelerator: Accelerator, print_line: Callable[[str], None]
) -> RunEnd:
    from mmgrpo.distributed.job import Job
    from mmgrpo.runs.folder import has_ended, remove_unstarted

    run_end = RunEnd(folder, "finished", accelerator.is_main_process)
    runs = runs_of(settings)
    for number, config in enumerate(runs):
        run = folder / config.about.name
        if has_ended(run):
            continue
        if accelerator.is_main_process:
            print_line(f"run {number + 1} of {len(runs)}: {run}")
        started = config.model_copy(update={"output": str(folder), **_policy_from(folder, runs[:number], config)})
        can_resume = Job(accelerator).run_on_main(partial(remove_unstarted, run))
        run_end = _train_single(started, accelerator, run if can_resume else None)
        if not has_ended(run):
            if accelerator.is_main_process:
                print_line(f"to resume the series: mmgrpo train --resume {folder}")
            break
    return run_end


def _policy_from(folder: Path, previous: list[RunConfig], config: RunConfig) -> dict[str, object]:
    """The policy with the weights of the previous run, if there is one and the run names no other adapter."""
    adapter = config.policy.settings.get("adapter") if config.policy else None
    if (
        not previous
        or config.policy is None
        or adapter != (previous[-1].policy or config.policy).settings.get("adapter")
    ):
        return {}
    return {"policy": config.policy.model_copy(update={"adapter": str(folder / previous[-1].about.name)})}


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


def _train_single(settings: RunConfig, accelerator: Accelerator, resume: Path | None) -> RunEnd:
    from mmgrpo.training.build import build_rewards
    from mmgrpo.training.trainer import Trainer

    rewards, prompts = build_rewards(settings.rewards), prompts_of(settings)
    trainer = Trainer(None, rewards, prompts, settings, accelerator=accelerator, resume=resume)
    return RunEnd(trainer.train(), trainer.status, accelerator.is_main_process)


def _train_mixed(settings: RunConfig, accelerator: Accelerator, resume: Path | None) -> RunEnd:
    from mmgrpo.training.mixed import MixedTrainer

    trainer = MixedTrainer(settings, accelerator=accelerator, resume=resume)
    return RunEnd(trainer.train(), trainer.status, accelerator.is_main_process)
