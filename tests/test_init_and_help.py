"""The first commands of a user: a first run to edit, lists, help, completion, and rewards in explain."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from PIL import Image
from typer.testing import CliRunner, Result

from mmgrpo.cli import app
from mmgrpo.cli.command_line import EXAMPLES
from mmgrpo.cli.init import starter_kinds
from mmgrpo.cli.recipe_list import summary_of
from mmgrpo.config.loading import load_config, shipped
from mmgrpo.config.registry import REWARDS, resolve
from mmgrpo.docgen.signatures import signature_at
from tests.breadth import assembly
from tests.tiny.language_models import save
from tests.tiny.pipelines import PIPELINES

SMALL = ["steps=1", "update.warmup.steps=2", "rollout.group_size=2", "evaluation.samples_per_prompt=2"]


def call(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env=environment)


def output_of(*command: str, folder: Path, **environment: str) -> str:
    """The output of ``python -m mmgrpo`` in a new process."""
    surroundings = {**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-m", "mmgrpo", *command], cwd=folder, env=surroundings,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
def test_files_of_init_are_explained_and_trained_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = output_of("init", "mine", folder=tmp_path)
    assert answer.splitlines() == ["wrote mine/my_rewards.py", "wrote mine/prompts.jsonl", "wrote mine/run.yaml",
                                 "cd mine && mmgrpo train run.yaml"]  # fmt: skip
    folder = tmp_path / "mine"
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command appends the folder
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)  # of another test
    assert "10 prompts x 16 members = 160 samples a step" in call("explain", "run.yaml").output
    assert call("train", "run.yaml", *SMALL).exit_code == 0
    (line,) = {row["step"]: row for row in map(json.loads, (folder / "runs/my-run/metrics.jsonl").open())}.values()
    total = line["reward/digit_verifier/mean"] + 0.1 * line["reward/brightness/mean"]
    assert line["reward/mean"] == pytest.approx(total, rel=1e-5)
    before = (folder / "run.yaml").read_text()
    again = call("init", str(folder))
    assert again.exit_code == 2
    assert "has my_rewards.py and prompts.jsonl and run.yaml already" in again.stderr
    assert (folder / "run.yaml").read_text() == before


AUDIO = "StableAudioPipeline"
CALL = {"height": 16, "width": 16, "num_inference_steps": 6, "max_sequence_length": 16}
TINY_DENOISER = {"lora": {"rank": 2}, "evaluation_call": {"num_inference_steps": 2}}
TINY_TEXT = {"max_new_tokens": 4, "lora": {"rank": 2}}
TINY_RUNS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "text": ("qwen2", TINY_TEXT, ["number", "brevity"]),
    "vlm": ("qwen2.5-vl", TINY_TEXT | {"processor": {}}, ["count", "number_alone"]),
    "image": ("sd3", TINY_DENOISER | {"call": CALL}, ["tint"]),
    "edit": ("flux-kontext", TINY_DENOISER | {"call": CALL | {"max_area": 256}}, ["recolored", "image_similarity"]),
    "video": ("wan", TINY_DENOISER | {"call": CALL | {"height": 32, "width": 32, "num_frames": 5}}, ["movement"]),
    "audio": (
        AUDIO,
        TINY_DENOISER | {"call": {**assembly.arguments(AUDIO), "audio_end_in_s": 2.0}},
        ["steadiness", "clipping"],
    ),
}
"""Kind -> its tiny model, the settings that make a call of it small, and the rewards of the run."""
NIGHTLY = pytest.mark.nightly
FEW = [
    "steps=1",
    "rollout.prompts_per_step=2",
    "rollout.group_size=2",
    "evaluation.prompts.limit=2",
    "runtime.device=cpu",
]


KINDS = [kind for kind in starter_kinds() if kind != "digits"]


@pytest.fixture
def first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a first run, in which its rewards are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)  # of another test
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_run_of_each_kind_is_explained(kind: str, first_run: Path) -> None:
    written = call("init", ".", "--kind", kind).output.splitlines()
    assert [line.removeprefix("wrote ") for line in written[:-1]] == sorted(path.name for path in first_run.iterdir())
    assert written[-1] == "mmgrpo train run.yaml"
    explained = call("explain", "run.yaml")
    assert explained.exit_code == 0, explained.output
    assert "\nmemory          add --processes 1 for memory" in explained.output
    (reward,) = re.findall(r"^reward +(.*)", explained.output, re.MULTILINE)
    assert re.findall(r"[a-z_]{2,}", reward) == TINY_RUNS[kind][2]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [kind if kind == "text" else pytest.param(kind, marks=NIGHTLY) for kind in KINDS])
def test_run_of_each_kind_trains_a_tiny_model(kind: str, first_run: Path) -> None:
    model, policy, rewards = TINY_RUNS[kind]
    assert call("init", ".", "--kind", kind).exit_code == 0
    if kind in ("text", "vlm"):
        save(model, first_run / "model")
    else:
        pipeline = assembly.build(AUDIO) if model == AUDIO else PIPELINES[model].build()
        pipeline.save_pretrained(first_run / "model")
    for path in (first_run / "images").glob("*.png") if kind == "edit" else ():  # an edit has the size of its source
        Image.open(path).resize((16, 16)).save(path)
    small = {"include": ["run.yaml"], "policy": {"model": "model", "dtype": "float32", **policy}}
    Path("small.yaml").write_text(yaml.safe_dump(small))
    result = call("train", "small.yaml", *FEW)
    assert result.exit_code == 0, result.output
    (line,) = [json.loads(row) for row in Path("runs/my-run/metrics.jsonl").read_text().splitlines()]
    assert {name: line[f"reward/{name}/applies_frac"] for name in rewards} == dict.fromkeys(rewards, 1.0)
    before, after = [json.loads(row) for row in Path("runs/my-run/evaluation.jsonl").read_text().splitlines()]
    held_out = {key for key in after if key.endswith("/mean")}
    assert (before["step"], after["step"]) == (0, 1)
    assert len(held_out) >= 2
    assert held_out <= before.keys()


def test_unknown_kind_names_the_nearest() -> None:
    refused = call("init", "mine", "--kind", "vlms")
    assert refused.exit_code == 2
    assert "--kind vlms is unknown; did you mean vlm?; the kinds are audio, digits, edit, image, text, video, vlm" in (
        " ".join(refused.stderr.split())
    )


def test_recipes_lists_each_recipe_with_a_summary() -> None:
    printed = call("recipes", COLUMNS="80").output
    names = [name for folder in ("quickstart", "recipes", "papers") for name in shipped(folder)]
    lines = printed.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == [*names, lines[-1]]
    assert lines[-1] == "mmgrpo recipes TEXT also shows the requirements of those with TEXT in their names."
    summary = lines[lines.index("recipes/qwen2.5-vl-clevr-count") + 1]
    assert summary == "  Qwen2.5-VL-3B-Instruct; GRPO; count, format; clevr_cogen_a_train"
    assert lines[lines.index("recipes/qwen2.5-vl-gui") + 1].endswith("gui_action, format; ritzzai/GUI-R1:train.parquet")
    assert max(map(len, lines[:-1])) <= 80
    assert len(lines) < 3 * len(names)


def test_recipes_with_a_text_have_their_notes() -> None:
    geneval, papers = (" ".join(call("recipes", text, COLUMNS="80").output.split()) for text in ("geneval", "papers"))
    assert "Needs no data: prompts are generated. Flow-GRPO reports GenEval 0.63" in geneval
    assert "Choose the held-out prompts. (arXiv:2503.01785)" in papers


def test_summaries_have_the_parts_of_all_tasks() -> None:
    tasks = {
        "text": {"policy": {"model": "Qwen/Qwen3-4B"}, "rewards": ["python:my_rewards:right"], "prompts": "a/b.jsonl"},
        "image": {"policy": {"model": "Qwen/Qwen3-4B"}, "rewards": [{"name": name} for name in "abc"], "prompts": None},
    }
    values = {"about": {"method": {"name": "grpo", "title": "GRPO"}}, "tasks": tasks}
    assert summary_of(values) == "Qwen3-4B; GRPO; right, a, b and 1 more; a/b.jsonl"
    assert summary_of({"prompts": {"source": "reasoning_gym:chain_sum?size=9"}}) == "chain_sum"
    assert summary_of({"prompts": {"source": "openai/gsm8k:main"}}) == "gsm8k:main"
    assert summary_of({"prompts": {"source": "https://host/owner/name/main/ocr/train.txt?raw=1"}}) == "ocr/train.txt"


def test_recipes_are_found_by_a_part_of_their_names() -> None:
    printed = call("recipes", "flux", COLUMNS="80").output
    names = [
        "recipes/flux-dance-grpo",
        "recipes/flux-dance-grpo-one-gpu",
        "recipes/flux-mix-grpo",
        "recipes/flux-mix-grpo-one-gpu",
    ]
    assert [line for line in printed.splitlines() if line and not line.startswith(" ")] == names
    refused = call("recipes", "fluxx")
    assert refused.exit_code == 2
    assert "no recipe has 'fluxx' in its name; mmgrpo recipes lists all" in refused.stderr


def test_help_is_complete_in_80_columns() -> None:
    helped = call("--help", COLUMNS="80", TERMINAL_WIDTH="80").output
    assert "..." not in helped.replace("COMMAND [ARGS]...", "")
    assert max(map(len, helped.splitlines())) <= 80
    words = " ".join(helped.split())
    for command in app.registered_commands:
        assert (inspect.getdoc(command.callback) or "").partition("\n")[0] in words


@pytest.mark.nightly
def test_help_of_each_command_ends_with_an_example_that_it_accepts() -> None:
    commands = typer.main.get_command(app).commands  # pyrefly: ignore[missing-attribute]
    assert {*EXAMPLES} == {*commands}
    for name, command in commands.items():
        program, called, *arguments = shlex.split(EXAMPLES[name])
        assert (program, called) == ("mmgrpo", name)
        values = command.make_context(name, arguments).params
        if name in ("train", "doctor", "explain", "serve-rewards"):
            load_config(values["config"], values["overrides"] or ())
        helped = call(name, "--help", COLUMNS="80", TERMINAL_WIDTH="80").output
        assert " ".join(helped.split()).endswith(f"Example: {EXAMPLES[name]}")


@pytest.mark.nightly
def test_commands_are_completed_by_the_shell(tmp_path: Path) -> None:
    script = output_of(folder=tmp_path, _MMGRPO_COMPLETE="source_bash")
    assert "_MMGRPO_COMPLETE=complete_bash" in script
    environment = {"_MMGRPO_COMPLETE": "complete_bash", "COMP_WORDS": "mmgrpo re", "COMP_CWORD": "1"}
    assert output_of(folder=tmp_path, **environment).split() == ["report", "recipes", "rewards"]


def test_a_task_alone_is_named_as_a_part_of_a_run() -> None:
    result = call("explain", "tasks/pick-score")
    assert result.exit_code == 2
    assert "include it after a model and a method, include: [models/MODEL, methods/METHOD, tasks/TASK]" in " ".join(
        result.stderr.split()
    )
    assert "title" not in result.stderr


class TestRewards:
    """explain catches what train would, without importing the reward."""

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("rewards=[{name: digit_verifer}]", "unknown name 'digit_verifer' among rewards; did you mean digit_v"),
            ("rewards=[{name: number, relativ: 1}]", "reward number: unknown setting 'relativ'; did you mean relative"),
            ("rewards=[{name: jpeg_size, quallity: 3}]", "reward jpeg_size: unknown setting 'quallity'"),
            ("evaluation.rewards=[{name: held_out_juge}]", "did you mean held_out_judge"),
            (
                "rewards=[{name: 'python:mmgrpo.rewards.images.pixels:Brightnes'}]",
                "no 'Brightnes'; did you mean Brightness",
            ),
            ("rewards=[{name: conciseness}]", "reward conciseness: needs the setting of"),
            ("rewards=[{name: conciseness, of: exact_mach}]", "did you mean exact_match"),
        ],
    )
    def test_mistakes(self, override: str, message: str) -> None:
        result = call("explain", "quickstart/digits-image", override)
        assert result.exit_code == 2, result.output
        assert message in result.stderr

    def test_every_reward_is_read_as_it_is(self) -> None:
        signatures = {name: signature_at(target) for name, target in REWARDS.items()}
        for name, signature in signatures.items():
            parameters = inspect.signature(resolve("rewards", name)).parameters.values()
            if signature is not None:
                assert list(signature.takes) == [parameter.name for parameter in parameters], name
                assert list(signature.needs) == [
                    parameter.name for parameter in parameters if parameter.default is parameter.empty
                ], name
        assert sum(signature is not None for signature in signatures.values()) > 0.9 * len(signatures)
