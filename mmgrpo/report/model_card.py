"""The card of a model that a run has trained: ``README.md``, with the metadata that the hub reads at its head.

What the run folder says may be a stranger's, and stands in it as code: no markup, no links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mmgrpo.report.logs import Log, by_step, mean_or_none, parse_mapping, read_log
from mmgrpo.report.number_format import clip, number
from mmgrpo.report.run_charts import measures, total_rewards
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.run_info import facts
from mmgrpo.report.usage_code import BaseModelSource, ExportedModel, exported_in, usage
from mmgrpo.runs.exporting import is_hub_id
from mmgrpo.system.console import shown
from mmgrpo.system.targets import is_own
from mmgrpo.system.yamls import YamlError, parsed_yaml

MAX_POINTS = 12
MAX_ROWS = 30
MAX_CELL = 200
MAX_TEXT = 20_000
MAX_CARD = 2**20
"""What is read of the card of a base model."""

UNKNOWN = "not known here: see the page or the folder of the base model"


def licence_of(model: str | None, revision: str | None = None) -> Mapping[str, str]:
    """``license``, ``license_name`` and ``license_link`` of a base model, as its own card says; nothing is fetched.

    Args:
        model: a path, or a hub id whose card is in the local cache.
        revision: of it.

    Returns:
        Those that are said and are plain names or addresses.
    """
    card = _card_of(model, revision)
    try:
        text = "" if card is None else _beginning(card)
        head = parsed_yaml(text.split("\n---", 1)[0].removeprefix("---")) if text.startswith("---") else None
    except (OSError, YamlError):
        return {}
    said = head if isinstance(head, dict) else {}
    names = {"license": r"[A-Za-z0-9._-]{1,60}", "license_name": r"[A-Za-z0-9._ -]{1,60}", "license_link": r"\S{1,200}"}
    return {key: str(said[key]) for key, form in names.items() if re.fullmatch(form, str(said.get(key) or ""))}


def card_of(run: Path, folder: Path, *, name: str, weights: str) -> str:
    """The text of the card.

    Args:
        run: the run folder.
        folder: what was written of it.
        name: of the model.
        weights: which of the run's weights they are, in words.

    Returns:
        Markdown under YAML.
    """
    files = RunFiles(run)
    config, about = _configured(files.text("config.yaml")), parse_mapping(files.text("run.json") or "") or {}
    metrics, evaluation = read_log(files, "metrics.jsonl"), read_log(files, "evaluation.jsonl")
    policy = _mapping(config.get("policy"))
    base, revision = _text(policy.get("model")), _text(policy.get("revision"))
    exported, licence = exported_in(folder), licence_of(base, revision)
    head = _metadata(exported, base, licence)
    sections = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {code(name)}",
        f"{_what(exported)} of {code(_base(base, revision))}, trained from rewards by mmgrpo: {code(weights)}.",
        _fenced(usage(exported, _base_of(policy)), "python"),
        "## Base model and licence",
        _rows([("base model", _base(base, revision)), *_licence_rows(licence)]),
        "## Method",
        *_method(config, about),
        "## Data",
        _rows(_data(config)),
        "## Rewards",
        _rows(_rewards(config)),
        "## Results",
        *_results(metrics, evaluation),
        "## How it was made",
        _rows([*facts(about, metrics), *_versions(about)]),
        *_commands(about),
        "The resolved configuration is in `mmgrpo.yaml`.",
    ]
    return "\n\n".join(sections) + "\n"


def code(text: object) -> str:
    """A text as a span of code on one line, whatever it holds, also within a table."""
    plain = clip(" ".join(shown(str(text)).split()), MAX_CELL).replace("|", "\\|") or "-"
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    edge = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{'`' * (longest + 1)}{edge}{plain}{edge}{'`' * (longest + 1)}"


def _fenced(text: str, language: str = "") -> str:
    plain = "\n".join(shown(line) for line in clip(text, MAX_TEXT).splitlines())
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence}{language}\n{plain}\n{fence}"


def _metadata(exported: ExportedModel, base: str | None, licence: Mapping[str, str]) -> dict[str, Any]:
    head: dict[str, Any] = {"library_name": exported.library, "tags": ["mmgrpo", "reinforcement-learning"]}
    if exported.is_adapter:
        head["tags"].append("lora")
    if is_hub_id(base):
        head |= {"base_model": base, "base_model_relation": "adapter" if exported.is_adapter else "finetune"}
    return head | dict(licence)


def _what(exported: ExportedModel) -> str:
    return "LoRA adapters" if exported.is_adapter else "All weights"


def _base_of(policy: Mapping[str, Any]) -> BaseModelSource:
    options = {key: value for key in ("revision", "variant") if (value := _text(policy.get(key)))}
    return BaseModelSource(
        model=_text(policy.get("model")),
        dtype=_text(policy.get("dtype")) or "float32",
        components={name: _text(dtype) for name, dtype in _mapping(policy.get("components")).items() if _is_name(name)},
        options=options,
        single_file_config=_text(policy.get("single_file_config")),
    )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isascii() and name.isidentifier()


def _base(model: str | None, revision: str | None) -> str:
    return f"{model or 'a model that was given in Python'}{f' at {revision}' if revision else ''}"


def _licence_rows(licence: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(key.replace("_", " "), value) for key, value in licence.items()] or [("license", UNKNOWN)]


def _method(config: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    method = _mapping(config.get("method"))
    named = [(key, method[key]) for key in ("name", "title", "paper") if isinstance(method.get(key), str)]
    said = [_rows(named)] if named else ["No published method is named; what was computed:"]
    explained = _text(about.get("explain"))
    return said + ([_fenced(explained)] if explained else [])


def _data(config: Mapping[str, Any]) -> list[tuple[str, object]]:
    prompts, evaluation = _mapping(config.get("prompts")), _mapping(config.get("evaluation"))
    sources = [_mapping(one) for one in _listed(prompts.get("sources"))] or [prompts]
    rows: list[tuple[str, object]] = []
    rows += [("prompts", one.get("source") or "given in Python") for one in sources[:MAX_ROWS]]
    held_out = _mapping(evaluation.get("prompts")).get("source")
    return rows + ([("held-out prompts", held_out)] if held_out else [])


def _rewards(config: Mapping[str, Any]) -> list[tuple[str, object]]:
    rewards = [_mapping(one) for one in _listed(config.get("rewards"))][:MAX_ROWS]
    rows: list[tuple[str, object]] = []
    rows += [(_known_as(one), f"{one.get('name')}, weight {one.get('weight', 1.0)}") for one in rewards]
    judges = [_mapping(one) for one in _listed(_mapping(config.get("evaluation")).get("rewards"))][:MAX_ROWS]
    rows += [(f"{_known_as(one)} (held out, not trained on)", one.get("name")) for one in judges]
    return rows or [("given in Python", "-")]


def _known_as(reward: Mapping[str, Any]) -> str:
    return str(reward.get("label") or reward.get("name"))


def _results(metrics: Log, evaluation: Log) -> list[str]:
    """Curves as tables: what the rewards gave, and what the held-out ones found."""
    trained = {title: by_step(metrics, key, _mean) for key, title in total_rewards(()).items()}
    held_out = {name: by_step(evaluation, key, _mean) for name, key in list(measures(evaluation).items())[:6]}
    tables = [("Training reward, mean of a step's samples:", trained), ("Held-out means:", held_out)]
    found = [f"{title}\n\n{_table(curves)}" for title, curves in tables if any(curves.values())]
    return found or ["Nothing was recorded."]


def _table(curves: Mapping[str, Mapping[float, float]]) -> str:
    steps = sorted({step for points in curves.values() for step in points})
    last = len(steps) - 1
    kept = sorted({round(last * place / (MAX_POINTS - 1)) for place in range(MAX_POINTS)}) if last > 0 else range(1)
    rows = [[f"{steps[place]:g}", *(_value(points, steps[place]) for points in curves.values())] for place in kept]
    head = ["step", *(code(name) for name in curves)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _value(points: Mapping[float, float], step: float) -> str:
    return number(points[step]) if step in points else "-"


def _versions(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(key), str(value)) for key, value in list(_mapping(about.get("versions")).items())[:MAX_ROWS]]


def _commands(about: Mapping[str, Any]) -> list[str]:
    resumed = [_mapping(one) for one in _listed(about.get("resumed"))]
    lines = [_text(one.get("command")) for one in (about, *resumed[:MAX_ROWS])]
    return [_fenced("\n".join(" ".join(line.split()) for line in lines if line), "bash")] if any(lines) else []


def _rows(rows: Iterable[tuple[str, object]]) -> str:
    body = [f"| {code(label)} | {code(value)} |" for label, value in rows]
    return "\n".join(["| | |", "| --- | --- |", *body])


def _configured(text: str | None) -> Mapping[str, Any]:
    try:
        return _mapping(parsed_yaml(text or ""))
    except YamlError:
        return {}


def _card_of(model: str | None, revision: str | None) -> Path | None:
    if model is None or is_own(model):
        return None
    if Path(model).is_dir():
        card = Path(model) / "README.md"
        return card if card.is_file() else None
    if not is_hub_id(model):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model, "README.md", revision=revision)
    return Path(cached) if isinstance(cached, str) else None


def _beginning(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as opened:
        return opened.read(MAX_CARD)


def _mean(values: Sequence[float]) -> float:
    return mean_or_none(values) or 0.0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
