"""Rules of methods: sources, scale, and what remains of a method in a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final, get_args

from mmgrpo.algorithm import Algorithm, objective_of
from mmgrpo.check_data.data_files import DataFiles, Finding, is_under, leaves, rule_of
from mmgrpo.config import AuxiliaryConfig, MethodConfig, MethodKind, RunConfig, SourceConfig, TermConfig
from mmgrpo.config.composing import CHAINS, method_of
from mmgrpo.config.loading import dump_config, load_config, shipped
from mmgrpo.config.methods import takes
from mmgrpo.config.registry import settings_type
from mmgrpo.config.sections import at, has
from mmgrpo.errors import ConfigError
from mmgrpo.explain.method_settings import method_rows
from mmgrpo.maths.surrogates import SURROGATES
from mmgrpo.policy import SupportsWindows
from mmgrpo.system.yamls import parse_yaml_1_1

DESCRIPTION = ("include", "about", "use_paper_hparams", "rewards")
"""Keys of a file that are no settings of its run, or are merged with others."""

SCALE = ("steps", "policy.call", "policy.model", "rollout.prompts_per_step", "rollout.group_size", "update")
"""Keys that a method leaves to the run."""

NO_SCALE = ("update.reference", "update.weight_sets")
"""Keys under ``SCALE`` that a method sets."""

RUNS_OF = {
    "tokens": "quickstart/arithmetic-text",
    "both": "quickstart/digits-vlm",
    "masked": "quickstart/digits-masked",
    "denoising": "quickstart/digits-image",
}
"""``applies_to`` -> a complete run."""

MODELS_OF = {
    "denoising": "models/sd3.5-medium",
    "tokens": "models/qwen2.5-vl-3b",
    "both": "models/qwen2.5-vl-3b",
}
"""``applies_to`` -> a model; none is shipped for masked methods."""

VERIFIER = {"name": "exact_match", "column": "result", "extract": "line"}
OTHER_REWARDS = [{"name": "exact_match", "weight": 2.0}, {"name": "format", "weight": 0.1}]
NUM_STEPS = 60
"""Steps whose windows are computed."""


def method_sources(data: DataFiles, name: str) -> Iterator[Finding]:
    """Every key of a method has a source, and every source a key."""
    values = dict(data.merged(name))
    method = method_of(values)
    about = values.pop("about")
    published = method.get("paper_hparams", {})
    sources = method.get("sources", {})
    for key in (key for part in (values, published) for key, _ in leaves(part)):
        if not is_under(key, sources):
            yield key, "has no source; add it to about.method.sources"
    for key in sources:
        if not has(values | {"about": about}, key) and not has(published, key):
            yield f"about.method.sources.{key}", "is the source of a key that the method does not set"
    if ("about.method.rewards" in sources) != ("rewards" in method):
        yield (
            "about.method.rewards",
            "rewards of a method have the source about.method.rewards, and other methods do not",
        )
    if "rewards" in values:
        yield "rewards", "would be replaced by those of a run; state them in about.method.rewards"


def method_name(data: DataFiles, name: str) -> Iterator[Finding]:
    """The name of a method is that of its file."""
    method_of_file = method_of(data.merged(name))["name"]
    if method_of_file != name.rpartition("/")[2]:
        yield "about.method.name", f"is {method_of_file!r}; the file is {name}"


def method_kind(data: DataFiles, name: str) -> Iterator[Finding]:
    """A method has a kind, and applies to the policies that have its settings."""
    values = data.merged(name)
    method = method_of(values)
    if method.get("kind") not in get_args(MethodKind):
        yield (
            "about.method.kind",
            f"is {method.get('kind')!r}; put the file in a folder of {', '.join(get_args(MethodKind))}",
        )
    is_denoising = has(values, "policy.sampler") or at(values, "rollout.training_states", None) == "renoised"
    if (method.get("applies_to") in ("denoising", "masked")) != is_denoising:
        yield (
            "about.method.applies_to",
            f"is {method.get('applies_to')!r}; it is denoising or masked for methods with policy.sampler or "
            "rollout.training_states: renoised, and for no others",
        )


def method_scale(data: DataFiles, name: str) -> Iterator[Finding]:
    """A method leaves the scale to the run, except for keys that it is about."""
    permitted = data.exceptions("method-scale").get(name, {})
    scale_keys = [key for key, _ in stated_settings(data, name) if is_under(key, SCALE) and not is_under(key, NO_SCALE)]
    for key in scale_keys:
        if key not in permitted:
            yield key, "is the scale of a run; move it to about.method.paper_hparams"
    for key in permitted:
        if key not in scale_keys:
            yield key, "is an exception in exceptions.json, and the method does not set it"


def method_objective(data: DataFiles, name: str) -> Iterator[Finding]:
    """The objective is the surrogate with its settings, or the terms, that the file states."""
    stated = data.stated(name)["objective"]
    objective = objective_of(RunConfig.model_validate({"objective": stated}).objective)
    if stated["surrogate"] is None:
        terms = [term.name.partition("@")[0] for term in objective.further]
        if objective.surrogate is not None or terms != [term["name"] for term in stated["terms"]]:
            yield "objective.terms", f"the objective has the terms {terms}"
        return
    settings = dict(stated["surrogate"])
    surrogate: Any = objective.surrogate
    if surrogate.func is not SURROGATES[settings.pop("name")] or surrogate.keywords != settings:
        yield "objective.surrogate", f"the objective has {surrogate}"


def method_with_models(data: DataFiles, name: str) -> Iterator[Finding]:
    """With every model that it applies to, the values of both remain, and every step has a window."""
    method = method_of(data.merged(name))
    applies_to, of_models = method.get("applies_to", "both"), method.get("model_overrides", ())
    for model in data.names("models") or shipped("models"):
        policy = data.stated(model)["policy"]["name"]
        if not takes("tokens" if policy == "language" else policy, applies_to):
            continue
        config = data.combined(model, name)
        of_model = dict(stated_settings(data, model))
        expected = (
            of_model | dict(stated_settings(data, name)) | {key: of_model[key] for key in of_models if key in of_model}
        )
        yield from differences(expected, config, f"with {model}")
        if policy == "denoising":
            yield from _step_faults(config, model, has_sampler=has(data.stated(name), "policy.sampler"))
        else:
            Algorithm.of(config)


def method_in_runs(data: DataFiles, name: str) -> Iterator[Finding]:
    """Included with a run, in either order, its values apply; a list of the run that drops one is an error."""
    values = data.merged(name)
    method = method_of(values)
    run = RUNS_OF[method.get("applies_to", "both")]
    rollout: dict[str, Any] = {"group_size": at(values, "rollout.group_size", 24)}
    if at(values, "rollout.training_states", None) == "renoised":
        rollout["window"] = None  # the run's window would be an error
    config = data.combined(run, name, rollout=rollout)
    if config != data.combined(name, run, rollout=rollout):
        yield "", f"with {run} the order of the includes changes the configuration"
    yield from _lost_values(values, config)
    section: MethodConfig | None = config.about.method
    if section is None or section.replaced:
        yield "", f"{run} replaces values of it: {section and section.replaced}"
    rewards = method.get("rewards") or {}
    if bool(rewards.get("added") or rewards.get("substitutes")) != (method["name"] in _sources_of_rewards(config)):
        yield "about.method.rewards", f"the run has the rewards {[reward.logged_name for reward in config.rewards]}"
    for key in (key for key in CHAINS if at(values, key, None)):
        yield from _replaced_list(data, name, run, key, rollout)


def method_rewards(data: DataFiles, name: str) -> Iterator[Finding]:
    """A method with rewards adds them to those of a run, in either order and once."""
    method = method_of(data.merged(name))
    section = method.get("rewards") or {}
    if not (section.get("added") or section.get("substitutes")):
        return
    values: dict[str, Any] = {"prompts": {"source": "prompts.txt"}, "rewards": [VERIFIER]}
    values["objective"] = {"surrogate": {"name": "clipped", "low": 0.1, "high": 0.1}}
    if method["applies_to"] == "denoising":
        values["policy"] = {"name": "denoising", "model": "some/model"}
    run = data.written(values)
    config = data.combined(run, name)
    if config != data.combined(name, run):
        yield "about.method.rewards", "the order of the includes changes the configuration of a run"
    if method["name"] not in _sources_of_rewards(config):
        yield "about.method.rewards", f"a run with {VERIFIER['name']} has none of them"
    if RunConfig.model_validate(config.model_dump()) != config:
        yield "about.method.rewards", "the resolved configuration is validated to another one"
    resolved = data.written(parse_yaml_1_1(dump_config(config)))
    for overrides in ({}, {"rewards": [VERIFIER]}):
        if load_config(resolved, overrides) != config:
            yield "about.method.rewards", f"the resolved configuration with {overrides} loads to another one"
    other = load_config(resolved, {"rewards": OTHER_REWARDS})
    if method["name"] not in _sources_of_rewards(other) or "format" not in [r.logged_name for r in other.rewards]:
        yield "about.method.rewards", f"an override of rewards gives {[reward.logged_name for reward in other.rewards]}"


def paper_hparams(data: DataFiles, name: str) -> Iterator[Finding]:
    """The hyperparameters of the paper's run can be applied, and then all of them are in force."""
    text = dict(method_rows(with_paper_hparams(data, name))).get("paper_hparams", "")
    if "published run" in text and "is in force" not in text:
        yield "about.method.paper_hparams", f"not all values apply: {text}"


def with_paper_hparams(data: DataFiles, name: str, **values: Any) -> RunConfig:
    """A method with a model that it applies to and, if it has any, the hyperparameters of the paper's run."""
    merged = data.merged(name)
    model = MODELS_OF.get(method_of(merged).get("applies_to", "both"))
    values_of_run = values if model else {"policy": {"name": "masked", "model": "some/model"}, **values}
    names = [model, name] if model else [name]
    return data.combined(*names, use_paper_hparams=bool(method_of(merged).get("paper_hparams")), **values_of_run)


def stated_settings(data: DataFiles, name: str) -> list[tuple[str, Any]]:
    """Keys and values that a file states, except its description and rewards."""
    return [
        (key, [_without_defaults(item) for item in value] if isinstance(value, list) else value)
        for key, value in leaves(data.stated(name))
        if key.split(".")[0] not in DESCRIPTION
    ]


def differences(expected: Mapping[str, Any], config: RunConfig, where: str) -> Iterator[Finding]:
    """The keys whose value in a configuration is not that of a file."""
    resolved = config.model_dump(mode="json")
    for key, value in expected.items():
        if (actual := _value_at(resolved, key)) != value:
            yield key, f"is {actual!r} {where}; the file states {value!r}"


def _value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value at a key as files state it: a function without numbers by its name, items without defaults."""
    value = at(values, key)
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    return value["name"] if isinstance(value, Mapping) and set(value) == {"name"} else value


def _without_defaults(item: Any) -> Any:
    """A term, an auxiliary loss or a source without keys that have their default; other items as they are."""
    if not isinstance(item, Mapping):
        return item
    models = (TermConfig, AuxiliaryConfig, SourceConfig)
    fields = [field for model in models for field in model.model_fields.items()]
    defaults = [(key, field.default) for key, field in fields if not field.is_required()]
    return {key: value for key, value in item.items() if (key, tuple(value) if value == [] else value) not in defaults}


def _step_faults(config: RunConfig, where: str, *, has_sampler: bool) -> Iterator[Finding]:
    """Faults of the batches of a denoising policy, and of the windows of its first steps."""
    policy = config.policy
    settings = settings_type("denoising")(**policy.settings if policy else {})
    if settings.rollout_batch != settings.update_batch:
        yield "policy.rollout_batch", f"{where}: is {settings.rollout_batch}, and update_batch {settings.update_batch}"
    algorithm = Algorithm.of(config)
    steps = _Steps(settings.call["num_inference_steps"] - 1)
    windows = [algorithm.window_at(steps, step) for step in range(NUM_STEPS)]
    if () in windows:
        yield "rollout.window", f"{where}: is empty at step {windows.index(())}"
    if has_sampler and None in windows:
        yield "rollout.window", f"{where}: is not set; a method with policy.sampler sets it"


@final
class _Steps(SupportsWindows):
    """A policy of a number of denoising steps."""

    def __init__(self, num_decisions: int) -> None:
        self._num_decisions = num_decisions

    @property
    def num_decisions(self) -> int:
        return self._num_decisions


def _lost_values(values: Mapping[str, Any], config: RunConfig) -> Iterator[Finding]:
    resolved = config.model_dump(mode="json")
    for key, value in _function_values(values):
        if not _has_values(value, actual := at(resolved, key, None)):
            yield key, f"is {actual!r} in a run that includes it; the method states {value!r}"


def _function_values(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value; a function with its settings is one value."""
    for key, value in values.items():
        if prefix or key != "about":
            if isinstance(value, dict) and "name" not in value:
                yield from _function_values(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value


def _has_values(stated: Any, resolved: Any) -> bool:
    """Whether a resolved value has everything that is stated of it."""
    if isinstance(stated, list) and isinstance(resolved, list) and len(stated) == len(resolved):
        return all(_has_values(*pair) for pair in zip(stated, resolved, strict=True))
    if isinstance(stated, dict) and isinstance(resolved, dict):
        return all(key in resolved and _has_values(value, resolved[key]) for key, value in stated.items())
    return stated == resolved or (isinstance(resolved, dict) and resolved.get("name") == stated)


def _replaced_list(data: DataFiles, name: str, run: str, key: str, rollout: Any) -> Iterator[Finding]:
    """A fault if a run may replace a list of the method without an error."""
    section, _, last = key.rpartition(".")
    other = [{"name": "another", "label": "another"}]
    overrides: dict[str, Any] = {section: {last: other}} if section else {last: other}
    try:
        data.combined(run, name, rollout=rollout, **overrides)
    except ConfigError as error:
        if f"{key} replaces the list of methods/{method_of(data.merged(name))['name']} and drops" in str(error):
            return
        raise
    yield key, "a run that replaces the list is no error"


def _sources_of_rewards(config: RunConfig) -> set[str | None]:
    return {reward.from_method for reward in config.rewards}


METHOD_RULES = tuple(
    rule_of(check, "methods")
    for check in (
        method_sources,
        method_name,
        method_kind,
        method_scale,
        method_objective,
        method_with_models,
        method_in_runs,
        method_rewards,
        paper_hparams,
    )
)
