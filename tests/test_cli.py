"""The command line as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from mmgrpo.cli import app
from tests.tiny.language_models import make

SMALL = [
    "warmup.steps=2",
    "steps=1",
    "evaluation.samples_per_prompt=2",
    "rollout.group_size=2",
    "rollout.prompts_per_step=2",
]
DIGITS = "quickstart/digits-image"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs")
    result = call("train", DIGITS, *SMALL, f"output={output}")
    assert result.exit_code == 0, result.output
    return output / "digits-image"


def test_train_leaves_a_whole_run_folder(run: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl", "evaluation.jsonl", "warmup.jsonl", "run.json", "report.html"):
        assert (run / name).stat().st_size > 0, name
    assert len(list((run / "samples" / "step-000001").glob("*.png"))) == 20
    assert (run / "checkpoints" / "step-000001" / "policy" / "transformer").is_dir()


def test_a_second_run_does_not_touch_the_first(run: Path) -> None:
    before = (run / "metrics.jsonl").read_text()
    assert call("train", DIGITS, *SMALL, f"output={run.parent}").exit_code == 0
    assert (run / "metrics.jsonl").read_text() == before
    assert (run.parent / "digits-image-2" / "report.html").is_file()


def test_evaluate_judges_the_checkpoint_as_the_run_did(run: Path) -> None:
    result = call("evaluate", DIGITS, *SMALL, "--checkpoint", str(run))
    last = json.loads((run / "evaluation.jsonl").read_text().splitlines()[-1])
    found = json.loads(result.output.splitlines()[-1])
    assert found["eval/spread/mean"] == pytest.approx(last["eval/spread/mean"], rel=1e-6)
    assert found["eval/held_out_accuracy/mean"] == last["eval/held_out_accuracy/mean"]


def test_sample_draws_pictures(run: Path, tmp_path: Path) -> None:
    result = call("sample", DIGITS, "a handwritten digit seven", "--checkpoint", str(run), "--out", str(tmp_path),
                  "--count", "3")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert len(list(tmp_path.rglob("*.png"))) == 3


def tiny_vision_language_model() -> tuple[Any, Any]:
    return make("qwen2.5-vl")


def test_sample_writes_texts_about_a_picture(tmp_path: Path) -> None:
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
    (shown,) = rows[0]["images"]
    with Image.open(tmp_path / "likeliest/samples/step-000000" / shown) as kept:
        assert kept.getpixel((0, 0)) == (255, 0, 0)
    result = call(*common, "--noise", "--out", str(tmp_path / "noisy"))
    assert len({row["text"] for row in samples(tmp_path / "noisy")}) == 3
    assert "times)" not in result.output
    result = call("sample", str(config), "which?", "--image", "absent.png", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "absent.png" in result.output


def samples(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "samples/step-000000/samples.jsonl").read_text().splitlines()]


def test_explain_and_lists() -> None:
    assert "10 prompts x 16 members = 160 samples a step" in call("explain", DIGITS).output
    assert "flow-grpo" in call("methods").output
    assert "digit_verifier" in call("rewards").output
    assert "denoising" in call("policies").output


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("update.lrr=1", "did you mean lr"),
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
def test_bad_input_is_one_line_and_loses_nothing(override: str, said: str, tmp_path: Path) -> None:
    result = call("train", DIGITS, override, f"output={tmp_path}")
    assert result.exit_code == 2
    message = result.stderr.replace("\n", " ")
    assert message.startswith("error:")
    assert said in message
    assert not list(tmp_path.iterdir())
