"""What a command works on: the configuration it was given in any of its forms, its prompts, and the policy."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.system.console import PlainConsole
from mmgrpo.system.extras import TRACKERS_KEY, require_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mmgrpo.config import RunConfig
    from mmgrpo.policy import Policy
    from mmgrpo.training.evaluation import Judged
    from mmgrpo.types import Prompt


SERIES = "series.yaml"
"""In the folder of a series: its configuration."""


def settings_of(
    config: str,
    overrides: list[str] | None,
    *,
    computes: bool = True,
    trust: bool = False,
    trains: bool = False,
) -> RunConfig:
    """The configuration that a file, a shipped name, a run folder or a checkpoint names, with overrides over it.

    Args:
        config: what names it.
        overrides: ``a.b=c``.
        computes: whether the command goes on to load libraries that compute, which are then settled first.
        trust: whether a run folder of others may name code and servers.
        trains: whether the command trains, for which its trackers have to be installed.

    Returns:
        The configuration.

    Raises:
        ConfigError: there is none, it is malformed, or it is a stranger's run that is not trusted.
        MissingPackageError: the command trains, and a tracker is not installed.
    """
    from mmgrpo.config.loading import load_config

    file = _config_file(config)
    if is_run(config) or _is_of_run(file):
        from mmgrpo.runs.trust import require_trusted

        require_trusted(Path(file), trust=trust)
    settings = load_config(file, overrides or [])
    if trains:
        require_installed(settings.tracking.trackers, TRACKERS_KEY)
    if computes:
        _say_loading(settings)
        _settle_libraries()
        _set_threads(settings.runtime.threads)
    return settings


def single_settings_of(
    config: str, overrides: list[str] | None, task: str | None = None, *, trust: bool = False
) -> RunConfig:
    """The same, where a single run is meant: of a mixed one the named task.

    Raises ConfigError for a series, for a mixed run of which no task is named, and for a task that there is not.
    """
    return _one_of(settings_of(config, overrides, trust=trust), task)


def shown_prompt(
    settings: RunConfig, text: str, columns: Mapping[str, object], *, images: Sequence[Path], audios: Sequence[Path]
) -> Prompt:
    """What is asked by hand, read as a row of the prompts is. Raises DataError for media that are not there."""
    from mmgrpo.data.rows import prompt_of_row

    media = {"images": list(map(str, images)), "audios": list(map(str, audios))}
    row = {"prompt": text, **{name: paths for name, paths in media.items() if paths}, **columns}
    pictures = settings.prompts.pictures if settings.prompts else ()
    return prompt_of_row(row, "prompt", where="what is asked", folder=None, pictures=pictures)


def evaluated_settings_of(
    config: str, overrides: list[str] | None, task: str | None, *, trust: bool = False
) -> dict[str, RunConfig]:
    """The same, or those of all tasks of a mixed run by their names, where there is something to evaluate.

    Raises ConfigError if there is nothing, and as ``single_settings_of``.
    """
    from mmgrpo.config.parts import tasks_of

    settings = settings_of(config, overrides, trust=trust)
    each = tasks_of(settings) if settings.tasks and task is None else {"": _one_of(settings, task)}
    found = {name: one for name, one in each.items() if one.evaluation is not None}
    if not found:
        raise ConfigError("the configuration has no evaluation: section; say which prompts to judge")
    return found


def _one_of(settings: RunConfig, task: str | None) -> RunConfig:
    from mmgrpo.config.parts import require_single, tasks_of

    if settings.tasks and task is None:
        raise ConfigError(f"this is a mixed run of {', '.join(settings.tasks)}: name one by --task")
    if task is not None:
        tasks = tasks_of(settings)
        if task not in tasks:
            raise ConfigError(f"--task {task}: there is no such task; those are {', '.join(tasks) or 'none'}")
        settings = tasks[task]
    require_single(settings, mixed=True)
    return settings


def say_importing() -> None:
    """Before a command imports libraries that take seconds, or on a busy machine minutes, to load."""
    if "torch" not in sys.modules and os.environ.get("RANK", "0") == "0":
        PlainConsole(stderr=True).say("loading the libraries ...")


def _say_loading(settings: RunConfig) -> None:
    """At once, as the libraries alone take seconds to be imported; of several processes the first says it."""
    if os.environ.get("RANK", "0") != "0":
        return
    what = "the libraries"
    if settings.policy is not None:
        what += f" and {settings.policy.numbers.get('model', settings.policy.name)}"
    console = PlainConsole(stderr=True)
    console.say(console.folded(f"loading {what} ...".split(" "), " ", indent=0))


def _settle_libraries() -> None:
    """No bars where nobody watches, none but of downloads elsewhere, and no warnings for those who write code."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", category=FutureWarning)
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    are_downloads_silent = are_progress_bars_disabled()
    disable_progress_bar()  # of a model's files as they are read; it takes those of downloads with it
    if not are_downloads_silent:
        enable_progress_bars()


def is_series(path: str | Path) -> bool:
    """Whether it is the folder of a series."""
    return os.path.isfile(os.path.join(path, SERIES))


def is_run(config: str) -> bool:
    """Whether it is a run folder or a checkpoint, by a file that such folders hold."""
    return any(os.path.isfile(os.path.join(config, file)) for file in ("config.yaml", "state.json"))


def _is_of_run(file: str | Path) -> bool:
    """Whether a configuration's file is that of a run folder, which has its header beside it."""
    path = Path(file)
    return path.name == "config.yaml" and any((path.parent / beside).exists() for beside in ("run.json", "checkpoints"))


def _config_file(config: str) -> str | Path:
    """What names a configuration; of a run folder or checkpoint, the run's own."""
    if is_series(config):
        runs = ", ".join(str(path.parent) for path in sorted(Path(config).glob("*/config.yaml")))
        raise ConfigError(f"{config} is the folder of a series; name one of its runs: {runs or 'none has begun'}")
    if not is_run(config):
        return config
    say_importing()
    from mmgrpo.runs.resuming import config_of

    return config_of(Path(config))


def _set_threads(threads: int | None) -> None:
    if threads is None:
        return
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import torch

    torch.set_num_threads(threads)


def prompts_of(settings: RunConfig) -> list[Prompt]:
    """The prompts of its ``prompts:`` section. Raises ConfigError if there is none, DataError for missing files."""
    from mmgrpo.data.prompts import load_prompts_of, require_source

    if settings.prompts is None:
        raise ConfigError("the configuration has no prompts: section; set prompts.source to a file or dataset")
    if settings.evaluation is not None:
        require_source(settings.evaluation.prompts, key="evaluation.prompts", note=settings.note)
    return load_prompts_of(settings.prompts, note=settings.note)


def resumed_settings(resume: Path, config: str | None, overrides: list[str], *, computes: bool = True) -> RunConfig:
    """What a run is to go on under: its own configuration, or another, with overrides over it; as ``settings_of``."""
    say_importing()
    from mmgrpo.runs.resuming import allowed_config, config_of

    if config is not None and "=" in config and not Path(config).is_file():
        config, overrides = None, [config, *overrides]
    named = config or str(config_of(resume))
    settings = settings_of(
        named, overrides, computes=computes, trust=True, trains=True
    )  # to train is to run what is named
    return allowed_config(resume, settings).config  # what cannot be is said before a model is loaded


def policy_of(settings: RunConfig, checkpoint: Path | None) -> Policy:
    """The policy on the machine's device, with a run's or checkpoint's weights if one is given."""
    import torch

    from mmgrpo.runs.resuming import weights_at
    from mmgrpo.training.build import build_policy

    policy = build_policy(settings, settings.runtime.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if checkpoint is not None:
        policy.load(weights_at(checkpoint))
    return policy


def judged_by(settings: RunConfig, checkpoint: Path | None, *, trust: bool = False) -> Judged | None:
    """What its evaluation says of the policy, with a run's or checkpoint's weights if one is given.

    A task that is after another draws what that one, at the same checkpoint, would have shown it. None on all processes
    but the main one.
    """
    from mmgrpo.config import TrackingConfig
    from mmgrpo.data.prompts import load_prompts_of
    from mmgrpo.distributed.accelerator import make_accelerator
    from mmgrpo.distributed.job import Job
    from mmgrpo.scoring import Scorer
    from mmgrpo.training.build import build_rewards, exchange_plan
    from mmgrpo.training.evaluation import evaluate

    config = settings.evaluation
    assert config is not None
    judges = Scorer(build_rewards(config.rewards or settings.rewards), max_failure_frac=1.0)
    prompts = load_prompts_of(config.prompts, key="evaluation.prompts", note=settings.note)
    job = Job(make_accelerator(settings.model_copy(update={"tracking": TrackingConfig()})))  # chooses the GPU: first
    policy, plan = policy_of(settings, checkpoint), exchange_plan(settings)
    show = _shown_by(settings, checkpoint, trust=trust)
    return evaluate(policy, prompts, judges, config, job, plan=plan, show=show)


def _shown_by(
    settings: RunConfig, checkpoint: Path | None, *, trust: bool
) -> Callable[[Sequence[Prompt]], list[Prompt]] | None:
    """Prompts as the task before shows them, of one that is after another."""
    from mmgrpo.config.loading import load_config
    from mmgrpo.runs.checkpoint import is_checkpoint
    from mmgrpo.runs.resuming import config_of, run_of
    from mmgrpo.runs.trust import require_trusted
    from mmgrpo.training.following import Behind

    if settings.task is None or settings.task.after is None or checkpoint is None:
        return None
    leader = run_of(checkpoint).parent / settings.task.after
    at = leader / "checkpoints" / checkpoint.name if is_checkpoint(checkpoint) else leader
    require_trusted(config_of(leader), trust=trust)
    return Behind(policy_of(load_config(config_of(leader)), at), settings.task).show


def weights_for(config: str, checkpoint: Path | None, task: str | None = None, *, best: bool = False) -> Path | None:
    """The checkpoint to use: the one that was asked for, else the run's that stands for the configuration.

    Args:
        config: what was given.
        checkpoint: what was asked for; the folder of a mixed run is that of the task in it.
        task: of a mixed run.
        best: whether it is to be the best of the run's checkpoints.

    Returns:
        A checkpoint or run folder.

    Raises:
        ConfigError: the best is asked for where there is no run.
        CheckpointError: the run keeps no best one.
    """
    path = checkpoint or (Path(config) if is_run(config) else None)
    if path is None:
        if best:
            raise ConfigError(f"--best is of a run, and {config} is none: give its folder, or --checkpoint RUN")
        PlainConsole(stderr=True).say("note: the weights are as loaded, neither warmed up nor trained")
        return None
    path = path / task if task and (path / task / "config.yaml").is_file() else path
    if best:
        from mmgrpo.runs.best import best_checkpoint

        return best_checkpoint(path)
    return path
