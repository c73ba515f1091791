"""Plans the runs of a comparison of methods on a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import dump_config, load_config, packaged, shipped
from mmgrpo.config.parts import require_single
from mmgrpo.config.registry import suggestion
from mmgrpo.config.sections import updated
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.system.files import output_errors, replace_text

RUNS, CONFIGURATIONS, LOGS = "runs", "configs", "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonTrial:
    """A run of a comparison.

    Attributes:
        method: label of the method; empty: the warm-up that the methods of a seed share.
        seed: random seed.
        config: the configuration.
        root: folder of the comparison.
    """

    method: str
    seed: int
    config: RunConfig
    root: Path

    @property
    def name(self) -> str:
        """Name of the run folder and the files."""
        return f"{self.method or 'warm-up'}-{self.seed}"

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.root / RUNS / self.name

    @property
    def file(self) -> Path:
        """The configuration file."""
        return self.root / CONFIGURATIONS / f"{self.name}.yaml"

    @property
    def log(self) -> Path:
        """The log file."""
        return self.root / LOGS / f"{self.name}.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The runs of a comparison.

    Attributes:
        on: name of the task's configuration.
        overrides: ``a.b=c``, for every run.
        methods: labels of the methods.
        warmups: warm-up runs per seed, whose weights the methods start from; empty if each run has its own warm-up.
        trials: a run per method and seed, ordered by method.
        root: folder of the comparison.
    """

    on: str
    overrides: tuple[str, ...]
    methods: tuple[str, ...]
    warmups: tuple[ComparisonTrial, ...]
    trials: tuple[ComparisonTrial, ...]
    root: Path

    @property
    def runs(self) -> tuple[ComparisonTrial, ...]:
        """All runs in order of execution: the warm-ups, then every method of a seed before the next seed."""
        return (*self.warmups, *sorted(self.trials, key=lambda trial: trial.seed))


def plan_comparison(
    methods: Sequence[str], on: str, *, num_seeds: int, overrides: Sequence[str] = (), root: Path
) -> Comparison:
    """Plans a comparison.

    A method is merged on top of the task, which keeps all other settings. A method that the task includes is removed
    first, so every run has one method; published values of it that the task enables, such as its batch size and
    learning rate, remain. If the task has a warm-up and trains every weight, the warm-up runs once per seed, and the
    methods start from its weights.

    Args:
        methods: names of shipped methods, or paths of configurations.
        on: the task, a complete configuration.
        num_seeds: number of seeds, starting at the seed of the task.
        overrides: ``a.b=c``, for the task and every method.
        root: folder of the comparison.

    Returns:
        The runs, with resolved configurations.

    Raises:
        ConfigError: a method is repeated, does not fit the task's policy, or a configuration is not valid.
    """
    sources = {_label(name): _source(name) for name in methods}
    if len(sources) < len(methods):
        raise ConfigError(f"a method is repeated in {', '.join(methods)}; pass each once, under a unique name")
    base = load_config(on, overrides)
    require_single(base)
    seeds = range(base.seed, base.seed + num_seeds)
    configs = {label: _over_task(on, source, overrides) for label, source in sources.items()}
    has_shared_warmup = base.update.warmup is not None and _trains_every_weight(base)
    warmups = [_trial("", seed, _warmup_only(base), root) for seed in seeds] if has_shared_warmup else []
    initial_runs: list[ComparisonTrial | None] = [*warmups] if warmups else [None] * num_seeds
    trials = [
        _trial(label, seed, config if warmup is None else _after(config, warmup), root)
        for label, config in configs.items()
        for seed, warmup in zip(seeds, initial_runs, strict=True)
    ]
    return Comparison(
        on=on,
        overrides=tuple(overrides),
        methods=tuple(sources),
        warmups=tuple(warmups),
        trials=tuple(trials),
        root=root,
    )


def write_configurations(comparison: Comparison) -> None:
    """Writes the configuration of every run.

    Args:
        comparison: the runs.

    Raises:
        DataError: the folder has a comparison with other settings.
        OutputError: the folder cannot be written.
    """
    texts = {trial.file: dump_config(trial.config) for trial in comparison.runs}
    for path, text in texts.items():
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise DataError(
                f"{comparison.root} has a comparison with other settings ({path.name} differs); use its settings to "
                "resume it, or another folder: --out FOLDER"
            )
    with output_errors(comparison.root):
        for folder in (RUNS, CONFIGURATIONS, LOGS):
            (comparison.root / folder).mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        replace_text(path, text)


def _source(name: str) -> str:
    methods = {include.removeprefix("methods/"): include for include in (*shipped("methods"), *packaged())}
    if name in methods:
        return methods[name]
    if "/" not in name and not Path(name).is_file():
        raise ConfigError(f"no method {name!r}{suggestion(name, methods)}")
    return name


def _label(name: str) -> str:
    return Path(name).name.removesuffix(".yaml")


def _over_task(on: str, source: str, overrides: Sequence[str]) -> RunConfig:
    try:
        return load_config(on, overrides, methods=[source])
    except ConfigError as error:
        raise ConfigError(f"{source} over {on}: {error}") from None


def _trains_every_weight(config: RunConfig) -> bool:
    return config.policy is not None and config.policy.settings.get("lora") is None


def _warmup_only(base: RunConfig) -> RunConfig:
    return base.model_copy(update={"steps": 0, "evaluation": None})


def _after(config: RunConfig, warmup: ComparisonTrial) -> RunConfig:
    assert config.policy is not None
    policy = config.policy.model_copy(update={"adapter": str(warmup.folder)})
    return updated(config.model_copy(update={"policy": policy}), "update.warmup", None)


def _trial(method: str, seed: int, config: RunConfig, root: Path) -> ComparisonTrial:
    trial = ComparisonTrial(method=method, seed=seed, config=config, root=root)
    named = updated(config, "about.name", trial.name)
    placed = named.model_copy(update={"seed": seed, "output": str(root / RUNS)})
    return ComparisonTrial(method=method, seed=seed, config=placed, root=root)
