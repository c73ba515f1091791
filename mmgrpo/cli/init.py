"""A first run to edit: ``mmgrpo init`` writes a configuration, a reward and prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmgrpo.config.loading import find_config, read_layers, shipped
from mmgrpo.errors import OutputError, UnknownNameError
from mmgrpo.system.files import writing

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

CONFIG = """\
# mmgrpo explain run.yaml    what it will do
# mmgrpo train run.yaml      does it; for a try of seconds: mmgrpo train run.yaml warmup.steps=2 steps=2
#
# It lies over a small model of handwritten digits. For one of your own, replace the include by a model and a method,
# such as [models/sd3.5-medium, methods/flow-grpo-fast] (mmgrpo methods; mmgrpo recipes), and remove digit_verifier,
# warmup and the two null sections. Every key: docs/configuration.md.
include: [quickstart/digits-image]
name: my-run
note: A first run, written by mmgrpo init.
steps: 20

prompts: {source: prompts.jsonl}            # a row a line; columns beside "prompt" go to the rewards

rewards:
  - {name: digit_verifier}                  # mmgrpo rewards: all there are; mmgrpo rewards digit_verifier: its page
  - {name: "python:my_rewards:brightness", weight: 0.1}

rollout: {prompts_per_step: 10, group_size: 16}

evaluation:
  prompts: {source: prompts.jsonl}          # better: prompts that are not trained on
  samples_per_prompt: 8
  every: 10
  rewards:
    - {name: held_out_judge, label: held_out_accuracy}
    - {name: "python:my_rewards:brightness", label: brightness}
"""

REWARD = '''\
"""Rewards of my own: a number per sample, None where it does not apply."""

from PIL import ImageStat


def brightness(samples):
    """Mean grey level of each picture, from 0 to 1."""
    return [ImageStat.Stat(sample.image.convert("L")).mean[0] / 255 for sample in samples]
'''


def start(folder: Path) -> list[Path]:
    """Writes ``run.yaml``, ``my_rewards.py`` and ``prompts.jsonl``; nothing that is there is replaced.

    Args:
        folder: where to; made if it is not there.

    Returns:
        The files.

    Raises:
        OutputError: one of them is there, or they cannot be written.
    """
    rows = [{"prompt": f"a handwritten digit {word}", "digit": digit} for digit, word in enumerate(DIGITS)]
    texts = {
        folder / "run.yaml": CONFIG,
        folder / "my_rewards.py": REWARD,
        folder / "prompts.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows),
    }
    if there := [path.name for path in texts if path.exists()]:
        raise OutputError(f"{folder} has {' and '.join(there)} already; name another folder: mmgrpo init FOLDER")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    return list(texts)


def recipes(named: str = "") -> dict[str, str]:
    """The configurations that can be run as they are, by the name to run them with: what each wants and is.

    Args:
        named: text that their names hold.

    Returns:
        Notes, one for each.

    Raises:
        UnknownNameError: none is so named.
    """
    every = [name for folder in ("quickstart", "recipes", "papers") for name in shipped(folder)]
    found = [name for name in every if named in name]
    if not found:
        raise UnknownNameError(f"no recipe has {named!r} in its name; mmgrpo recipes lists all {len(every)}")
    return {name: _note(read_layers(find_config(name))) for name in found}


def _note(values: Mapping[str, Any]) -> str:
    recipe = values.get("recipe")
    paper = f" (arXiv:{recipe['paper']})" if recipe else ""
    return " ".join(str(values.get("note", "")).split()) + paper
