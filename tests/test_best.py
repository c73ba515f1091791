"""The best checkpoint by a held-out reward: its choice, that it is kept, and that a resumed run knows it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.examples.digits import digit_prompts
from safetensors.torch import load_file

from mmgrpo.cli.run_inputs import weights_for
from mmgrpo.config.loading import validated
from mmgrpo.config.parts import tasks_of
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.runs.best import best_checkpoint, best_step
from mmgrpo.runs.checkpoint import list_checkpoints
from mmgrpo.training.mixed import MixedTrainer
from mmgrpo.training.trainer import Trainer
from tests.scripted import SCORES
from tests.test_resuming import timeless
from tests.test_trainer import brightness, lines, make_policy, run, weights

EVALUATION: dict[str, Any] = {
    "prompts": {"source": "python:mmgrpo.examples.digits:digit_prompts", "limit": 2},
    "every": 1,
    "rewards": [{"name": "python:tests.scripted:held_out", "label": "held_out"}],
}
SMALL: dict[str, Any] = {
    "rollout": {"prompts_per_step": 1, "group_size": 2},
    "objective": {"kl": {"beta": 0.0}},
    "update": {"optimizer": {"lr": 1e-3}},
}
"""What is trained is no matter here, as long as each step moves the weights."""


def run_scored(output: Path, values: Sequence[float | None], *, resume: Path | None = None, **changes: Any) -> Trainer:
    """A run whose evaluations have these scores, from that at step 0 on; or one that resumes."""
    SCORES[:] = values
    checkpoint = {"every": 1, "keep": 1, "best": "held_out", **changes.pop("checkpoint", {})}
    changes = {**SMALL, "steps": len(values) - 1, "evaluation": EVALUATION, **changes}
    return run(output, resume=resume, checkpoint=checkpoint, **changes)


def names(trainer: Trainer) -> list[str]:
    return [path.name for path in list_checkpoints(trainer.folder.path)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("values", "checkpoints"),
    [
        ([9, 1, 3, 2, 1], ["step-000002", "step-000004"]),  # before the first step nothing is trained
        pytest.param([0, 1, 2, 3, 4], ["step-000004"], marks=pytest.mark.nightly),
        # of equal ones the first
        pytest.param([0, 3, 3, 1, 3], ["step-000001", "step-000004"], marks=pytest.mark.nightly),
        # where it applies to nothing there is no mean
        pytest.param([0, None, 1, None, None], ["step-000002", "step-000004"], marks=pytest.mark.nightly),
        pytest.param([0, None, None, None, None], ["step-000004"], marks=pytest.mark.nightly),
    ],
)
def test_the_best_stays_in_addition_to_the_newest(
    values: list[float | None], checkpoints: list[str], tmp_path: Path
) -> None:
    assert names(run_scored(tmp_path, values)) == checkpoints


@pytest.mark.nightly
def test_an_evaluation_between_checkpoints_that_is_the_best_saves_one(tmp_path: Path) -> None:
    uninterrupted = run(tmp_path / "whole", **SMALL, steps=4, checkpoint={"keep": None, "every": 1})
    trainer = run_scored(tmp_path / "best", [0, 1, 3, 2, 2], checkpoint={"every": 4})
    assert names(trainer) == ["step-000002", "step-000004"]
    assert best_checkpoint(trainer.folder.path).name == "step-000002"
    saved, expected = (
        load_file(
            run_of_two.folder.path / "checkpoints/step-000002/policy/transformer/diffusion_pytorch_model.safetensors"
        )
        for run_of_two in (trainer, uninterrupted)
    )
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[key], expected[key]) for key in expected)
    assert torch.equal(weights(trainer), weights(uninterrupted))  # what is saved changes nothing of the run


@pytest.mark.nightly
def test_a_resumed_run_keeps_the_earlier_best(tmp_path: Path) -> None:
    uninterrupted = run_scored(tmp_path / "whole", [0, 1, 3, 0, 1])
    interrupted = run_scored(
        tmp_path / "half", [0, 1, 3], steps=4
    )  # ended by a signal in the third step's evaluation, whose score is 0
    assert interrupted.status == "terminated"
    assert names(interrupted) == ["step-000002", "step-000003"]
    resumed = run_scored(tmp_path / "half", [1], steps=4, resume=interrupted.folder.path)
    assert names(resumed) == names(uninterrupted) == ["step-000002", "step-000004"]
    assert timeless(lines(resumed, "evaluation.jsonl")) == timeless(lines(uninterrupted, "evaluation.jsonl"))
    assert torch.equal(weights(resumed), weights(uninterrupted))


@pytest.mark.nightly
def test_a_process_killed_between_evaluation_and_checkpoint_resumes_exactly(tmp_path: Path) -> None:
    uninterrupted = run_scored(tmp_path / "whole", [0, 1, 3, 2, 1], checkpoint={"every": 4})
    run_folder = tmp_path / "half" / "run"
    shutil.copytree(uninterrupted.folder.path, run_folder)
    for step in (2, 4):  # as if it had ended before the second was saved
        shutil.rmtree(run_folder / "checkpoints" / f"step-{step:06d}")
    rows = lines(uninterrupted, "evaluation.jsonl")[:3]
    (run_folder / "evaluation.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    header = json.loads((run_folder / "run.json").read_text())
    (run_folder / "run.json").write_text(json.dumps({**header, "status": "running"}))
    assert best_step(run_folder, "held_out") is None
    changes = {"checkpoint": {"every": 4}, "steps": 4}  # step 0 is not evaluated again
    resumed = run_scored(tmp_path / "half", [1, 3, 2, 1], resume=run_folder, **changes)
    assert names(resumed) == ["step-000002", "step-000004"]
    assert torch.equal(weights(resumed), weights(uninterrupted))


@pytest.mark.nightly
def test_resuming_from_an_earlier_step_drops_the_later_best(tmp_path: Path) -> None:
    first = run_scored(tmp_path, [0, 1, 2, 1, 9], checkpoint={"keep": None})
    chosen = first.folder.path / "checkpoints" / "step-000003"
    resumed = run_scored(tmp_path, [1], steps=4, resume=chosen)
    assert names(resumed) == ["step-000002", "step-000004"]
    assert sorted(path.name for path in (chosen.parent / "aside").iterdir()) == ["step-000004"]


@pytest.mark.nightly
def test_a_damaged_best_is_skipped_with_a_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = run_scored(tmp_path, [0, 2, 3, 1], checkpoint={"keep": None}).folder.path
    assert weights_for(str(folder), None, best=True) == folder / "checkpoints/step-000002"
    (folder / "checkpoints/step-000002/training.pt").write_bytes(b"")
    assert best_checkpoint(folder).name == "step-000001"
    assert "step-000002 is damaged (training.pt has changed since it was written)" in caplog.text
    for step in (1, 3):
        (folder / f"checkpoints/step-{step:06d}/training.pt").unlink()
    with pytest.raises(CheckpointError, match="has no checkpoint that held_out evaluated"):
        best_checkpoint(folder)
    with pytest.raises(CheckpointError, match="is a checkpoint; give the run folder"):
        best_checkpoint(folder / "checkpoints/step-000001")


@pytest.mark.nightly
def test_another_reward_chooses_among_existing_checkpoints(tmp_path: Path) -> None:
    """The best by it may have gone already; of those that are left the best is kept."""
    first = run_scored(tmp_path, [0, 5, 4, 3, 2], checkpoint={"best": None, "keep": 2})
    resumed = run_scored(tmp_path, [3, 1], steps=6, checkpoint={"keep": 2}, resume=first.folder.path)
    assert [row["eval/held_out/mean"] for row in lines(resumed, "evaluation.jsonl")] == [0, 5, 4, 3, 2, 3, 1]
    assert names(resumed) == ["step-000003", "step-000005", "step-000006"]


def test_an_invalid_best_reward_raises_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint.best is a reward of the evaluation: add that section"):
        validated({"checkpoint": {"best": "held_out"}})
    with pytest.raises(ConfigError, match=r"the evaluation has no reward 'held_ot'; did you mean held_out\?"):
        run_scored(tmp_path, [0], checkpoint={"best": "held_ot"})
    without = run(tmp_path, **SMALL, steps=1)
    with pytest.raises(CheckpointError, match=r"keeps no best checkpoint: train it with checkpoint.best=REWARD"):
        best_checkpoint(without.folder.path)


@pytest.mark.parametrize(
    ("best", "message"),
    [
        ("held_out", "of a mixed run it is TASK/REWARD, got 'held_out'; tasks: a, b"),
        ("b/held_out", "tasks.b: checkpoint.best: the checkpoints of this task have no weights; name a reward of a"),
    ],
)
def test_of_a_mixed_run_it_is_the_reward_of_a_task_with_weights(best: str, message: str) -> None:
    values: dict[str, Any] = {
        "tasks": {"a": TASK, "b": {"rollout": {"task": {"policy_of": "a"}}}},
        "checkpoint": {"best": best},
    }
    with pytest.raises(ConfigError, match=message):
        validated(values)
    tasks = tasks_of(validated({**values, "checkpoint": {"best": "a/held_out"}}))
    assert [task.checkpoint.best for task in tasks.values()] == ["held_out", None]


TASK: dict[str, Any] = {**SMALL, "evaluation": EVALUATION}


@pytest.mark.nightly
def test_in_a_mixed_run_each_task_keeps_its_best_and_a_complete_step(tmp_path: Path) -> None:
    """A best one of one task alone drives out none of the step that all have."""
    SCORES[:] = [0, 1, 2, 3]  # and the process gets a signal to end in the fifth evaluation, of a at step 4
    trainer = MixedTrainer(
        {
            "tasks": {"a": TASK, "b": {**TASK, "evaluation": None}},
            "steps": 5,
            "checkpoint": {"every": 2, "keep": 1, "best": "a/held_out"},
            "output": str(tmp_path),
        },
        policies={"a": make_policy(), "b": make_policy()},
        rewards={"a": {"brightness": brightness}, "b": {"brightness": brightness}},
        prompts={"a": digit_prompts(), "b": digit_prompts()},
    )
    trainer.train()
    result = {
        name: [checkpoint.name for checkpoint in list_checkpoints(task.folder.path)]
        for name, task in trainer.tasks.items()
    }
    assert result == {"a": ["step-000003", "step-000004"], "b": ["step-000004"]}
