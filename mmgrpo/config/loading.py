"""YAML files, includes and ``a.b=c`` overrides into a ``RunConfig``; unknown keys are errors that name the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from mmgrpo.config import RunConfig
from mmgrpo.config.composing import METHOD, composed, is_run, method_of, overridden_by_runs, require_functions
from mmgrpo.config.parts import runs_of, tasks_of
from mmgrpo.config.registry import suggestion
from mmgrpo.config.sections import at
from mmgrpo.config.tasks import inherited_keys
from mmgrpo.config.validating import set_value, spelled_out, typed
from mmgrpo.errors import ConfigError
from mmgrpo.system.entry_points import entry_point_targets
from mmgrpo.system.folders import CONFIGS
from mmgrpo.system.targets import import_attribute
from mmgrpo.system.yamls import MAX_CHARACTERS, YamlError, dump_yaml, parse_yaml

LAUNCHES = CONFIGS / "accelerate"  # settings of accelerate, which are no runs
METHODS = (CONFIGS / "methods").resolve()
LAUNCHED = "MMGRPO_LAUNCHED"
"""Environment variable with the command that started the processes of the run."""


MAX_INCLUDED = 20
"""How deep files may include each other."""

NAMED_FUNCTIONS = (
    "rollout.strategy",
    "rollout.window",
    "rollout.tree",
    "advantage.scale",
    "advantage.combine",
    "objective.surrogate",
    "objective.aggregate",
    "objective.bound",
    "objective.step_weight",
    "prompts.sampler",
)
"""Keys of a function with its settings, of which a method may state the name and a run a number."""


MAX_FILES, MAX_ENTRIES = 5, 1000
"""Files that an error lists, and entries of a folder that it looks at."""


def load_config(
    path: str | Path, overrides: Sequence[str] | Mapping[str, Any] = (), *, methods: Sequence[str | Path] = ()
) -> RunConfig:
    """The run configuration of a file or of a shipped name such as ``quickstart/digits-image``.

    ``include:`` merges base files in order, later ones on top; the file itself overrides them, and the overrides,
    ``a.b=c`` strings (values are YAML) or a mapping of dotted keys, override both. Mappings merge, other values are
    replaced; only several methods of one ``include:`` concatenate their estimators, filters, terms, modulations,
    selections, hooks and auxiliary losses; a key ``a.b=null`` clears it.

    A run or a model, a file without a method that names a policy or a source of prompts, is merged before the methods
    of its ``include:``. A list of the file, or of an override, that drops functions of a method is an error, except
    ``[]``. Rewards of methods are added to ``rewards``.

    The override ``include=FILE``, or a list of files, adds to ``methods``; the other overrides are merged on top.

    ``use_paper_hparams: true`` in a file, or ``use_paper_hparams=true`` as an override, applies the values under
    ``about.method.paper_hparams`` of each included method on top of that method's file.

    Args:
        path: a file or a shipped name, with or without ``.yaml``.
        overrides: values merged on top of the files.
        methods: further files or shipped names merged on top of the file, in order; if one is a method, the methods
            that the file includes are left out, except for their published values where these apply.

    Returns:
        The resolved configuration.

    Raises:
        ConfigError: a file is missing or malformed, or a value is not allowed; the message names the key.
    """
    values_by_key = _parsed(overrides)
    published = values_by_key.pop("use_paper_hparams", None)
    if published is not None and not isinstance(published, bool):
        raise ConfigError(
            "the override use_paper_hparams is use_paper_hparams=true or use_paper_hparams=false, got "
            f"{published!r:.80}"
        )
    methods = [*methods, *_includes(values_by_key, Path("the override include"))]
    upper = [read_layers(find_config(name), published=published) for name in methods]
    is_compared = any(at(values, f"{METHOD}.name", None) is not None for values in upper)
    merged = read_layers(find_config(path), published=published, with_methods=not is_compared)
    runs: list[Mapping[str, Any]] = [merged] if is_compared else []
    for values in upper:
        merged = merge(merged, overridden_by_runs(values, runs))
        runs += [values] if is_run(values) else []
    method_first = sorted(values_by_key.items(), key=lambda item: item[0] != METHOD)  # null affects the rest
    for key, value in method_first:
        _require_task(merged, key)
        below = deepcopy(merged)
        set_value(merged, key.split("."), value)
        require_functions(below, merged, f"the override {key}")
    if isinstance(about := merged.get("about", {}), dict):
        merged["about"] = {"name": find_config(path).stem, **about}
    return validated(merged)


def _require_task(values: Mapping[str, Any], key: str) -> None:
    """Raises ConfigError for an override of an unknown task, which would add a task."""
    tasks, (section, *names) = values.get("tasks"), key.split(".")
    if section == "tasks" and len(names) > 1 and isinstance(tasks, Mapping) and names[0] not in tasks:
        raise ConfigError(f"{key}: there is no task {names[0]!r}{suggestion(names[0], [*tasks])}")


def validated(values: Mapping[str, Any]) -> RunConfig:
    """A ``RunConfig`` from plain values. Raises ConfigError that explains every wrong key."""
    config = typed(values)
    runs_of(config)
    tasks_of(config)
    return config


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML that ``load_config`` reads back to the same."""
    return dump_yaml(config.model_dump(mode="json"))


def find_config(name: str | Path, folder: Path | None = None) -> Path:
    """The file of a path, a shipped name, with or without ``.yaml``, or a name of another package's: ``methods/NAME``.

    The shipped name of ``configs/methods/selection/gfpo.yaml`` is ``methods/gfpo``: inner folders are left out.

    Args:
        name: the path or name.
        folder: a folder to look in first, that of the file which includes this one.

    Returns:
        An existing file.

    Raises:
        ConfigError: there is none; the nearest files of its folder and the nearest shipped names are listed.
    """
    roots = [Path(), CONFIGS] if folder is None else [folder, Path(), CONFIGS]
    for root in roots:
        for candidate in (root / name, root / f"{name}.yaml"):
            if _is_file(candidate):
                return candidate
    if (shipped_file := _shipped_files().get(str(name).removesuffix(".yaml"))) is not None:
        return shipped_file
    of_others = packaged()
    if str(name) in of_others:
        return _path_at(of_others[str(name)])
    raise ConfigError(_no_configuration(str(name), folder, [*shipped(), *of_others]))


def _no_configuration(name: str, folder: Path | None, shipped_names: Sequence[str]) -> str:
    """The message for an unknown name: the name and its nearest matches, files first."""
    directory = (folder or Path()) / Path(name).parent
    files = [str(Path(name).parent / entry) for entry in _configurations_in(directory)]
    near = [*_nearest(name, files), *_nearest(name, shipped_names)]
    message = f"no configuration {name!r:.200}: there is no such file, run folder or shipped name"
    if near:
        return f"{message}; did you mean {' or '.join(near)}?"
    location = directory if str(directory) != "." else "this folder"
    here = f"; {location} has {', '.join(files[:MAX_FILES])}" if files else ""
    return f"{message}{here}; mmgrpo recipes and mmgrpo methods list the shipped ones"


def _nearest(name: str, names: Sequence[str]) -> list[str]:
    """At most three similar names; a name without a folder is compared with names in folders too."""
    query = name[:200].lower().removesuffix(".yaml")
    by_key = {candidate.lower().removesuffix(".yaml"): candidate for candidate in reversed(names)}
    near = difflib.get_close_matches(query, by_key, n=3, cutoff=0.75)
    if not near and "/" not in query:
        by_key = {key.rpartition("/")[2]: candidate for key, candidate in by_key.items()}
        near = difflib.get_close_matches(query, by_key, n=3, cutoff=0.75)
    return [by_key[key] for key in near]


def _configurations_in(folder: Path) -> list[str]:
    """Names of the YAML files and run folders of a folder."""
    try:
        entries = sorted(folder.iterdir())[:MAX_ENTRIES]
        return [entry.name for entry in entries if entry.suffix in (".yaml", ".yml") or _is_file(entry / "config.yaml")]
    except OSError:
        return []


def packaged() -> dict[str, str]:
    """Includes from other packages, each with the ``module:attribute`` that is the path of its file."""
    return {f"methods/{name}": value for name, value in entry_point_targets("mmgrpo.methods").items()}


def _path_at(target: str) -> Path:
    path = import_attribute(target)
    if not isinstance(path, (str, Path)):
        raise ConfigError(f"the method {target!r} must be the path of a YAML file, got {type(path).__name__}")
    return Path(path)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, a folder that may not be looked into
        return False


def shipped(folder: str = "") -> list[str]:
    """Names of the configurations that come with the package, as ``train`` and ``include`` take them."""
    return sorted(name for name in _shipped_files() if not folder or name.startswith(f"{folder}/"))


@cache
def _shipped_files() -> Mapping[str, Path]:
    """The files of ``configs`` by name: the first folder and the file's name."""
    files = [path for path in sorted(CONFIGS.rglob("*.yaml")) if LAUNCHES not in path.parents]
    return {
        "/".join([*path.relative_to(CONFIGS).parts[:1], path.stem]) if path.parent != CONFIGS else path.stem: path
        for path in files
    }


def read_layers(path: Path, *, published: bool | None = None, with_methods: bool = True) -> dict[str, Any]:
    """A file merged on top of its includes.

    Args:
        path: the file.
        published: whether the values under ``about.method.paper_hparams`` apply; None: as the files state.
        with_methods: False leaves out the methods that it includes, except for published values that apply.

    Returns:
        Its values; ``about.method.paper_hparams`` is that of the uppermost method.

    Raises:
        ConfigError: a file is missing or malformed, published values are requested and there are none, or methods
            cannot be left out, as the values of one are in the file itself.
    """
    if not with_methods:
        return _without_methods(path.resolve(), published)
    merged = _layers(path.resolve(), (), {}, published)
    if published:
        _require_published(merged, "use_paper_hparams=true")
    return merged


def _without_methods(path: Path, published: bool | None) -> dict[str, Any]:
    """A file with its includes except methods. Raises ConfigError if settings without a function remain."""
    merged = _layers(path, (), {}, published, with_methods=False)
    unnamed = [
        key for key in NAMED_FUNCTIONS if isinstance(named := at(merged, key, None), dict) and "name" not in named
    ]
    if unnamed:
        raise ConfigError(
            f"{path} has settings of {', '.join(unnamed)} without the name, which an included method sets, so the file "
            "cannot be merged with other methods: add the name next to the settings, or leave them to the method"
        )
    about = at(merged, "about", None) or {}
    return {**merged, "about": {key: value for key, value in about.items() if key != "method"}}


def _require_method_alone(path: Path, values: Mapping[str, Any], *, is_included: bool) -> None:
    """Raises ConfigError for a file that contains the values of a method, as the ``config.yaml`` of a run does."""
    if not is_included or is_run(values):
        name = at(values, f"{METHOD}.name")
        raise ConfigError(
            f"{path} holds the values of {name} itself, so another method merged on top of it would mix with it: pass "
            f"the original file, which includes methods/{name}, or move the method's values to a separate file and "
            f"include that"
        )


_Cache = dict[tuple[Path, bool | None], dict[str, Any]]


def _layers(
    path: Path, above: tuple[Path, ...], cache: _Cache, published: bool | None, *, with_methods: bool = True
) -> dict[str, Any]:
    """``read_layers`` of a file included by ``above``; each file is read once, however often it is included."""
    if path in above:
        raise ConfigError(f"{path} includes itself, by way of {' -> '.join(str(p) for p in above)}")
    if len(above) > MAX_INCLUDED:
        raise ConfigError(f"{above[0]} includes files more than {MAX_INCLUDED} deep; write them together")
    if (path, published) not in cache:
        values = _read(path)
        if METHODS in path.parents and (method := method_of(values)):
            values["about"]["method"] = {"kind": path.parent.name, **method}
        use_published = values.pop("use_paper_hparams", None)
        if use_published is not None and not isinstance(use_published, bool):
            raise ConfigError(f"{path}: use_paper_hparams must be true or false, got {use_published!r:.80}")
        inner = use_published if published is None else published  # the outermost file that sets it decides
        if not with_methods and at(values, f"{METHOD}.name", None) is not None:
            _require_method_alone(path, values, is_included=bool(above))
            return dict(_published(values)) if inner else {}

        def below(names: Sequence[str]) -> dict[str, Any]:
            files = [find_config(name, path.parent).resolve() for name in names]
            layers = [_layers(file, (*above, path), cache, inner, with_methods=with_methods) for file in files]
            return composed(layers, merge)

        merged = below(_includes(values, path))
        if isinstance(values.get("tasks"), dict):
            values["tasks"] = {name: _task(task, path, below) for name, task in values["tasks"].items()}
        if use_published and with_methods:
            _require_published(merged, f"{path}: use_paper_hparams: true")
        require_functions(merged, values, str(path))
        merged = merge(merged, values)
        cache[path, published] = merge(merged, _published(values)) if inner else merged
    return cache[path, published]


def _published(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values under ``about.method.paper_hparams``."""
    published = at(values, f"{METHOD}.paper_hparams", None)
    return published if isinstance(published, Mapping) else {}


def _require_published(merged: Mapping[str, Any], source: str) -> None:
    if not _published(merged):
        raise ConfigError(
            f"{source} asks for the published values of a method, but no included file has any; leave it out, or "
            "include a method that has them (mmgrpo methods NAME shows them)"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            values = parse_yaml(file.read(MAX_CHARACTERS + 1))
    except (YamlError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of keys, got {type(values).__name__}")
    return values


def _includes(values: dict[str, Any], path: Path) -> list[str]:
    """The names under ``include``, which is taken out."""
    named = values.pop("include", None) or []
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: include must be the name of a file or a list of names, got {named!r:.80}")
    return names


def _task(values: Any, path: Path, below: Callable[[Sequence[str]], dict[str, Any]]) -> Any:
    """A task of a mixed run merged on top of its includes, without their values that the run or an earlier task
    sets."""
    if not isinstance(values, dict):
        return values
    included = below(_includes(values, path))
    for key in inherited_keys(at(values, "rollout.task", None)):
        section, _, inner = key.partition(".")
        if not inner:
            included.pop(section, None)
        elif isinstance(included.get(section), dict):
            included[section] = {name: value for name, value in included[section].items() if name != inner}
    return merge(included, values)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` over ``below``: mappings merge key by key; two mappings of different ``name`` are different things, and
    the upper one replaces the lower; a bare name is a mapping of its name alone, so that it keeps settings below of
    the same function and takes those above. ``about`` is always merged: its name is that of the run."""
    return {**below, **{key: _merged_value(key, below.get(key), value) for key, value in above.items()}}


def _merged_value(key: str, old: Any, value: Any) -> Any:
    if isinstance(old, str) and isinstance(value, dict):
        old = spelled_out(key, old)
    if not isinstance(old, dict):
        return value
    if isinstance(value, dict):
        is_same = key == "about" or "name" not in old or "name" not in value or old["name"] == value["name"]
        return merge(old, value) if is_same else value
    return old if isinstance(value, str) and old.get("name") == value else value


def _parsed(overrides: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(overrides, Mapping):
        return dict(overrides)
    return parsed_pairs(overrides, "the override", "update.optimizer.lr=1e-4")


def parsed_pairs(pairs: Sequence[str], what: str, example: str) -> dict[str, Any]:
    """The ``key=value`` pairs, values parsed as YAML. Raises ConfigError, with the name ``what``, for other texts."""
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{what} is written key=value ({example}), got {pair!r}")
        try:
            parsed[key] = parse_yaml(value)
        except YamlError as error:
            colon = "; write a space after each colon: {key: value}" if "unexpected ':'" in str(error) else ""
            raise ConfigError(f"the value of {what} {pair[:80]!r} is not valid YAML: {error}{colon}") from error
    return parsed
