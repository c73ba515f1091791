"""The functions of docs/how-to/extending.md, registered as the page says, train with their YAML."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import mmgrpo
from mmgrpo.config.loading import CONFIGS, validated
from mmgrpo.data import samplers
from mmgrpo.explain.explanation import explanation
from mmgrpo.maths import (
    advantages,
    controllers,
    estimators,
    filters,
    modulations,
    schedules,
    strategies,
    surrogates,
    terms,
)
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.strategies import Setting
from mmgrpo.memory import Outcomes
from mmgrpo.types import Prompt
from tests.maths.round_rows import round_of

DOCS = CONFIGS.resolve().parent / "docs"
PAGE = (DOCS / "how-to/extending.md").read_text()
HOMES = {
    "SCALES": advantages,
    "ESTIMATORS": estimators,
    "FILTERS": filters,
    "SURROGATES": surrogates,
    "TERMS": terms,
    "MODULATIONS": modulations,
    "STRATEGIES": strategies,
    "SAMPLERS": samplers,
    "SCHEDULES": schedules,
    "CONTROLLERS": controllers,
}
"""The module of each registry."""

SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def defined(page: str) -> dict[str, Any]:
    """The names that a page's Python defines."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        exec(block, names)
    return names


def lines_of(section: str) -> list[tuple[str, str]]:
    """The registry lines that a section shows, each with its registry."""
    text = re.sub(r"```.*?```", "", section, flags=re.DOTALL)
    registered = re.findall(r"`@([A-Z_]+)\.register` above `(\w+)`", text)
    listed = [("COLUMNS", name) for name in re.findall(r"`\"(\w+)\": \w+`", text)]
    return [*registered, *listed]


def _put(registry: str, name: str, function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry with one line more, wherever it was imported."""
    functions = getattr(HOMES[registry], registry)
    extended: Any = {**functions, name: function}
    if isinstance(functions, Registry):
        extended = Registry(functions, arguments=functions.arguments, decorator=functions.decorator)
        extended.register(name)(function)
    for module in [module for key, module in sys.modules.items() if key.startswith("mmgrpo.")]:
        if getattr(module, registry, None) is functions:
            monkeypatch.setattr(module, registry, extended)


@pytest.mark.first_case
@pytest.mark.parametrize("title", [title for title, section in SECTIONS.items() if "```yaml" in section])
def test_example_trains(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, lines = defined("how-to/extending.md"), lines_of(SECTIONS[title])
    assert lines
    for registry, entry in lines:
        module = HOMES[registry].__name__.replace(".", "/")
        assert re.search(rf"`{module}(\.py)?`", SECTIONS[title])
        _put(registry, entry, names[entry], monkeypatch)
    (text,) = re.findall(r"```yaml\n(.*?)```", SECTIONS[title], re.DOTALL)
    config = {"output": str(tmp_path), "steps": 2, **yaml.safe_load(text)}
    config["rollout"] = {"prompts_per_step": 2, "group_size": 4, **config.get("rollout", {})}  # pyrefly: ignore[invalid-argument]
    assert all(entry in text for _, entry in lines)
    policy = defined("learn/smallest-policy.md")["LetterPolicy"]()
    rewards = {"a": lambda samples: [sample.text.count("a") + sample.member % 2 for sample in samples]}
    folder = mmgrpo.Trainer(policy, rewards, [Prompt("one"), Prompt("three")], config).train()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["optimizer/grad_norm"] > 0 for row in rows)
    assert bool(policy.logits.any())
    # bitwise the same from a custom file
    monkeypatch.undo()
    name, weights = f"my_method_{re.sub('[^a-z]', '_', title.lower())}", policy.logits.detach().clone()
    (tmp_path / f"{name}.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)))
    monkeypatch.chdir(tmp_path)
    for _, entry in lines:
        text = re.sub(rf"\b{entry}\b(?=[,}}])", f'"python:{name}:{entry}"', text)
    config |= yaml.safe_load(text) | {"output": str(tmp_path / "own")}
    config["rollout"] = {"prompts_per_step": 2, "group_size": 4, **yaml.safe_load(text).get("rollout", {})}
    policy = defined("learn/smallest-policy.md")["LetterPolicy"]()
    mmgrpo.Trainer(policy, rewards, [Prompt("one"), Prompt("three")], config).train()
    assert torch.equal(policy.logits, weights)
    assert name in explanation(validated(config))


def test_examples_are_short() -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        code = [line for line in block.splitlines() if line.strip() and not line.startswith(("import", "from"))]
        assert len(code) <= 12, block


def test_numbers_of_the_examples() -> None:
    names = defined("how-to/extending.md")
    reward_PG = torch.tensor([[1.0, 0.0, 0.0]])
    assert names["above_median"](reward_PG, factor=2.0).tolist() == [[2.0, 0.0, 0.0]]
    assert [names["halving"](step, initial=2.0, every=2) for step in range(5)] == [2.0, 2.0, 1.0, 1.0, 0.5]
    assert names["thermostat"](0.1, 0.4, target=0.5, by=0.05) == pytest.approx(0.15)
    outcomes = Outcomes(
        keys=("a", "b"),
        num_K=torch.tensor([2, 0]),
        reward_sum_K=torch.tensor([1.5, 0.0], dtype=torch.float64),
        reward_square_sum_K=torch.zeros(2, dtype=torch.float64),
        step=0,
    )
    assert names["best"](torch.tensor([0.5, 0.5], dtype=torch.float64), outcomes).tolist() == [0.75, 0.5]


def test_the_second_attempt_samples_again() -> None:
    """Nobody is right in the first two groups of two: two further prompts, and all four groups are trained on."""

    def ask(reward: float) -> list[int]:
        strategy = defined("how-to/extending.md")["second_look"]()
        setting = Setting(step=0, num_prompts=2, group_size=2)
        first = round_of(strategy.ask((), setting), [reward] * 4)
        assert strategy.ask((first, first), setting) == ()
        return [request.prompt for request in strategy.ask((first,), setting)]

    assert ask(0.0) == [2, 3]
    assert ask(1.0) == []
