"""Commands that start without torch: help, lists and explanations read text and numbers only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmgrpo.config.registry import POLICIES, SETTINGS, is_scheduled, resolve, settings_type
from mmgrpo.policy import SupportsWindows

LIBRARIES = ("torch", "diffusers", "transformers", "accelerate", "peft", "sklearn", "datasets")
ARRAYS = ("numpy", "PIL", "pyarrow")
ENGINE = ("explain", "quickstart/arithmetic-text", "rollout.engine={name: vllm, url: 'http://127.0.0.1:8000'}")
COMMANDS: dict[tuple[str, ...], str] = {
    ("--help",): "serve-rewards",
    ("--version",): "mmgrpo 0.1.0",
    ("train", "--help"): "--resume",
    ("methods",): "flow-grpo",
    ("recipes",): "mmgrpo recipes TEXT",
    ("policies",): "A causal language model",
    ("rewards",): "brightness",
    ("init", "--help"): "Write a first run to edit: a configuration, a reward, prompts",
    ("init", "--from", "trl", "script.yaml"): "mmgrpo explain run.yaml",
    ("explain", "quickstart/digits-image"): "10 prompts x 16 members = 160 samples a step",
    ("explain", "quickstart/digits-vlm"): "temperature = 1",
    ("explain", "quickstart/arithmetic-text"): "clipped: l = max(-A r, -A clip(r, 1 - low, 1 + high))",
    ("explain", "recipes/sd3.5-flow-grpo-fast"): "Flow-GRPO-Fast with CPS",
    ("rewards", "exact_match"): "exact_match",
    ENGINE: "vllm",
    ("report", "run"): "run/report.html",
}
"""Commands, and a text that each prints."""
WITH_ARRAYS = (ENGINE, ("rewards", "exact_match"), ("report", "run"))

RUN_COMMAND = """
import json, sys
from mmgrpo.cli import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    modules = sorted(name for name in sys.modules if "." not in name)
    print(json.dumps([end.code, *modules]), file=open("modules.json", "w"), flush=True)
"""


@pytest.mark.first_case
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_without_computation_import_no_compute_library(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "script.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: openai/gsm8k\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    call = [sys.executable, "-c", RUN_COMMAND, *command]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert COMMANDS[command] in done.stdout
    code, *modules = json.loads((tmp_path / "modules.json").read_text())
    assert code == 0
    assert not set(modules) & {*LIBRARIES, *(() if command in WITH_ARRAYS else ARRAYS)}


@pytest.mark.parametrize("policy", POLICIES)
def test_settings_read_without_a_policy_are_those_of_the_policy(policy: str) -> None:
    adapter = resolve("policies", policy)
    assert settings_type(policy) is adapter.settings_type
    assert is_scheduled(policy) == issubclass(adapter, SupportsWindows)
    assert sorted(SETTINGS) == sorted(POLICIES)


SETTLED = """
from mmgrpo.cli.run_inputs import settings_of
settings_of("quickstart/arithmetic-text", None)
from huggingface_hub.utils import are_progress_bars_disabled
from transformers.utils.logging import is_progress_bar_enabled
print(is_progress_bar_enabled(), not are_progress_bars_disabled())
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("wish", "downloads"), [("0", "True"), ("1", "False")])
def test_only_progress_bars_of_downloads_are_printed(wish: str, downloads: str) -> None:
    environment = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": wish}
    done = subprocess.run([sys.executable, "-c", SETTLED], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.split() == ["False", downloads]


def test_the_package_imports_its_names_on_access() -> None:
    import mmgrpo
    from mmgrpo.types import Prompt

    assert mmgrpo.Prompt is Prompt
    missing = [name for name in mmgrpo.__all__ if getattr(mmgrpo, name, None) is None]
    assert not missing
    with pytest.raises(AttributeError, match="module 'mmgrpo' has no attribute 'Prompts'"):
        _ = mmgrpo.Prompts


@pytest.mark.nightly
def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m mmgrpo.cli recipes | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout == "0\n"
    assert done.stderr == ""
