"""A run of TRL as a configuration: ``mmgrpo init --from trl SCRIPT_OR_YAML``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from mmgrpo.config import Named, RunConfig
from mmgrpo.config.loading import validated
from mmgrpo.config.sections import at
from mmgrpo.config.validating import policy_settings, set_value
from mmgrpo.errors import ConfigError
from mmgrpo.trl.arguments import ARGUMENTS, PEER, Fixed, GRPOConfig
from mmgrpo.trl.expressions import shortened
from mmgrpo.trl.run_values import TrainingData, differences, evaluation_values, run_values
from mmgrpo.trl.script_arguments import REWARDS as FUNCTIONS
from mmgrpo.trl.script_arguments import current_arguments
from mmgrpo.trl.script_columns import ScriptColumns
from mmgrpo.trl.script_reading import TrlRun, read_trl_run
from mmgrpo.trl.vllm_values import PAGE, PYTHON

QUANTIZATION = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "use_bnb_nested_quant": "bnb_4bit_use_double_quant",
}
"""Argument of TRL's scripts -> that of ``BitsAndBytesConfig``."""

LOADING = {"model_revision": "revision", "attn_implementation": "attn_implementation", "dtype": "dtype"}
"""Argument of TRL's scripts -> that of ``model_init_kwargs``."""

LORA = ("use_peft", "lora_r", "lora_alpha", "lora_target_modules", "use_dora", "use_rslora")
COLUMNS = ("train_columns", "eval_columns")
DATA = ("model_name_or_path", "dataset_name", "dataset_train_split", "eval_dataset", "dataset_test_split", *COLUMNS)
REWARDS = ("reward_funcs", "reward_model_name_or_path")
READ = (*QUANTIZATION, *LOADING, *LORA, *DATA, *REWARDS)
"""Arguments of TRL's scripts that have keys here."""

STATED = ("policy.name", "steps", "rollout.prompts_per_step", "rollout.group_size", "update.optimizer.lr")
"""Keys that the file has even where their value is the default."""

FIRST = ("policy", "prompts", "rewards", "rollout", "steps")
"""The first sections of the file."""

SCRIPT = "MODULE_OF_THE_SCRIPT"
"""The module of a function that is named alone and is none of TRL's."""

STEPS = 100
"""Steps of a run that TRL counts in epochs."""


def converted(path: Path, command: str | None = None) -> str:
    """The configuration of a run of TRL, with a comment for each argument that has no counterpart.

    Args:
        path: a script with one ``GRPOConfig`` of literals, or a YAML file of TRL's command line.
        command: the arguments of the script's command line; None: it reads none.

    Returns:
        The text of a YAML file that ``load_config`` reads.

    Raises:
        ConfigError: as ``read_trl_run``; or the arguments do not fit together.
    """
    run = read_trl_run(path, command)
    notes = [f"{name}={shortened(text)}: it is not read; {_sentence(name)}" for name, text in run.unread.items()]
    notes += run.comments
    arguments = _supported(current_arguments(run.arguments), notes)
    nested = _without_defaults(_values(arguments, run, notes))
    head = [f"# From {path.name}, written by mmgrpo init --from trl. Read it before you train:"]
    head += [f"# * {note}" for note in notes] or ["# * every argument has a key"]
    body = yaml.safe_dump(nested, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return "\n".join(head) + "\n" + body


def _without_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sections with the values that differ from the defaults. Raises ConfigError for one that is not allowed."""
    resolved, default = _dumped(_sections(values)), _dumped({"policy": {"name": "language"}})
    stated = {key: value for key, value in values.items() if at(resolved, key, None) != at(default, key, None)}
    sections = _sections({key: value for key, value in values.items() if key in stated or key in STATED})
    return {name: sections[name] for name in (*FIRST, *RunConfig.model_fields) if name in sections}


def _sections(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        set_value(nested, key.split("."), value)
    return nested


def _dumped(values: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of a configuration, those of its policy with their defaults."""
    settings = policy_settings(Named(**values["policy"]))
    return validated(values).model_dump() | {"policy": settings.model_dump()}


def _supported(arguments: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The arguments of ``GRPOConfig`` that have keys; a note for each of the others."""
    defaults = {field.name: field.default for field in fields(GRPOConfig)}
    supported: dict[str, Any] = {}
    for name, value in arguments.items():
        note = ARGUMENTS.get(name)
        if note is None:
            if name not in READ:
                notes.append(f"{name}={shortened(repr(value))}: {_sentence(name)}")
        elif isinstance(note, Fixed) and value not in (defaults[name], *note.others):
            notes.append(f"{name}={shortened(repr(value))}: {PEER.settings[name]}")
        else:
            supported[name] = value
    return supported


def _sentence(name: str) -> str:
    """The key or the replacement of an argument."""
    sentences = (PEER.settings.get(f"{prefix}{name}") for prefix in ("", "peft_config."))
    return next(filter(None, sentences), "neither TRL 1.16 nor LoraConfig has this argument")


def _values(supported: dict[str, Any], run: TrlRun, notes: list[str]) -> dict[str, Any]:
    """The values by dotted key, with those of model, data and rewards."""
    arguments = run.arguments
    loading = {theirs: arguments[name] for name, theirs in LOADING.items() if arguments.get(name) is not None}
    if loading:
        supported["model_init_kwargs"] = {**loading, **(supported.get("model_init_kwargs") or {})}
    epochs = supported.get("num_train_epochs", GRPOConfig.num_train_epochs)
    if is_endless := supported.get("max_steps", -1) <= 0:
        supported.pop("num_train_epochs", None)
        supported["max_steps"] = STEPS * _num_updates(supported)
    if supported.get("use_vllm") and supported.get("vllm_mode", GRPOConfig.vllm_mode) == "colocate":
        supported["overrides"] = {"rollout.engine.python": PYTHON}
        notes.append(f"rollout.engine.python: set the Python of an environment with vLLM ({PAGE})")
    has_tools = not run.unread.keys().isdisjoint(("tools", "environment_factory"))
    args, data = GRPOConfig(**supported), TrainingData(num_prompts=None, is_conversational=True, has_tools=has_tools)
    values = run_values(args, data)
    notes += [f"not as in TRL: {difference}" for difference in differences(args, data)]
    if is_endless:
        groups = values["rollout.prompts_per_step"]
        notes.append(
            f"steps: {values['steps']} is not a number of {PEER.name}'s run: num_train_epochs={epochs} is "
            f"{epochs} * rows / {groups} steps; set it"
        )
    notes += [
        "rollout.prompts_per_step is for one process: multiply it by the number of processes",
    ]
    values |= _chat(arguments, notes)
    values |= (
        _model(arguments, notes) | _data(arguments, args, data, notes) | {"rewards": _rewards(arguments, args, notes)}
    )
    return values


def _num_updates(supported: Mapping[str, Any]) -> int:
    """Updates per generation, which ``max_steps`` must be a multiple of."""
    args = GRPOConfig(**supported)
    return max((args.steps_per_generation or 1) // args.gradient_accumulation_steps, 1) * args.num_iterations


def _model(arguments: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    model = arguments.get("model_name_or_path")
    if model is None:
        notes.append("policy.model: set the path or hub id of the model")
    values: dict[str, Any] = {"policy.name": "language", "policy.model": model}
    if arguments.get("use_peft") or "lora_r" in arguments:
        rank, alpha = int(arguments.get("lora_r", 16)), float(arguments.get("lora_alpha", 32))
        targets = arguments.get("lora_target_modules")
        if targets is None:
            notes.append("policy.lora.targets: every linear layer; peft's default is some layers of the architecture")
        values["policy.lora"] = {
            "rank": rank,
            "alpha": alpha * math.sqrt(rank) if arguments.get("use_rslora") else alpha,
            "targets": targets,
            "init": "kaiming",
            "dora": bool(arguments.get("use_dora", False)),
        }
    if arguments.get("load_in_4bit") or arguments.get("load_in_8bit"):
        settings = {theirs: arguments[name] for name, theirs in QUANTIZATION.items() if arguments.get(name)}
        values["policy.quantization_config"] = {"bnb_4bit_quant_type": "nf4", **settings}
    return values


def _chat(arguments: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The chat template and the system turn of the prompts that the script makes."""
    columns, held_out = (arguments.get(name) or ScriptColumns() for name in COLUMNS)
    if "eval_columns" in arguments and (columns.chat, columns.system) != (held_out.chat, held_out.system):
        notes.append(
            "policy.system and policy.chat are those of train_dataset: the prompts of eval_dataset have others"
        )
    if columns.chat is None:
        notes.append("policy.chat: false, if the prompts are texts: TRL applies the chat template to messages alone")
    return {"policy.chat": columns.chat, "policy.system": columns.system}


def _data(arguments: Mapping[str, Any], args: GRPOConfig, data: TrainingData, notes: list[str]) -> dict[str, Any]:
    source = arguments.get("dataset_name")
    if source is None:
        notes.append("prompts.source: set the data set of the hub, or a file")
        return {}
    values: dict[str, Any] = {"prompts.source": source, "prompts.split": arguments.get("dataset_train_split", "train")}
    values |= {f"prompts.{name}": value for name, value in _columns(arguments.get("train_columns")).items()}
    if args.eval_strategy == "no":
        return values
    evaluation = evaluation_values(args, data, arguments.get("eval_dataset") or source)
    has_splits = "eval_dataset" in arguments or values["prompts.split"] is not None
    evaluation["prompts"]["split"] = arguments.get("dataset_test_split", "test" if has_splits else None)
    evaluation["prompts"] |= _columns(arguments.get("eval_columns"))
    evaluation["rewards"] = [{"name": reward["name"]} for reward in _rewards(arguments, args, [])]
    return values | {f"evaluation.{key}": value for key, value in evaluation.items()}


def _columns(columns: ScriptColumns | None) -> dict[str, Any]:
    sources = {name: source for name, source in columns.sources.items() if name != source} if columns else {}
    return {"columns": sources} if sources else {}


def _rewards(arguments: Mapping[str, Any], args: GRPOConfig, notes: list[str]) -> list[dict[str, Any]]:
    names = arguments.get("reward_funcs") or []
    listed = [names] if isinstance(names, str) else list(names)
    models = [arguments["reward_model_name_or_path"]] if arguments.get("reward_model_name_or_path") else []
    entries = [{"name": "reward_model", "model": model} for model in models] + [_reward(str(name)) for name in listed]
    if not entries:
        notes.append("rewards: name the functions, such as {name: python:my_rewards:accuracy}; TRL's form is read")
    if unplaced := [entry["name"] for entry in entries if entry["name"].startswith(f"python:{SCRIPT}:")]:
        notes.append(f"rewards: trl.rewards does not have {', '.join(unplaced)}: replace {SCRIPT} by its module")
    if any(entry["name"].startswith("python:") for entry in entries):
        notes.append(
            "rewards: a module of python:MODULE:FUNCTION must be importable, and must not train when it is imported"
        )
    weights: Sequence[float] = args.reward_weights or [1.0] * len(entries)
    if len(weights) != len(entries):
        raise ConfigError(f"reward_weights has {len(weights)} numbers for {len(entries)} reward functions")
    return [
        entry if weight == 1 else {**entry, "weight": float(weight)}
        for entry, weight in zip(entries, weights, strict=True)
    ]


def _reward(name: str) -> dict[str, Any]:
    """An entry of ``rewards``: a function by its path, one of TRL's or of the script by its name, or a reward model."""
    if name.startswith("python:"):
        return {"name": name}
    if "/" in name:
        return {"name": "reward_model", "model": name}
    module, _, function = name.rpartition(".")
    return {"name": f"python:{module or ('trl.rewards' if function in FUNCTIONS else SCRIPT)}:{function}"}
