"""A first run to edit: ``mmgrpo init`` writes a configuration, a reward and prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmgrpo.config.loading import find_config, read_layers, shipped
from mmgrpo.config.registry import suggestion
from mmgrpo.errors import OutputError, UnknownNameError
from mmgrpo.system.files import output_errors
from mmgrpo.system.targets import import_attribute

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

CONFIG = """\
# mmgrpo explain run.yaml    prints the plan of the run
# mmgrpo train run.yaml      trains; a trial of a few seconds: mmgrpo train run.yaml update.warmup.steps=2 steps=2
#
# It includes a small model of handwritten digits. For your model, replace the include with a model and a method, such
# as [models/sd3.5-medium, methods/flow-grpo-fast] (mmgrpo methods; mmgrpo recipes), and remove digit_verifier, the
# warm-up and the two null sections. Every key: https://mmgrpo.github.io/mmgrpo/reference/configuration/.
include: [quickstart/digits-image]
about: {name: my-run, note: A first run written by mmgrpo init}
steps: 20

prompts: {source: prompts.jsonl}            # one row per line; the other columns go to the rewards

rewards:
  - {name: digit_verifier}                  # mmgrpo rewards lists all; mmgrpo rewards digit_verifier shows its page
  - {name: "python:my_rewards:brightness", weight: 0.1}

rollout: {prompts_per_step: 10, group_size: 16}

evaluation:
  prompts: {source: prompts.jsonl}          # better: held-out prompts
  samples_per_prompt: 8
  every: 10
  rewards:
    - {name: held_out_judge, label: held_out_accuracy}
    - {name: "python:my_rewards:brightness", label: brightness}
"""

REWARD = '''\
"""Custom rewards: one number per sample, None where the reward does not apply."""

from PIL import ImageStat


def brightness(samples):
    """Mean gray level of each image, from 0 to 1."""
    return [ImageStat.Stat(sample.image.convert("L")).mean[0] / 255 for sample in samples]
'''


def write_starter_files(folder: Path) -> list[Path]:
    """Writes ``run.yaml``, ``my_rewards.py`` and ``prompts.jsonl``; replaces no file.

    Args:
        folder: output folder; created if missing.

    Returns:
        The paths of the files.

    Raises:
        OutputError: one of the files exists, or they cannot be written.
    """
    rows = [{"prompt": f"a handwritten digit {word}", "digit": digit} for digit, word in enumerate(DIGITS)]
    texts = {
        folder / "run.yaml": CONFIG,
        folder / "my_rewards.py": REWARD,
        folder / "prompts.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows),
    }
    if existing := [path.name for path in texts if path.exists()]:
        raise OutputError(f"{folder} has {' and '.join(existing)} already; use another folder: mmgrpo init FOLDER")
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    return list(texts)


CONVERTERS: Mapping[str, str] = {"trl": "mmgrpo.trl.conversion:converted"}
"""Library -> the function that converts one of its files."""


def write_converted_run(library: str, source: Path) -> Path:
    """Writes ``run.yaml`` with the run of another library; replaces no file.

    Args:
        library: key of ``CONVERTERS``.
        source: a script or a YAML file of the library; nothing of it is executed.

    Returns:
        The path of ``run.yaml``, in the working directory.

    Raises:
        UnknownNameError: there is no such library.
        ConfigError: the source has values that are computed, or that do not fit together.
        OutputError: ``run.yaml`` exists, or cannot be written.
    """
    if library not in CONVERTERS:
        raise UnknownNameError(f"--from {library} is unknown{suggestion(library, CONVERTERS)}")
    path = Path("run.yaml")
    if path.exists():
        raise OutputError("run.yaml exists already; rename it, or call the command in another folder")
    text = import_attribute(CONVERTERS[library])(source)
    with output_errors(path):
        path.write_text(text, encoding="utf-8")
    return path


def recipe_notes(text: str = "") -> dict[str, str]:
    """The configurations that are complete: name -> note with its requirements.

    Args:
        text: part of the names.

    Returns:
        The notes by name.

    Raises:
        UnknownNameError: no name contains the text.
    """
    all_names = [name for folder in ("quickstart", "recipes", "papers") for name in shipped(folder)]
    names = [name for name in all_names if text in name]
    if not names:
        raise UnknownNameError(f"no recipe has {text!r} in its name; mmgrpo recipes lists all {len(all_names)}")
    return {name: _note(read_layers(find_config(name))) for name in names}


def _note(values: Mapping[str, Any]) -> str:
    about = values.get("about", {})
    paper = f" (arXiv:{about['paper']})" if about.get("paper") else ""
    return " ".join(str(about.get("note", "")).split()) + paper
