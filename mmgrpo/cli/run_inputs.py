"""The inputs of a command: the configuration, in any of its forms, the prompts and the policy."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.system.console import PlainConsole
from mmgrpo.system.extras import TRACKERS_KEY, require_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mmgrpo.config import RunConfig
    from mmgrpo.distributed.job import Job
    from mmgrpo.policy import Policy
    from mmgrpo.training.evaluation import EvaluationResult
    from mmgrpo.training.held_out_sampling import HeldOutSampler
    from mmgrpo.training.task_chain import TaskLink
    from mmgrpo.types import Prompt


SERIES = "series.yaml"
"""File of the configuration in the folder of a series."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The configuration of a single run, or of a task of a mixed run.

    Attributes:
        settings: the configuration.
        before: that of the task that generates its prompts; None: the prompts are those of the configuration.
    """

    settings: RunConfig
    before: TaskSettings | None = None


def settings_of(
    config: str,
    overrides: list[str] | None,
    *,
    computes: bool = True,
    trust: bool = False,
    trains: bool = False,
) -> RunConfig:
    """The configuration of a file, a shipped name, a run folder or a checkpoint, with the overrides applied.

    Args:
        config: path or name.
        overrides: ``a.b=c``.
        computes: whether the command loads torch and the model libraries; threads and warnings are set first.
        trust: whether someone else's run folder may name code and servers.
        trains: whether the command trains, which requires the configured trackers to be installed, and rewards and
            environments to take their settings.

    Returns:
        The configuration.

    Raises:
        ConfigError: the configuration does not exist, is malformed, or belongs to an untrusted run.
        UnknownNameError: the command trains and a reward or the environment does not exist.
        MissingPackageError: the command trains and a tracker is not installed.
    """
    from mmgrpo.config.loading import load_config
    from mmgrpo.config.parts import singles_of
    from mmgrpo.docgen.signatures import require_settings

    file = _config_file(config)
    if is_run(config) or _is_of_run(file):
        from mmgrpo.runs.trust import require_trusted

        require_trusted(Path(file), trust=trust)
    settings = load_config(file, overrides or [])
    if trains:
        require_installed(settings.runtime.tracker_names, TRACKERS_KEY)
        for single in singles_of(settings):
            require_settings(single)
    if computes:
        _require_policy_settings(settings)
        _print_loading(settings)
        _silence_libraries()
        _set_threads(settings.runtime.threads)
    return settings


def single_settings_of(
    config: str, overrides: list[str] | None, task: str | None = None, *, trust: bool = False
) -> RunConfig:
    """The configuration of a single run, or of one task of a mixed run.

    Raises ConfigError for a series, for a mixed run without a task name, and for an unknown task.
    """
    return _single_task(settings_of(config, overrides, trust=trust), task)


def prompt_of_command(
    settings: RunConfig, text: str, columns: Mapping[str, object], *, images: Sequence[Path], audios: Sequence[Path]
) -> Prompt:
    """The prompt of the command line, parsed like a row of the prompts. Raises DataError for missing media."""
    from mmgrpo.data.prompt_rows import prompt_of_row

    media = {"images": list(map(str, images)), "audios": list(map(str, audios))}
    row = {"prompt": text, **{name: paths for name, paths in media.items() if paths}, **columns}
    image_columns = settings.prompts.image_columns if settings.prompts else ()
    where = "the prompt of the command line"
    return prompt_of_row(row, "prompt", where=where, folder=None, image_columns=image_columns)


def task_settings_of(
    config: str, overrides: list[str] | None, task: str | None = None, *, trust: bool = False
) -> TaskSettings:
    """As ``single_settings_of``, with the tasks before a task.

    Raises ConfigError as that, and for a task without the configuration of the task before it.
    """
    settings = settings_of(config, overrides, trust=trust)
    return _with_tasks_before(_single_task(settings, task), _task_loader(config, settings, trust=trust))


def evaluated_settings_of(
    config: str, overrides: list[str] | None, task: str | None, *, trust: bool = False
) -> dict[str, TaskSettings]:
    """The configurations with an evaluation: task name -> configuration; the name is empty for a single run.

    Raises ConfigError if none has an evaluation, and as ``task_settings_of``.
    """
    from mmgrpo.config.parts import tasks_of

    settings = settings_of(config, overrides, trust=trust)
    tasks = tasks_of(settings) if settings.mixed and task is None else {"": _single_task(settings, task)}
    evaluated = {name: config for name, config in tasks.items() if config.held_out is not None}
    if not evaluated:
        raise ConfigError("the configuration has no evaluation: section; set evaluation.prompts to held-out prompts")
    config_of = _task_loader(config, settings, trust=trust)
    return {name: _with_tasks_before(task_settings, config_of) for name, task_settings in evaluated.items()}


def _with_tasks_before(settings: RunConfig, config_of: Callable[[str], RunConfig]) -> TaskSettings:
    role = settings.rollout.task
    if role is None or role.after is None:
        return TaskSettings(settings)
    return TaskSettings(settings, _with_tasks_before(config_of(role.after), config_of))


def _task_loader(config: str, settings: RunConfig, *, trust: bool) -> Callable[[str], RunConfig]:
    """Loads a task by its name: of a mixed run, or from the folder next to that of a task."""
    from mmgrpo.config.parts import tasks_of

    def sibling_settings(name: str) -> RunConfig:
        from mmgrpo.config.loading import load_config
        from mmgrpo.runs.trust import require_trusted

        file = Path(_config_file(config)).absolute().parent.parent / name / "config.yaml"
        if not file.is_file():
            raise ConfigError(
                f"{config} is a task whose prompts the task {name} generates, and {file} is missing: name the "
                "configuration or folder of the mixed run, with --task; or set rollout.task=null to use the prompts "
                "unchanged"
            )
        require_trusted(file, trust=trust)
        return load_config(file)

    return tasks_of(settings).__getitem__ if settings.mixed else sibling_settings


def _single_task(settings: RunConfig, task: str | None) -> RunConfig:
    from mmgrpo.config.parts import require_single, tasks_of

    if settings.mixed and task is None:
        raise ConfigError(f"this is a mixed run of the tasks {', '.join(settings.mixed)}: choose one with --task")
    if task is not None:
        tasks = tasks_of(settings)
        if task not in tasks:
            raise ConfigError(f"--task {task}: unknown task; valid tasks: {', '.join(tasks) or 'none'}")
        settings = tasks[task]
    require_single(settings, mixed=True)
    return settings


def _require_policy_settings(settings: RunConfig) -> None:
    """Raises ConfigError for wrong settings of mmgrpo's policies, which can be checked before torch is imported."""
    from mmgrpo.config.parts import tasks_of
    from mmgrpo.config.registry import names
    from mmgrpo.config.validating import policy_settings

    for name, config in (tasks_of(settings) or {"": settings}).items():
        if config.policy is None or config.policy.name not in names("settings"):
            continue
        try:
            policy_settings(config.policy)
        except ConfigError as error:
            raise ConfigError(f"tasks.{name}: {error}" if name else str(error)) from None


def print_importing() -> None:
    """Prints a line before a command imports torch and the model libraries, which takes seconds to minutes."""
    if "torch" not in sys.modules and os.environ.get("RANK", "0") == "0":
        PlainConsole(stderr=True).print_line("loading the libraries ...")


def _print_loading(settings: RunConfig) -> None:
    """Prints a line before the imports, which take seconds; rank 0 only."""
    if os.environ.get("RANK", "0") != "0":
        return
    names = "the libraries"
    if settings.policy is not None:
        names += f" and {settings.policy.settings.get('model', settings.policy.name)}"
    console = PlainConsole(stderr=True)
    console.print_line(console.wrap(f"loading {names} ...".split(" "), " ", indent=0))


def _silence_libraries() -> None:
    """Disables progress bars without a terminal, all but those of downloads with one, and FutureWarnings."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", category=FutureWarning)
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    are_downloads_silent = are_progress_bars_disabled()
    disable_progress_bar()  # bars of reading model files; this call disables those of downloads too
    if not are_downloads_silent:
        enable_progress_bars()


def is_series(path: str | Path) -> bool:
    """Whether a path is the folder of a series."""
    return os.path.isfile(os.path.join(path, SERIES))


def is_run(config: str) -> bool:
    """Whether a path is a run folder or a checkpoint, by the files in it."""
    return any(os.path.isfile(os.path.join(config, file)) for file in ("config.yaml", "state.json"))


def _is_of_run(file: str | Path) -> bool:
    """Whether a configuration file belongs to a run folder, which has run.json or checkpoints next to it."""
    path = Path(file)
    return path.name == "config.yaml" and any((path.parent / name).exists() for name in ("run.json", "checkpoints"))


def _config_file(config: str) -> str | Path:
    """The configuration file; of a run folder or checkpoint, the config.yaml of the run."""
    if is_series(config):
        runs = ", ".join(str(path.parent) for path in sorted(Path(config).glob("*/config.yaml")))
        raise ConfigError(f"{config} is the folder of a series; use one of its runs: {runs or 'none has started'}")
    if not is_run(config):
        return config
    print_importing()
    from mmgrpo.runs.resuming import config_file_of

    return config_file_of(Path(config))


def _set_threads(threads: int | None) -> None:
    if threads is None:
        return
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import torch

    torch.set_num_threads(threads)


def prompts_of(settings: RunConfig) -> list[Prompt]:
    """The prompts of the ``prompts:`` section. Raises ConfigError without one, DataError for missing files."""
    from mmgrpo.data.prompt_loading import load_prompts_of, require_source

    if settings.prompts and settings.evaluation is not None and settings.evaluation.prompts is not None:
        require_source(settings.evaluation.prompts, key="evaluation.prompts", note=settings.about.note)
    return load_prompts_of(settings.prompts, note=settings.about.note)


def resumed_settings(resume: Path, config: str | None, overrides: list[str], *, computes: bool = True) -> RunConfig:
    """The configuration to resume a run under: the run's or another, with overrides; raises as ``settings_of``."""
    print_importing()
    from mmgrpo.runs.resuming import allowed_config, config_file_of

    if config is not None and "=" in config and not Path(config).is_file():
        config, overrides = None, [config, *overrides]
    source = config or str(config_file_of(resume))
    settings = settings_of(source, overrides, computes=computes, trust=True, trains=True)  # training runs its code
    return allowed_config(resume, settings).config  # reports invalid changes before a model is loaded


def policy_of(settings: RunConfig, checkpoint: Path | None) -> Policy:
    """The policy on the device of the machine, with the weights of a run or checkpoint if there is one."""
    import torch

    from mmgrpo.runs.resuming import policy_weights_folder
    from mmgrpo.training.build import build_policy

    policy = build_policy(settings, settings.runtime.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if checkpoint is not None:
        policy.load(policy_weights_folder(checkpoint))
    return policy


def evaluation_of(task: TaskSettings, checkpoint: Path | None) -> EvaluationResult | None:
    """The evaluation of the policy, with the weights of a run or checkpoint if there is one; None except on the main
    process.
    """
    from mmgrpo.data.prompt_loading import load_prompts_of
    from mmgrpo.scoring import Scorer
    from mmgrpo.training.build import build_rewards, exchange_plan
    from mmgrpo.training.evaluation import evaluate

    settings, config = task.settings, task.settings.held_out
    assert config is not None
    scorer = Scorer(build_rewards(config.rewards or settings.rewards), max_failure_frac=1.0)
    prompts = load_prompts_of(config.prompts, key="evaluation.prompts", note=settings.about.note)
    job = job_of(settings)  # first: selects the GPU
    policy, plan = policy_of(settings, checkpoint), exchange_plan(settings)
    return evaluate(policy, prompts, scorer, config, sampler_of(task, checkpoint, job), plan=plan)


def job_of(settings: RunConfig) -> Job:
    """The processes of a command, without trackers."""
    from mmgrpo.config.sections import updated
    from mmgrpo.distributed.accelerator import make_accelerator
    from mmgrpo.distributed.job import Job

    return Job(make_accelerator(updated(settings, "runtime.trackers", ())))


def sampler_of(task: TaskSettings, checkpoint: Path | None, job: Job) -> HeldOutSampler:
    """How a command samples prompts: by the turns of ``rollout.strategy``, or after the samples of the tasks before.

    Args:
        task: the configuration.
        checkpoint: with the weights of the task, next to those of the tasks before; None: those of the base models.
        job: the processes.

    Returns:
        The sampler.
    """
    from mmgrpo.algorithm import Algorithm
    from mmgrpo.training.task_chain import held_out_sampler

    return held_out_sampler(Algorithm.of(task.settings), job, _task_link(task, checkpoint))


def _task_link(task: TaskSettings, checkpoint: Path | None) -> TaskLink | None:
    """The policies of the tasks before, at the same checkpoint; None for a task with separate prompts."""
    from mmgrpo.algorithm import Algorithm
    from mmgrpo.runs.checkpoint import is_checkpoint
    from mmgrpo.runs.resuming import run_folder_of
    from mmgrpo.training.build import exchange_plan
    from mmgrpo.training.task_chain import TaskLink

    if task.before is None:
        return None
    leader, at = task.before.settings, None
    if checkpoint is not None:
        folder = run_folder_of(checkpoint).parent / leader.about.name
        at = folder / "checkpoints" / checkpoint.name if is_checkpoint(checkpoint) else folder
    policy, before = policy_of(leader, at), _task_link(task.before, at)
    return TaskLink(policy, Algorithm.of(task.settings), plan=exchange_plan(leader), before=before)


def weights_for(config: str, checkpoint: Path | None, task: str | None = None, *, best: bool = False) -> Path | None:
    """The checkpoint to load: ``checkpoint`` if set, else ``config`` where it is a run folder.

    Args:
        config: the CONFIG argument of the command.
        checkpoint: the --checkpoint option; for a mixed run its folder, in which the task's folder is used.
        task: task of a mixed run.
        best: whether to use the best checkpoint of the run.

    Returns:
        A checkpoint or run folder; None: the base model.

    Raises:
        ConfigError: ``best`` without a run.
        CheckpointError: the run keeps no best checkpoint.
    """
    path = checkpoint or (Path(config) if is_run(config) else None)
    if path is None:
        if best:
            raise ConfigError(f"--best needs a run, but {config} is no run folder: pass one, or --checkpoint RUN")
        PlainConsole(stderr=True).print_line(
            "note: the weights are those of the base model, neither warmed up nor trained"
        )
        return None
    path = path / task if task and (path / task / "config.yaml").is_file() else path
    if best:
        from mmgrpo.runs.best import best_checkpoint

        return best_checkpoint(path)
    return path
