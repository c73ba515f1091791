"""The notebooks of examples/notebooks/ run from the first cell to the last, on tiny models of the real classes.

A test replaces the cell with the tag ``parameters`` and leaves out the one with the tag ``install``; the other
cells run in order, as they are.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.config.loading import CONFIGS
from tests.tiny.language_models import save
from tests.tiny.pipelines import PIPELINES

FOLDER = CONFIGS.resolve().parent / "examples/notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
BADGE = "(https://colab.research.google.com/github/mmgrpo/mmgrpo/blob/main/examples/notebooks/{}.ipynb)"


def cells_of(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def tags_of(cell: dict[str, Any]) -> list[str]:
    return cell["metadata"].get("tags", [])


def executed(name: str, parameters: str) -> dict[str, Any]:
    """The names that the cells of a notebook define; ``parameters`` assigns the same names as the cell it replaces."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells_of(name)):
        if cell["cell_type"] == "code" and "install" not in tags_of(cell):
            source = "".join(cell["source"])
            if "parameters" in tags_of(cell):
                assert assigned(parameters) == assigned(source)
                source = parameters
            exec(compile(source, f"{name}.ipynb, cell {number}", "exec"), names)
    return names


def assigned(source: str) -> set[str]:
    return {
        node.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_is_valid_and_has_no_outputs(name: str) -> None:
    value = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert (value["nbformat"], value["nbformat_minor"]) == (4, 5)
    assert set(value) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    cells = value["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    assert {cell["cell_type"] for cell in cells} == {"code", "markdown"}
    ids = [cell["id"] for cell in cells]
    assert len({*ids}) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)
    assert [tags for cell in code if (tags := tags_of(cell))] == [["install"], ["parameters"]]
    assert BADGE.format(name) in "".join(cells[0]["source"])
    assert len(code) <= 7


def test_site_and_readme_link_every_notebook() -> None:
    root = FOLDER.parents[1]
    page, readme = (root / "docs/learn/notebooks.md").read_text(), (root / "README.md").read_text()
    assert [name for name in NOTEBOOKS if BADGE.format(name) not in page] == []
    assert "(docs/learn/notebooks.md)" in readme


def test_own_policy_notebook_has_the_policy_of_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = executed("own_policy", "steps, group_size, changes = 20, 16, {}")
    assert names["probability"] > 0.3  # 1 / 26 before
    page = (FOLDER.parents[1] / "docs/learn/smallest-policy.md").read_text()
    (policy,) = re.findall(r"```python\n# letter_policy\.py\n(.*?)\n```", page, re.DOTALL)
    assert ["".join(cell["source"]) for cell in cells_of("own_policy")].count(policy) == 1


@pytest.mark.nightly
def test_vision_language_notebook_trains_adapters_of_a_quantized_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save("qwen2.5-vl", tmp_path / "model")
    small = {
        "policy.dtype": "float32",
        "policy.max_new_tokens": 4,
        "policy.lora": {"rank": 2},
        "policy.quantization_config": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        "rollout": {"prompts_per_step": 2, "group_size": 2},
        "objective.entropy_bonus": 0.1,  # a random model is never right, so rewards train nothing
        "evaluation.every": 1,
        "runtime.device": "cpu",
    }
    parameters = f"model, num_train, num_held_out, steps = 'model', 4, 2, 1\nchanges = {small}"
    names = executed("vlm_counting", parameters)
    assert [row["step"] for row in names["evaluations"]] == [0, 1]
    (line,) = lines_of(names["run"] / "metrics.jsonl")
    assert line["reward/count/applies_frac"] == 1.0
    modules = dict(names["trainer"].policy.model.named_modules())
    adapted = [module for name, module in modules.items() if "language_model" in name and name.endswith(".up_proj")]
    assert {type(module.base_layer).__name__ for module in adapted} == {"Linear4bit"}
    assert all(module.lora_B["default"].weight.any() for module in adapted)  # trained: zero at the start


@pytest.mark.nightly
def test_image_notebook_trains_from_its_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    PIPELINES["sd3"].build().save_pretrained(tmp_path / "model")
    small = {
        "policy.dtype": "float32",
        "policy.quantization_config": None,  # diffusers quantizes with bitsandbytes on a GPU only
        "policy.call": {"height": 16, "width": 16, "num_inference_steps": 6, "max_sequence_length": 16},
        "policy.evaluation_call": {"num_inference_steps": 2},
        "policy.lora": {"rank": 2},
        "rollout.prompts_per_step": 2,
        "rollout.group_size": 2,
        "evaluation.every": 1,
        "runtime.device": "cpu",
    }
    names = executed("image_reward", f"model, steps = 'model', 1\nchanges = {small}")
    (line,) = lines_of(names["run"] / "metrics.jsonl")
    assert line["reward/tint/applies_frac"] == 1.0
    assert -1 < line["reward/tint/mean"] < 1
    assert (tmp_path / "before_and_after.png").stat().st_size > 0


@pytest.mark.nightly
def test_comparison_notebook_trains_each_method_from_the_same_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = {
        "update.warmup.steps": 20,
        "rollout.prompts_per_step": 8,
        "evaluation.prompts.limit": 20,
        "evaluation.every": 1,
    }
    names = executed("compare_methods", f"methods, steps = ['grpo', 'dr-grpo'], 2\nchanges = {small}")
    accuracy = names["accuracy"]
    assert {method: [*by_step] for method, by_step in accuracy.items()} == {"grpo": [0, 1, 2], "dr-grpo": [0, 1, 2]}
    assert accuracy["grpo"][0] == accuracy["dr-grpo"][0]
    first, second = ((run / "config.yaml").read_text() for run in names["runs"].values())
    assert "name: grpo" in first
    assert "name: dr-grpo" in second
    assert list(tmp_path.rglob("compare.html"))
