"""Which runs it takes to compare methods on a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import dump_config, load_config, shipped
from mmgrpo.config.parts import require_single
from mmgrpo.config.registry import suggestion
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.system.files import replace_text, writing

RUNS, CONFIGURATIONS, LOGS = "runs", "configs", "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonTrial:
    """A run of a comparison.

    Attributes:
        method: what it is called; empty: the warm-up that the methods of a seed share.
        seed: of everything that is drawn.
        config: how it trains.
        root: the comparison's folder.
    """

    method: str
    seed: int
    config: RunConfig
    root: Path

    @property
    def name(self) -> str:
        """Of its run folder and its files."""
        return f"{self.method or 'warm-up'}-{self.seed}"

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return self.root / RUNS / self.name

    @property
    def file(self) -> Path:
        """Its configuration."""
        return self.root / CONFIGURATIONS / f"{self.name}.yaml"

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.root / LOGS / f"{self.name}.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The runs of a comparison.

    Attributes:
        on: the task's configuration.
        overrides: what lies over every run.
        methods: what is compared, by the names that they are called by.
        warmups: runs whose weights the methods of a seed begin with; none where each run warms up by itself.
        trials: a run of each method and seed; the seeds of a method follow each other.
        root: the folder.
    """

    on: str
    overrides: tuple[str, ...]
    methods: tuple[str, ...]
    warmups: tuple[ComparisonTrial, ...]
    trials: tuple[ComparisonTrial, ...]
    root: Path

    @property
    def runs(self) -> tuple[ComparisonTrial, ...]:
        """All of them, in an order in which each finds what it needs: a seed of every method, then the next."""
        return (*self.warmups, *sorted(self.trials, key=lambda trial: trial.seed))


def plan_comparison(
    methods: Sequence[str], on: str, *, num_seeds: int, overrides: Sequence[str] = (), root: Path
) -> Comparison:
    """What is to be run.

    A method is merged on top of the task: what its file does not state is as the task has it. A method that the task
    includes is left out first, so that every run has one method; where the task puts published values of it in force,
    such as its batch and learning rate, these stay. Where the task begins with a
    warm-up and trains every weight, the warm-up is run once a seed, and the methods begin with its weights.

    Args:
        methods: names of shipped methods, or configurations of any kind.
        on: the task, a configuration that can be run.
        num_seeds: how many seeds, from the task's own on.
        overrides: ``a.b=c``, over the task and every method.
        root: the comparison's folder.

    Returns:
        The runs, with their configurations resolved.

    Raises:
        ConfigError: a method comes twice, is not for the task's policy, or a configuration is wrong.
    """
    sources = {_label(name): _source(name) for name in methods}
    if len(sources) < len(methods):
        raise ConfigError(f"a method comes twice in {', '.join(methods)}; give each once, under a name of its own")
    base = load_config(on, overrides)
    require_single(base)
    seeds = range(base.seed, base.seed + num_seeds)
    configs = {label: _over_task(on, source, overrides) for label, source in sources.items()}
    shares = base.warmup is not None and _trains_every_weight(base)
    warmups = [_trial("", seed, _warmup_alone(base), root) for seed in seeds] if shares else []
    begins: list[ComparisonTrial | None] = [*warmups] if warmups else [None] * num_seeds
    trials = [
        _trial(label, seed, config if warmup is None else _after(config, warmup), root)
        for label, config in configs.items()
        for seed, warmup in zip(seeds, begins, strict=True)
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
        DataError: the folder holds another comparison's runs.
        OutputError: it cannot be written.
    """
    texts = {trial.file: dump_config(trial.config) for trial in comparison.runs}
    for path, text in texts.items():
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise DataError(
                f"{comparison.root} holds a comparison with other settings ({path.name} differs); give the settings "
                "of then to go on with it, or another folder: --out FOLDER"
            )
    with writing(comparison.root):
        for folder in (RUNS, CONFIGURATIONS, LOGS):
            (comparison.root / folder).mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        replace_text(path, text)


def _source(name: str) -> str:
    methods = {one.removeprefix("methods/"): one for one in shipped("methods")}
    if name in methods:
        return methods[name]
    if "/" not in name and not Path(name).is_file():
        raise ConfigError(f"no method {name!r}{suggestion(name, methods)}")
    return name


def _label(name: str) -> str:
    return Path(name).name.removesuffix(".yaml")


def _over_task(on: str, source: str, overrides: Sequence[str]) -> RunConfig:
    try:
        return load_config(on, overrides, laid_over=[source])
    except ConfigError as error:
        raise ConfigError(f"{source} over {on}: {error}") from None


def _trains_every_weight(config: RunConfig) -> bool:
    return config.policy is not None and config.policy.numbers.get("lora") is None


def _warmup_alone(base: RunConfig) -> RunConfig:
    return base.model_copy(update={"steps": 0, "evaluation": None, "watchdog": None})


def _after(config: RunConfig, warmup: ComparisonTrial) -> RunConfig:
    assert config.policy is not None
    policy = config.policy.model_copy(update={"adapter": str(warmup.folder)})
    return config.model_copy(update={"policy": policy, "warmup": None})


def _trial(method: str, seed: int, config: RunConfig, root: Path) -> ComparisonTrial:
    trial = ComparisonTrial(method=method, seed=seed, config=config, root=root)
    own = {"seed": seed, "name": trial.name, "output": str(root / RUNS)}
    return ComparisonTrial(method=method, seed=seed, config=config.model_copy(update=own), root=root)
