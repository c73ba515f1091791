"""The model card of a trained model: ``README.md`` with the metadata of the hub in its front matter.

Texts of the run folder are untrusted and are written as inline code, without markup and links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mmgrpo.report.logs import Log, by_step, mean_or_none, read_log
from mmgrpo.report.number_format import clip, number
from mmgrpo.report.page import PREVIEW
from mmgrpo.report.run_charts import measures, total_rewards
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.run_info import overview_rows, read_about
from mmgrpo.report.usage_code import BaseModelSource, ExportedModel, base_file, exported_in, usage
from mmgrpo.runs.adapter_files import absolute_base, is_hub_id
from mmgrpo.system.console import escape_controls
from mmgrpo.system.yamls import YamlError, parse_yaml

MAX_POINTS = 12
MAX_ROWS = 30
MAX_CELL = 200
MAX_TEXT = 20_000
MAX_CARD = 2**20
"""Characters that are read from the model card of a base model."""

UNKNOWN = "unknown: see the page or the folder of the base model"


def license_of(model: str | None, revision: str | None = None) -> Mapping[str, str]:
    """``license``, ``license_name`` and ``license_link`` of a base model from its model card; nothing is downloaded.

    Args:
        model: a path, or a hub id whose card is in the local cache.
        revision: revision of the model.

    Returns:
        The fields that are plain names or addresses.
    """
    card = base_file(model, "README.md", revision)
    try:
        text = "" if card is None else _beginning(card)
        head = parse_yaml(text.split("\n---", 1)[0].removeprefix("---")) if text.startswith("---") else None
    except (OSError, YamlError):
        return {}
    values = head if isinstance(head, dict) else {}
    names = {"license": r"[A-Za-z0-9._-]{1,60}", "license_name": r"[A-Za-z0-9._ -]{1,60}", "license_link": r"\S{1,200}"}
    return {key: str(values[key]) for key, form in names.items() if re.fullmatch(form, str(values.get(key) or ""))}


def card_of(run: Path, folder: Path, *, name: str, weights: str) -> str:
    """The text of the model card.

    Args:
        run: the run folder.
        folder: the folder of the export, with the picture of the run if there is one.
        name: name of the model.
        weights: description of the weights.

    Returns:
        Markdown with YAML front matter.
    """
    files = RunFiles(run)
    config, about = _parse_config(files.text("config.yaml")), read_about(files)
    metrics, evaluation = read_log(files, "metrics.jsonl"), read_log(files, "evaluation.jsonl")
    policy = _mapping(config.get("policy"))
    base, revision = _text(policy.get("model")), _text(policy.get("revision"))
    exported, license_fields = exported_in(folder), license_of(base, revision)
    head = _metadata(exported, base, license_fields)
    sections = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {code(name)}",
        f"{_content_name(exported)} of {code(_base(base, revision))}, trained from rewards by mmgrpo: {code(weights)}.",
        *([f"![The same requests before and after training]({PREVIEW})"] if (folder / PREVIEW).is_file() else []),
        _fenced(usage(exported, _base_of(policy)), "python"),
        "## Base model and license",
        _rows([("base model", _base(base, revision)), *_license_rows(license_fields)]),
        "## Method",
        *_method(config, about),
        "## Data",
        _rows(_data(config)),
        "## Rewards",
        _rows(_rewards(config)),
        "## Results",
        *_results(metrics, evaluation),
        "## Training run",
        _rows([*overview_rows(about, metrics), *_versions(about)]),
        *_commands(about),
        "The resolved configuration is in `mmgrpo.yaml`.",
    ]
    return "\n\n".join(sections) + "\n"


def code(text: object) -> str:
    """Any text as inline code on one line, also within a table."""
    plain = clip(" ".join(escape_controls(str(text)).split()), MAX_CELL).replace("|", "\\|") or "-"
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    edge = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{'`' * (longest + 1)}{edge}{plain}{edge}{'`' * (longest + 1)}"


def _fenced(text: str, language: str = "") -> str:
    plain = "\n".join(escape_controls(line) for line in clip(text, MAX_TEXT).splitlines())
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence}{language}\n{plain}\n{fence}"


def _metadata(exported: ExportedModel, base: str | None, license_fields: Mapping[str, str]) -> dict[str, Any]:
    head: dict[str, Any] = {"library_name": exported.library, "tags": ["mmgrpo", "reinforcement-learning"]}
    if exported.is_adapter:
        head["tags"].append("lora")
    if is_hub_id(base):
        head |= {"base_model": base, "base_model_relation": "adapter" if exported.is_adapter else "finetune"}
    return head | dict(license_fields)


def _content_name(exported: ExportedModel) -> str:
    return "LoRA adapters" if exported.is_adapter else "All weights"


def _base_of(policy: Mapping[str, Any]) -> BaseModelSource:
    options = {key: value for key in ("revision", "variant") if (value := _text(policy.get(key)))}
    return BaseModelSource(
        model=absolute_base(_text(policy.get("model"))),
        dtype=_text(policy.get("dtype")) or "float32",
        components={name: _text(dtype) for name, dtype in _mapping(policy.get("components")).items() if _is_name(name)},
        options=options,
        single_file_config=absolute_base(_text(policy.get("single_file_config"))),
        quantization=_mapping(policy.get("quantization_config")),
    )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isascii() and name.isidentifier()


def _base(model: str | None, revision: str | None) -> str:
    return f"{model or 'a model object passed from Python'}{f' at {revision}' if revision else ''}"


def _license_rows(license_fields: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(key.replace("_", " "), value) for key, value in license_fields.items()] or [("license", UNKNOWN)]


def _method(config: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    method = _mapping(_mapping(config.get("about")).get("method"))
    named = [(key, method[key]) for key in ("name", "title", "paper") if isinstance(method.get(key), str)]
    lines = [_rows(named)] if named else ["The configuration names no published method; the computed formulas:"]
    explained = _text(about.get("explain"))
    return lines + ([_fenced(explained)] if explained else [])


def _data(config: Mapping[str, Any]) -> list[tuple[str, object]]:
    prompts, evaluation = _mapping(config.get("prompts")), _mapping(config.get("evaluation"))
    sources = [_mapping(source) for source in _list(prompts.get("sources"))] or [prompts]
    rows: list[tuple[str, object]] = []
    rows += [("prompts", source.get("source") or "passed from Python") for source in sources[:MAX_ROWS]]
    held_out = _mapping(evaluation.get("prompts")).get("source")
    return rows + ([("held-out prompts", held_out)] if held_out else [])


def _rewards(config: Mapping[str, Any]) -> list[tuple[str, object]]:
    rewards = [_mapping(reward) for reward in _list(config.get("rewards"))][:MAX_ROWS]
    rows: list[tuple[str, object]] = []
    rows += [(_reward_label(reward), f"{reward.get('name')}, weight {reward.get('weight', 1.0)}") for reward in rewards]
    held_out = [_mapping(reward) for reward in _list(_mapping(config.get("evaluation")).get("rewards"))][:MAX_ROWS]
    rows += [(f"{_reward_label(reward)} (held out, not trained on)", reward.get("name")) for reward in held_out]
    return rows or [("passed from Python", "-")]


def _reward_label(reward: Mapping[str, Any]) -> str:
    return str(reward.get("label") or reward.get("name"))


def _results(metrics: Log, evaluation: Log) -> list[str]:
    """Curves as tables: training rewards and held-out rewards."""
    trained = {title: by_step(metrics, key, _mean) for key, title in total_rewards(()).items()}
    held_out = {name: by_step(evaluation, key, _mean) for name, key in list(measures(evaluation).items())[:6]}
    tables = [("Training reward, mean of a step's samples:", trained), ("Held-out means:", held_out)]
    tables_with_values = [f"{title}\n\n{_table(curves)}" for title, curves in tables if any(curves.values())]
    return tables_with_values or ["Nothing was recorded."]


def _table(curves: Mapping[str, Mapping[float, float]]) -> str:
    steps = sorted({step for points in curves.values() for step in points})
    last = len(steps) - 1
    indices = sorted({round(last * index / (MAX_POINTS - 1)) for index in range(MAX_POINTS)}) if last > 0 else range(1)
    rows = [[f"{steps[index]:g}", *(_value(points, steps[index]) for points in curves.values())] for index in indices]
    head = ["step", *(code(name) for name in curves)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _value(points: Mapping[float, float], step: float) -> str:
    return number(points[step]) if step in points else "-"


def _versions(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(key), str(value)) for key, value in list(_mapping(about.get("versions")).items())[:MAX_ROWS]]


def _commands(about: Mapping[str, Any]) -> list[str]:
    resumed = [_mapping(session) for session in _list(about.get("resumed"))]
    lines = [_text(session.get("command")) for session in (about, *resumed[:MAX_ROWS])]
    return [_fenced("\n".join(" ".join(line.split()) for line in lines if line), "bash")] if any(lines) else []


def _rows(rows: Iterable[tuple[str, object]]) -> str:
    body = [f"| {code(label)} | {code(value)} |" for label, value in rows]
    return "\n".join(["| | |", "| --- | --- |", *body])


def _parse_config(text: str | None) -> Mapping[str, Any]:
    try:
        return _mapping(parse_yaml(text or ""))
    except YamlError:
        return {}


def _beginning(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as opened:
        return opened.read(MAX_CARD)


def _mean(values: Sequence[float]) -> float:
    return mean_or_none(values) or 0.0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
