"""The command line as a person uses it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageStat
from typer.testing import CliRunner, Result

from mmgrpo.cli import app
from mmgrpo.cli.command_line import _sample_text
from mmgrpo.cli.launch import launch
from mmgrpo.config.loading import LAUNCHED, LAUNCHES, load_config
from mmgrpo.environment import Turn
from mmgrpo.runs.resuming import resume_command
from mmgrpo.types import Prompt, Sample
from tests.tiny.language_models import make

SMALL = [
    "update.warmup.steps=2",
    "steps=1",
    "evaluation.samples_per_prompt=2",
    "rollout.group_size=2",
    "rollout.prompts_per_step=2",
]
DIGITS = "quickstart/digits-image"
LOADING = "loading the libraries and python:mmgrpo.examples.pipelines:digits_pipeline ... "


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs")
    result = call("train", DIGITS, *SMALL, f"output={output}")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()  # no terminal: a separate line for each step, and no bars
    assert [line.split("  ")[0] for line in lines if "left " in line] == [
        "warm-up 1 of 2", "warm-up 2 of 2", "train 1 of 1"
    ]  # fmt: skip
    assert lines[-2].startswith("step    1  held_out_accuracy ")
    assert "━" not in result.output
    assert result.stderr.replace("\n", " ").startswith(LOADING)
    return output / "digits-image"


def test_train_writes_a_complete_run_folder(run: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl", "evaluation.jsonl", "warmup.jsonl", "run.json", "report.html"):
        assert (run / name).stat().st_size > 0, name
    assert len(list((run / "samples" / "step-000001").glob("*.png"))) == 20
    assert (run / "checkpoints" / "step-000001" / "policy" / "transformer").is_dir()


def test_wrong_settings_of_a_policy_are_named_before_the_libraries_are_loaded() -> None:
    result = call("train", "quickstart/arithmetic-text", "policy.max_tokens=3")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: policy (language): unknown key 'max_tokens'; did you mean max_new_tokens")
    task = call("train", "quickstart/digits-mixed", "tasks.drawing.policy.num_step=3")
    assert task.exit_code == 2
    assert task.stderr.startswith("error: tasks.drawing: policy (denoising): unknown key 'num_step'; did you mean")
    assert "loading" not in result.stderr + task.stderr


@pytest.mark.nightly
def test_a_second_run_does_not_touch_the_first(run: Path) -> None:
    before = (run / "metrics.jsonl").read_text()
    assert call("train", DIGITS, *SMALL, f"output={run.parent}").exit_code == 0
    assert (run / "metrics.jsonl").read_text() == before
    assert (run.parent / "digits-image-2" / "report.html").is_file()


@pytest.mark.nightly
def test_evaluate_scores_the_checkpoint_like_the_run(run: Path) -> None:
    result = call("evaluate", DIGITS, *SMALL, "--checkpoint", str(run), "--json")
    last = json.loads((run / "evaluation.jsonl").read_text().splitlines()[-1])
    actual = json.loads(result.output.splitlines()[-1])
    assert actual["eval/spread/mean"] == pytest.approx(last["eval/spread/mean"], rel=1e-6)
    assert actual["eval/held_out_accuracy/mean"] == last["eval/held_out_accuracy/mean"]
    table = call("evaluate", str(run)).output  # the run's own configuration and newest checkpoint
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()[1:] if line.strip()}
    assert rows["held_out_accuracy"][0] == f"{last['eval/held_out_accuracy/mean']:.4g}"
    assert rows["spread"][0] == f"{last['eval/spread/mean']:.4g}"
    assert "neither warmed up nor trained" not in table


@pytest.mark.nightly
def test_sample_generates_images(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = call("sample", str(run), "a handwritten digit seven", "--out", str(out), "--count", "3")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == [
        "0000.png", "0001.png", "0002.png", "samples.jsonl", "sheet.png"
    ]  # fmt: skip
    pictures = [Image.open(out / f"000{number}.png").convert("L") for number in range(3)]
    tile = Image.open(out / "sheet.png").convert("L").crop((144, 8, 272, 136))  # the second, 16 times as large
    away = [ImageStat.Stat(ImageChops.difference(tile.resize((8, 8), 4), picture)).mean[0] for picture in pictures]
    assert away[1] < min(away[0], away[2]) / 2
    assert "not scored by held_out_accuracy: it does not apply" in result.output
    named = call("sample", str(run), "x", "--checkpoint", str(run), "--out", str(tmp_path / "b"), "--count", "3")
    assert named.exit_code == 0, named.output
    for picture in ("0000.png", "0001.png", "0002.png"):
        assert (out / picture).is_file()
    note = call("sample", DIGITS, "x", "--out", str(tmp_path / "c"), "--count", "1").output
    assert "neither warmed up nor trained" in note


def tiny_vision_language_model() -> tuple[Any, Any]:
    return make("qwen2.5-vl")


def test_sample_generates_texts_about_an_image(tmp_path: Path) -> None:
    Image.new("RGB", (16, 16), "red").save(tmp_path / "red.png")
    config = tmp_path / "tiny.yaml"
    model = f"python:{__name__}:tiny_vision_language_model"
    config.write_text(f"policy: {{name: language, model: '{model}', max_new_tokens: 5}}\n")
    common = ["sample", str(config), "which colour?", "--image", str(tmp_path / "red.png"), "--count", "3"]
    result = call(*common, "--out", str(tmp_path / "likeliest"))
    assert result.exit_code == 0, result.output
    assert "(3 times)" in result.output
    rows = samples(tmp_path / "likeliest")
    assert len(rows) == 3
    assert len({row["text"] for row in rows}) == 1
    assert rows[0]["text"].splitlines()[0] in result.output
    (name,) = rows[0]["images"]
    with Image.open(tmp_path / "likeliest" / name) as image:
        assert image.getpixel((0, 0)) == (255, 0, 0)
    result = call(*common, "--noise", "--out", str(tmp_path / "noisy"))
    assert len({row["text"] for row in samples(tmp_path / "noisy")}) == 3
    assert "times)" not in result.output
    result = call("sample", str(config), "which?", "--image", "absent.png", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "absent.png" in result.output


def samples(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


@pytest.mark.nightly
def test_explain_and_lists() -> None:
    assert "10 prompts x 16 members = 160 samples a step" in call("explain", DIGITS).output
    assert "flow-grpo" in call("methods").output
    assert "digit_verifier" in call("rewards").output
    assert "denoising" in call("policies").output


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("update.lrr=1", "did you mean update.optimizer.lr?"),
        ("rollout.group_size=1", "rollout.group_size"),
        ("policy.sampler=flow_sed", "sampler"),
        ("policy.stregth=1", "did you mean strength"),
        ("prompts.source=nowhere.txt", "nowhere.txt"),
        ("rollout.window={name: fixed, start: 8, size: 4}", "9 usable stochastic decisions"),
        ("rewards=[{name: digit_verifer}]", "did you mean digit_verifier"),
        ("policy.lora={targets: [nothing]}", "match no module"),
        ("objective.surrogate={name: clipped, lo: 1}", "did you mean low"),
    ],
)
def test_bad_input_is_one_line_and_deletes_no_file(override: str, expected: str, tmp_path: Path) -> None:
    result = call("train", DIGITS, override, f"output={tmp_path}")
    assert result.exit_code == 2
    message = result.stderr.replace("\n", " ").removeprefix(LOADING)
    assert message.startswith("error:")
    assert expected in message
    assert not list(tmp_path.iterdir())


class TestResume:
    """``train --resume RUN``: its own configuration, or what may be changed of it."""

    def test_a_run_folder_alone_is_enough(self, run: Path, tmp_path: Path) -> None:
        copied = tmp_path / "copied"
        shutil.copytree(run, copied)
        output = call("train", "--resume", str(copied))
        assert output.exit_code == 0, output.output
        assert f"nothing to do: {copied} is at step 1 of 1" in output.output
        longer = call("train", "steps=2", "--resume", str(copied))
        assert longer.exit_code == 0, longer.output
        assert f"run folder: {copied}, resuming from step 1" in longer.output
        assert "changed from here on: steps: 1 -> 2" in longer.output
        assert steps(copied) == [1, 2]
        assert [row["step"] for row in rows(copied / "evaluation.jsonl")] == [0, 1, 2]
        assert not (copied.parent / "digits-image").exists()

    def test_another_configuration_is_compared_with_the_runs_own(self, run: Path) -> None:
        before = (run / "config.yaml").read_text()
        refused = call("train", DIGITS, *SMALL, "seed=3", f"output={run.parent}", "--resume", str(run))
        assert refused.exit_code == 2
        assert "cannot resume with seed: 0 -> 3 (every random number follows from it)" in refused.stderr
        same = call("train", DIGITS, *SMALL, "--resume", str(run))
        assert "nothing to do" in same.output
        assert (run / "config.yaml").read_text() == before

    def test_without_a_run_the_error_names_the_missing_argument(self, tmp_path: Path) -> None:
        nothing = call("train")
        assert nothing.exit_code == 2
        assert "train needs a configuration (a YAML file or a shipped name), or --resume RUN" in nothing.stderr
        missing = call("train", "--resume", str(tmp_path))
        assert missing.exit_code == 2
        assert "is neither a run folder nor a checkpoint of one" in missing.stderr


def steps(folder: Path) -> list[int]:
    return sorted({row["step"] for row in rows(folder / "metrics.jsonl")})


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


LEAVING = """
import os, signal
calls = []

def leaving(samples):
    calls.append(1)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.{signal})
    return [1.0] * len(samples)

def exiting(samples):
    raise SystemExit(0)
"""


@pytest.mark.parametrize(
    ("signal", "code", "status", "step"),
    [
        pytest.param("SIGINT", 130, "interrupted", 2, marks=pytest.mark.slow),
        pytest.param("SIGTERM", 143, "terminated", 1, marks=pytest.mark.nightly),
        pytest.param("SIGUSR1", 143, "terminated", 1, marks=pytest.mark.nightly),
    ],
)
def test_a_terminated_process_prints_how_to_resume(
    signal: str, code: int, status: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"leaving_by_{signal.lower()}"  # a new module, for it stays imported
    (tmp_path / f"{module}.py").write_text(LEAVING.format(signal=signal))
    command = [sys.executable, "-m", "mmgrpo.cli", "train", DIGITS, "update.warmup=null", "evaluation=null",
               "steps=3", "rollout.group_size=2", "rollout.prompts_per_step=2"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    first = subprocess.run([*command, f"rewards=[{{name: 'python:{module}:leaving'}}]"], cwd=tmp_path, env=environment,
                           capture_output=True, text=True, timeout=300)  # fmt: skip
    folder = tmp_path / "runs" / "digits-image"
    assert first.returncode == code, first.stdout + first.stderr
    assert f"{status}; to resume from step {step}: mmgrpo train --resume {folder}\n" in first.stdout
    assert json.loads((folder / "run.json").read_text())["status"] == status
    assert steps(folder) == list(range(1, step + 1))
    monkeypatch.chdir(tmp_path)  # the reward is in the working directory of the command
    second = call("train", "--resume", str(folder))
    assert second.exit_code == (code if step == 1 else 0), second.output
    assert steps(folder) == ([1, 2] if step == 1 else [1, 2, 3])


def test_a_reward_that_exits_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exiting_rewards.py").write_text(LEAVING.format(signal="SIGINT"))
    monkeypatch.chdir(tmp_path)
    result = call("train", DIGITS, "update.warmup=null", "evaluation=null", "rollout.group_size=2",
                  "rollout.prompts_per_step=2", "rewards=[{name: 'python:exiting_rewards:exiting'}]")  # fmt: skip
    assert result.exit_code == 2
    assert "it raised SystemExit: 0" in result.stderr.replace("\n", " ")
    assert not list((tmp_path / "runs").iterdir())


def test_the_launcher_forwards_the_warning_signal_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.run import get_args_parser

    monkeypatch.setenv(LAUNCHED, "")
    monkeypatch.setenv("PET_SIGNALS_TO_HANDLE", "")  # put back as it was in the end
    monkeypatch.delenv("PET_SIGNALS_TO_HANDLE")
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, command: became.append(command))
    launch("gpus", [DIGITS], processes=2)
    assert resume_command(Path("run"), load_config(DIGITS), 2) == (
        "mmgrpo train --resume run --accelerate gpus --processes 2"
    )
    assert became == [
        [sys.executable, "-m", "mmgrpo.cli.accelerate_entry", "--config_file", str(LAUNCHES / "gpus.yaml"),
         "--num_processes", "2", "-m", "mmgrpo.cli", "train", DIGITS]
    ]  # fmt: skip
    signals = get_args_parser().parse_args(["script.py"]).signals_to_handle  # as accelerate has torch read it
    assert signals == "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"


def test_conversations_are_printed_turn_by_turn() -> None:
    replies = (Turn(text="Image 2", images=[Image.new("RGB", (2, 2))] * 2), Turn(text="16"), Turn(done=True))
    sample = Sample(Prompt("which?"), 0, 0, text="zoomIm", turn_texts=["zoom", "count", "7"], turn_replies=replies)
    assert _sample_text(sample) == "zoom\n→ [2 media] Image 2\ncount\n→ 16\n7"
    late = replace(sample, turn_replies=(*replies[:2], Turn(text="late")), finished=False)
    assert _sample_text(late).endswith("\n7\n→ late\n... (cut off: a limit of the tokens or turns was reached)")
    assert _sample_text(Sample(Prompt("which?"), 0, 0, text="7")) == "7"


@pytest.mark.parametrize("option", ["--learning_rate=1e-6", "--learning-rate"])
def test_setting_with_dashes_is_an_error_with_its_key(option: str) -> None:
    result = CliRunner().invoke(app, ["explain", "quickstart/digits-image", option])
    assert result.exit_code == 2
    assert "settings of a run are written without dashes, update.optimizer.lr=1e-4; TRL's learning_rate is" in " ".join(
        result.stderr.split()
    )


@pytest.mark.parametrize("command", ["explain", "train"])
def test_setting_that_an_environment_lacks_is_an_error_with_its_settings(command: str) -> None:
    environment = "rollout.environment={name: python, foo: 1}"
    result = CliRunner().invoke(app, [command, "quickstart/arithmetic-text", environment])
    assert result.exit_code == 2
    assert "rollout.environment python: unknown setting 'foo'; known are answer_tag, call, describe" in result.stderr


def test_quantized_weights_are_not_predicted_as_sharded() -> None:
    overrides = ["policy.quantization_config={load_in_4bit: true}", "--accelerate", "fsdp2", "--processes", "2"]
    result = CliRunner().invoke(app, ["explain", "recipes/sd3.5-flow-grpo-fast", *overrides])
    assert result.exit_code == 2
    assert "policy.quantization_config: quantized weights cannot be sharded (FSDP2)" in result.stderr
