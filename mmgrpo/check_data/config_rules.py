"""Rules of every configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mmgrpo.algorithm import Algorithm
from mmgrpo.check_data.data_files import DataFiles, Finding, leaves, rule_of
from mmgrpo.config.composing import METHOD
from mmgrpo.config.loading import dump_config, load_config, validated
from mmgrpo.config.parts import singles_of
from mmgrpo.config.sections import at
from mmgrpo.docgen.signatures import require_settings
from mmgrpo.explain.explanation import explanation
from mmgrpo.system.folders import TOP
from mmgrpo.system.yamls import parse_yaml_1_1

RUNS = ("quickstart", "recipes", "papers")
"""Folders of complete runs."""

QLORA = "qlora"
"""The file that is merged on top of runs of language models."""

TEST_FILE = re.compile(r"\btests/[\w./-]+\.py")
PAPER_NUMBERS = ("about.method.paper", "about.paper")
"""Keys of arXiv numbers, which are texts."""


def loads(data: DataFiles, name: str) -> Iterator[Finding]:
    """A file loads, and every function that it names exists; a method without a policy, others that need one with a
    model."""
    folder = name.partition("/")[0]
    if folder == "methods":
        config = validated(data.merged(name) | {"policy": None})
    elif folder == "tasks":
        config = data.combined("models/sd3.5-medium", "plain", name)
    elif name == QLORA:
        config = data.combined("models/qwen2.5-3b", "plain", name)
    else:
        config = data.config(name)
    for single in singles_of(config):
        Algorithm.of(single)
    yield from ()


def unique_name(data: DataFiles, name: str) -> Iterator[Finding]:
    """No other file has the name, which leaves inner folders out."""
    folder, _, stem = name.rpartition("/")
    root = next((parent for parent in data.path(name).parents if parent.name == folder), None)
    files = [str(path) for path in _yaml_files(root) if path.stem == stem] if folder and root else []
    if len(files) > 1:
        yield "", f"is the name of {' and '.join(files)}"


def numbers(data: DataFiles, name: str) -> Iterator[Finding]:
    """A number is a number to parsers of YAML 1.1 too, to which 1e-4 is a text and 1.0e-4 a number."""
    for key, value in leaves(data.stated(name)):
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str) and key not in PAPER_NUMBERS and _is_number(item):
                yield key, f"{item!r} is a text in YAML 1.1; write a number with a point, such as 1.0e-4"


def evidence_files(data: DataFiles, name: str) -> Iterator[Finding]:
    """The tests that the evidence of a method or a run names exist."""
    for section in ("about", METHOD):
        for text in at(data.stated(name), f"{section}.evidence", None) or ():
            for file in TEST_FILE.findall(text):
                if not (TOP / file).is_file():
                    yield f"{section}.evidence", f"there is no {file}"


def round_trip(data: DataFiles, name: str) -> Iterator[Finding]:
    """The resolved configuration, written as in a run folder, loads to the same."""
    config = data.config(name)
    if load_config(data.written(parse_yaml_1_1(dump_config(config)))) != config:
        yield "", "its resolved configuration loads to another one"


def explained(data: DataFiles, name: str) -> Iterator[Finding]:
    """``mmgrpo explain`` raises no error; the rewards take their settings."""
    for single in singles_of(data.config(name)):
        require_settings(single)
        if not explanation(single):
            yield "", "its explanation is empty"


def description(data: DataFiles, name: str) -> Iterator[Finding]:
    """A method, or a run of a paper, states its difference from GRPO, its uses, its completeness and its provenance."""
    path = data.path(name)
    section = METHOD if name.startswith("methods/") else "about"
    values = at(data.stated(name), section, None) or {}
    for key in ("against", "use_for", "holds", "provenance"):
        if not values.get(key):
            yield f"{section}.{key}", "is missing; docs/how-to/methods.md describes its values"
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    sentence = (values.get("against") or "").rstrip(".").lower()
    if sentence and sentence in " ".join(line.lstrip("# ") for line in comments).lower():
        yield f"{section}.against", "repeats a comment of the file; remove the comment"


@cache
def _yaml_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.yaml"))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


CONFIG_RULES = (
    rule_of(loads),
    rule_of(unique_name),
    rule_of(numbers),
    rule_of(evidence_files),
    rule_of(description, "methods", "papers"),
    rule_of(round_trip, *RUNS, "plain"),
    rule_of(explained, *RUNS),
)
