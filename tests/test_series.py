"""Series: runs one after another by one command, each from the weights of the one before."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config.loading import load_config
from mmgrpo.config.parts import runs_of
from mmgrpo.errors import ConfigError
from mmgrpo.runs.checkpoint import weights_folder
from mmgrpo.training.trainer import Trainer

SHORT = {
    "include": "quickstart/arithmetic-text",
    "about": {"name": "two"},
    "steps": 2,
    "update": {"warmup": {"steps": 3}},
    "evaluation": None,
    "rollout": {"prompts_per_step": 4, "group_size": 4},
    "tasks": [
        {"name": "easy"},
        {"name": "hard", "set": {"steps": 1, "rollout.group_size": 8, "objective.surrogate": "policy_gradient"}},
    ],
}


def written(folder: Path, **changes: Any) -> Path:
    file = folder / "series.yaml"
    file.write_text(yaml.safe_dump({**SHORT, "output": str(folder / "runs"), **changes}))
    return file


def train(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["train", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def weights(run: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor for file in weights_folder(run).rglob("*.safetensors") for name, tensor in load_file(file).items()
    }


@pytest.mark.nightly
def test_each_run_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    """The same weights as by two commands, the second with the first one's folder as its adapter."""
    output = train(str(written(tmp_path)))
    series, alone = tmp_path / "runs/two", tmp_path / "alone"
    assert f"run 2 of 2: {series / '2-hard'}" in output
    single = ["tasks=[]", f"output={alone}"]
    train(str(written(tmp_path)), *single, "about.name=first")
    changed = ["rollout.group_size=8", "objective.surrogate=policy_gradient", "steps=1", "update.warmup=null"]
    train(str(written(tmp_path)), *single, *changed, "about.name=second", f"policy.adapter={alone / 'first'}")
    for name, run in (("first", "1-easy"), ("second", "2-hard")):
        expected, result = weights(alone / name), weights(series / run)
        assert len(result) > 4
        assert all(torch.equal(result[key], expected[key]) for key in expected)


@pytest.mark.nightly
def test_a_series_resumes(tmp_path: Path) -> None:
    """Without its second run and given again, the second is run, the first not."""
    train(str(written(tmp_path)))
    series = tmp_path / "runs/two"
    expected, stamp = weights(series / "2-hard"), (series / "1-easy/metrics.jsonl").stat().st_mtime_ns
    rmtree(series / "2-hard")
    output = train("--resume", str(series))
    assert "run 1 of 2" not in output
    assert (series / "1-easy/metrics.jsonl").stat().st_mtime_ns == stamp
    assert all(torch.equal(tensor, expected[key]) for key, tensor in weights(series / "2-hard").items())
    refused = CliRunner().invoke(app, ["train", "--resume", str(series), "steps=9"])
    assert refused.exit_code
    assert "under its own configuration, without steps=9" in " ".join(refused.output.split())


@pytest.mark.nightly
def test_a_series_killed_as_it_made_the_folder_of_a_run_resumes(tmp_path: Path) -> None:
    train(str(written(tmp_path)))
    series = tmp_path / "runs/two"
    expected = weights(series / "2-hard")
    rmtree(series / "2-hard")
    (series / "2-hard").mkdir()
    train("--resume", str(series))
    assert sorted(path.name for path in series.iterdir() if path.is_dir()) == ["1-easy", "2-hard"]
    assert all(torch.equal(tensor, expected[key]) for key, tensor in weights(series / "2-hard").items())


def test_the_runs_of_a_series(tmp_path: Path) -> None:
    first, second = runs_of(load_config(written(tmp_path)))
    assert (first.about.name, first.steps, first.rollout.group_size) == ("1-easy", 2, 4)
    assert (second.about.name, second.steps, second.rollout.group_size) == ("2-hard", 1, 8)
    assert first.update.warmup is not None
    assert second.update.warmup is None
    assert runs_of(first) == [first]
    output = CliRunner().invoke(app, ["explain", str(written(tmp_path))]).output
    assert output.index("1-easy, seed 0") < output.index("policy_gradient")


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([{"name": "a"}, {"name": "a"}], "the names must differ"),
        ([{"name": "a", "set": {"stpes": 3}}], "tasks, a: unknown key 'stpes'; did you mean"),
        ([{"name": "../a"}], "tasks.0.name"),
    ],
)
def test_invalid_series_raise_at_once(runs: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(written(tmp_path, tasks=runs))


def test_a_trainer_trains_one_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"this is a series \(easy, hard\)"):
        Trainer("nowhere", lambda samples: [0.0], ["a"], load_config(written(tmp_path)))


def test_later_runs_note_that_the_start_is_of_the_first(tmp_path: Path) -> None:
    first, later = runs_of(load_config(written(tmp_path, about={"note": "The warm-up forgets the carry."})))
    assert first.about.note == "The warm-up forgets the carry."
    assert later.about.note == (
        "It continues from the weights of the previous run. About the first run of the series: The warm-up forgets the "
        "carry."
    )


def test_a_series_is_no_run_to_evaluate(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "1-easy").mkdir()
    (tmp_path / "1-easy/config.yaml").touch()
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path)])
    assert done.exit_code == 2
    output = " ".join(done.output.split())
    assert f"{tmp_path} is the folder of a series; use one of its runs: {tmp_path / '1-easy'}" in output
