"""The tutorials of docs/learn/ run from their first file to the export, with tiny models of the real classes."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config.loading import CONFIGS
from tests.tiny.language_models import save
from tests.tiny.pipelines import PIPELINES

LEARN = CONFIGS.resolve().parent / "docs/learn"
SMALL: dict[str, dict[str, Any]] = {
    "circles": {
        "policy": {"model": "model", "dtype": "float32", "max_new_tokens": 4, "processor": {}, "lora": {"rank": 2}},
        "rollout": {"prompts_per_step": 2, "group_size": 2},
        "evaluation": {"prompts": {"limit": 2}, "every": 1},
        "steps": 1,
        "runtime": {"device": "cpu"},
    },
    "contrast": {
        "policy": {
            "model": "model",
            "dtype": "float32",
            "call": {"height": 16, "width": 16, "num_inference_steps": 6, "max_sequence_length": 16},
            "evaluation_call": {"num_inference_steps": 2},
            "lora": {"rank": 2, "targets": None},
        },
        "rollout": {"prompts_per_step": 2, "group_size": 2},
        "evaluation": {"every": 1},
        "steps": 1,
        "runtime": {"device": "cpu"},
    },
}


def write_files(page: str, folder: Path) -> list[str]:
    """Writes the titled files of a page, YAML with small numbers; its commands."""
    text = (LEARN / page).read_text()
    for name, body in re.findall(r'```\w+ title="([\w.]+)"\n(.*?)```', text, re.DOTALL):
        (folder / name).write_text(body)
        if name.endswith(".yaml"):
            (folder / name).rename(folder / f"page-{name}")
            small = {"include": [f"page-{name}"], **SMALL[name.removesuffix(".yaml")]}
            (folder / name).write_text(yaml.safe_dump(small))
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines() if line]


def run_commands(commands: list[str]) -> None:
    for command in commands:
        program, *arguments = re.findall(r'"[^"]*"|\S+', command)
        if program == "python":
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            assert program == "mmgrpo"
            result = CliRunner().invoke(app, [argument.strip('"') for argument in arguments])
            assert result.exit_code == 0, f"{command}\n{result.output}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for module in ("letter_policy", "my_rewards"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.nightly
def test_vision_language_model_of_the_tutorial_trains_and_is_exported(folder: Path) -> None:
    commands = write_files("vlm.md", folder)
    script = folder / "make_rows.py"
    script.write_text(
        script.read_text().replace('"train", 1000', '"train", 4').replace('"held_out", 100', '"held_out", 2')
    )
    save("qwen2.5-vl", folder / "model")
    assert len(commands) == 7
    run_commands(commands)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert [sorted(row) for row in rows] == [["answer", "image", "prompt"]] * 4
    (line,) = metrics(folder / "runs/circles")
    assert line["reward/count/applies_frac"] == 1.0
    assert (folder / "exports/circles/adapter_model.safetensors").exists()


@pytest.mark.nightly
def test_image_generator_of_the_tutorial_trains_and_is_exported(folder: Path) -> None:
    commands = write_files("image.md", folder)
    PIPELINES["sd3"].build().save_pretrained(folder / "model")
    assert len(commands) == 6
    run_commands(commands)
    (line,) = metrics(folder / "runs/contrast")
    assert 0 < line["reward/contrast/mean"] < 0.5
    assert (folder / "exports/contrast/pytorch_lora_weights.safetensors").exists()


def test_smallest_policy_of_the_tutorial_learns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = write_files("smallest-policy.md", folder)
    (code,) = re.findall(
        r"```python\n# letter_policy\.py\n(.*?)```", (LEARN / "smallest-policy.md").read_text(), re.DOTALL
    )
    (folder / "letter_policy.py").write_text(code)
    names = runpy.run_path("test_letter_policy.py")
    for law in names["LAWS"]:
        names["test_law"](law)
    run_commands(commands)
    share = float(capsys.readouterr().out.splitlines()[-1].partition("tensor(")[2].rstrip(")"))
    assert share > 0.3  # 1 / 26 before
    assert len(metrics(folder / "runs/run")) == 20
