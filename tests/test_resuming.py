"""Resuming a run: the folder, the configuration, and the messages."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.examples.digits import digit_prompts

from mmgrpo.config.loading import load_config, validated
from mmgrpo.errors import CheckpointError, ConfigError, OutOfMemoryError, RewardError
from mmgrpo.runs.checkpoint import list_checkpoints
from mmgrpo.runs.resuming import allowed_config, config_changes
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Sample
from tests import test_trainer
from tests.test_trainer import brightness, lines, make_policy, weights

BASE = test_trainer.BASE | {"rollout": {**test_trainer.BASE["rollout"], "window": {"name": "random_subset", "size": 1}}}
"""One decision of each sample is trained on, as a resumed run is no other for more."""

WARMUP = {"examples": {"name": "mislabeled_digits", "fraction": 0.45}, "steps": 3, "batch_size": 4}
WARMED = {**BASE["update"], "warmup": WARMUP}
EVALUATION = {"prompts": {"source": "python:mmgrpo.examples.digits:digit_prompts", "limit": 2}, "every": 2}


EVERY = {"every": 1, "keep": None}


def run(output: Path, **changes: Any) -> Trainer:
    return test_trainer.run(output, **{"rollout": BASE["rollout"], **changes})


def copied(trainer: Trainer, output: Path) -> Path:
    """A copy of a run's folder, in ``output``."""
    return Path(shutil.copytree(trainer.folder.path, output / "run"))


def timeless(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith("time")} for row in rows]


def about(trainer: Trainer) -> dict[str, Any]:
    return json.loads((trainer.folder.path / "run.json").read_text())


def failing(
    at_call: int, error: BaseException | None = None, *, judge: Any = brightness, number: int = signal.SIGTERM
) -> Any:
    """A reward that raises, or sends the process a signal to end, at a call."""
    calls = []

    def reward(samples: Sequence[Sample]) -> list[float]:
        calls.append(len(samples))
        if len(calls) == at_call:
            if error is not None:
                raise error
            os.kill(os.getpid(), number)
        return judge(samples)

    return reward


def started(output: Path, reward: Any, **changes: Any) -> Trainer:
    return Trainer(make_policy(), {"brightness": reward}, digit_prompts(), {**BASE, "output": str(output), **changes})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run that nothing interrupted, with every checkpoint, with which others are compared."""
    return run(tmp_path_factory.mktemp("whole"), checkpoint=EVERY)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """The same with evaluations."""
    return run(tmp_path_factory.mktemp("judged"), evaluation=EVALUATION)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "error", [RuntimeError("scorer is down"), pytest.param(SystemExit(0), marks=pytest.mark.nightly)]
)
def test_a_reward_that_fails_at_a_step_loses_none_before_it(
    tmp_path: Path, error: BaseException, evaluated: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = started(tmp_path / "half", failing(5, error), evaluation=EVALUATION)
    with pytest.raises(RewardError, match=type(error).__name__):  # calls 1 and 4 are evaluations, 2, 3 and 5 steps
        failed.train()
    run_folder = failed.folder.path
    assert [path.name for path in list_checkpoints(run_folder)] == ["step-000002"]
    assert about(failed)["status"] == "failed"
    assert about(failed)["error"].startswith("RewardError: reward 'brightness' failed on 8 of 8 samples")
    assert f'failed; to resume from step 2: Trainer(..., resume="{run_folder}")' in capsys.readouterr().out
    resumed = run(tmp_path / "half", resume=run_folder, evaluation=EVALUATION)
    assert torch.equal(weights(resumed), weights(evaluated))
    for name in ("metrics.jsonl", "evaluation.jsonl"):
        assert timeless(lines(resumed, name)) == timeless(lines(evaluated, name))
    assert [row["step"] for row in lines(resumed, "evaluation.jsonl")] == [0, 2, 4]
    assert about(resumed)["status"] == "finished"
    assert about(resumed)["error"] is None


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.nightly) for n in (signal.SIGUSR1, signal.SIGUSR2))]
)
def test_sigterm_and_slurms_warning_give_the_step_up_and_lose_none_before_it(
    number: int, tmp_path: Path, uninterrupted: Trainer
) -> None:
    before = signal.getsignal(number)
    interrupted = started(tmp_path / "half", failing(3, number=number))
    interrupted.train()
    assert interrupted.status == about(interrupted)["status"] == "terminated"
    assert [path.name for path in list_checkpoints(interrupted.folder.path)] == ["step-000002"]
    assert signal.getsignal(number) == before
    assert [row["step"] for row in lines(interrupted)] == [
        1,
        1,
        2,
        2,
    ]  # the third was sampled and scored, without an update
    resumed = run(tmp_path / "half", resume=interrupted.folder.path)
    assert torch.equal(weights(resumed), weights(uninterrupted))
    assert timeless(lines(resumed)) == timeless(lines(uninterrupted))


@pytest.mark.nightly
def test_a_failure_within_the_updates_of_a_step_saves_no_checkpoint(tmp_path: Path, uninterrupted: Trainer) -> None:
    trainer = started(tmp_path, brightness, checkpoint={"every": 2})
    apply, calls = trainer.optimizer.apply, []

    def broken() -> Any:
        calls.append(1)
        if len(calls) == 6:  # the second of two updates of the third step
            raise RuntimeError("out of memory")
        return apply()

    trainer.optimizer.apply = broken
    with pytest.raises(OutOfMemoryError, match="out of memory in the update at step 3"):
        trainer.train()
    assert [path.name for path in list_checkpoints(trainer.folder.path)] == ["step-000002"]
    resumed = run(tmp_path, resume=trainer.folder.path)
    assert torch.equal(weights(resumed), weights(uninterrupted))


@pytest.mark.nightly
def test_the_warm_up_is_saved_and_resumed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"update": WARMED, "checkpoint": {"warmup_every": 2, "keep": None}, "steps": 1}
    uninterrupted = run(tmp_path / "whole", **settings)
    assert [path.name for path in list_checkpoints(uninterrupted.folder.path)] == [
        "warmup-000002",
        "warmup-000003",
        "step-000001",
    ]
    from_middle = run(
        tmp_path / "whole",
        resume=uninterrupted.folder.path / "checkpoints" / "warmup-000002",
        evaluation=None,
        **settings,
    )
    assert torch.equal(weights(from_middle), weights(uninterrupted))
    assert [row["step"] for row in lines(from_middle, "warmup.jsonl")] == [1, 2, 3]
    aside = from_middle.folder.path / "checkpoints" / "aside"
    assert sorted(path.name for path in aside.iterdir()) == ["step-000001", "warmup-000003"]


@pytest.mark.nightly
def test_the_reference_is_of_the_end_of_a_warm_up_that_was_interrupted(tmp_path: Path) -> None:
    moving = {"schedules": {"objective.kl.beta": {"name": "adaptive_kl", "target": 1e-6}}}
    settings: dict[str, Any] = {"update": WARMED, "steps": 1, **moving}
    uninterrupted = run(tmp_path / "whole", **settings)
    trainer = started(tmp_path / "cut", brightness, **settings)
    assert trainer.warmup is not None
    apply, calls = trainer.warmup.optimizer.apply, []

    def interrupted() -> Any:
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return apply()

    trainer.warmup.optimizer.apply = interrupted
    trainer.train()
    assert [path.name for path in list_checkpoints(trainer.folder.path)] == ["warmup-000002"]
    resumed = run(tmp_path / "cut", resume=trainer.folder.path, **settings)
    assert lines(resumed)[0]["policy/kl_mean"] == 0.0
    assert torch.equal(weights(resumed), weights(uninterrupted))


def test_torn_lines_of_a_run_that_is_over_are_dropped(
    tmp_path: Path, uninterrupted: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copied(uninterrupted, tmp_path)
    file = folder / "metrics.jsonl"
    text = file.read_text()
    file.write_text(text + '{"step": 1, "upd')
    run(tmp_path, resume=folder)
    assert file.read_text() == text
    assert "metrics.jsonl: 1 unreadable line(s) dropped" in caplog.messages


def test_an_average_begins_where_the_warm_up_ends(tmp_path: Path) -> None:
    trainer = run(tmp_path, steps=0, update={"ema": {"decay": 0.5}, "warmup": WARMUP})
    assert trainer.average is not None
    before = weights(trainer)
    with trainer.average.applied():
        assert torch.equal(weights(trainer), before)
    assert not (trainer.folder.path / "checkpoints" / "warmup-000003" / "average").exists()


def test_rewards_are_tried_before_the_warm_up_and_a_failed_start_leaves_no_folder(tmp_path: Path) -> None:
    def broken(samples: Sequence[Sample]) -> list[float]:
        raise RuntimeError("scorer is down")

    for settings, message in (({"update": WARMED}, "was called on 2 samples before"), ({}, "failed on 8 of 8 samples")):
        with pytest.raises(RewardError, match=f"{message}.*scorer is down"):
            started(tmp_path / "runs", broken, **settings).train()
        assert not list((tmp_path / "runs").iterdir())


@pytest.mark.nightly
def test_current_rates_and_betas_are_applied(tmp_path: Path) -> None:
    linear = {"name": "linear", "end": 0.5}
    first = run(tmp_path, steps=2, update={"optimizer": {"lr": 1e-3, "schedule": linear}})
    update = {
        "optimizer": {
            "lr": 4e-3,
            "betas": (0.5, 0.6),
            "weight_decay": 0.1,
            "schedule": linear,
        }
    }
    trainer = run(tmp_path, resume=first.folder.path, steps=4, update=update)
    group = trainer.optimizer.optimizer.param_groups[0]
    assert (group["betas"], group["weight_decay"], group["initial_lr"]) == ((0.5, 0.6), 0.1, 4e-3)
    rates = [row["optimizer/lr"] for row in lines(trainer)]
    # linear from 1 to 0.5 over the updates: 2 at first; 4 from then on, of which 2 are done
    assert rates == pytest.approx([1e-3, 0.75e-3, 4e-3 * 0.75, 4e-3 * 0.625])
    assert load_config(trainer.folder.path / "config.yaml").update.optimizer.lr == 4e-3
    (resumed,) = about(trainer)["resumed"]
    assert resumed["step"] == 2
    assert resumed["changes"] == {
        "steps": [2, 4],
        "update.optimizer.lr": [1e-3, 4e-3],
        "update.optimizer.betas": [None, [0.5, 0.6]],
        "update.optimizer.weight_decay": [None, 0.1],
    }


@pytest.mark.nightly
def test_more_updates_a_step_keep_the_place_in_the_schedule(tmp_path: Path) -> None:
    update: dict[str, Any] = {"optimizer": {"lr": 1e-3, "schedule": "linear"}}
    first = run(tmp_path, steps=4, update=update, checkpoint={"every": 2})
    resumed = run(
        tmp_path, resume=first.folder.path / "checkpoints/step-000002", update={**update, "minibatches": 2}, steps=4
    )
    rates = [row["optimizer/lr"] for row in lines(resumed)]
    assert rates == pytest.approx([1e-3, 0.75e-3, *(1e-3 * left / 8 for left in (4, 3, 2, 1))])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, r"seed: 0 -> 1 \(every random number follows from it\)"),
        ({"update": {**BASE["update"], "ema": None}}, r"update\.ema: .* -> None \(an average needs every step"),
        (
            {"update": {**BASE["update"], "optimizer": {"name": "python:tests.test_optimizer:gradient_descent"}}},
            r"update\.optimizer\.name: 'adamw' -> 'python:.*' \(the moments",
        ),
        ({"update": WARMED}, r"update\.warmup: None -> .* \(it belongs to the start of a run\)"),
    ],
)
def test_changes_of_fixed_keys_raise(
    tmp_path: Path, uninterrupted: Trainer, change: dict[str, Any], message: str
) -> None:
    folder = copied(uninterrupted, tmp_path)
    before = (folder / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=f"cannot resume with {message}.*start a new run"):
        run(tmp_path, resume=folder, **change)
    assert (folder / "config.yaml").read_text() == before
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


@pytest.mark.nightly
def test_in_python_a_run_folder_alone_is_enough(tmp_path: Path, uninterrupted: Trainer) -> None:
    run(tmp_path / "half", steps=2)
    longer = Trainer(
        make_policy(), {"brightness": brightness}, digit_prompts(), {**BASE, "steps": 4}, resume=tmp_path / "half/run"
    )
    longer.train()
    assert longer.config.output == str(tmp_path / "half")
    assert torch.equal(weights(longer), weights(uninterrupted))
    again = Trainer(make_policy(), {"brightness": brightness}, digit_prompts(), resume=tmp_path / "half/run")
    assert again.config == longer.config


def test_settings_of_a_policy_without_effect_on_weights_may_change(tmp_path: Path) -> None:
    policy = {"name": "denoising", "model": "python:m:f", "lora": {"rank": 2}, "update_batch": 8}
    (tmp_path / "config.yaml").write_text(json.dumps({"about": {"name": "x"}, "policy": policy}))
    faster = validated({"about": {"name": "y"}, "output": "elsewhere", "policy": {**policy, "update_batch": 2}})
    allowed = allowed_config(tmp_path, faster)
    assert [str(change) for change in allowed.changes] == ["policy.update_batch: 8 -> 2"]
    assert (allowed.config.about.name, allowed.config.output) == ("x", "runs")  # the folder is where it is
    for other in ({"lora": {"rank": 4}}, {"model": "python:m:g"}, {"name": "language"}):
        with pytest.raises(ConfigError, match=r"policy\..*the weights and samples so far"):
            allowed_config(tmp_path, validated({"policy": {**policy, **other}}))


def test_notes_are_no_changes() -> None:
    before, after = (
        validated({"about": {"note": "a"}}),
        validated({"about": {"note": "b", "method": {"name": "m", "title": "t", "paper": "p"}}}),
    )
    assert list(config_changes(before, after)) == []


@pytest.mark.nightly
def test_a_finished_run_takes_no_step(evaluated: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    folder = evaluated.folder.path
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = run(folder.parent, resume=folder, evaluation=EVALUATION)
    assert f"nothing to do: {folder} is at step 4 of 4" in (capsys.readouterr().out)
    assert again.status == "finished"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_partly_deleted_checkpoints_are_removed(tmp_path: Path, uninterrupted: Trainer) -> None:
    folder = copied(uninterrupted, tmp_path)
    root = folder / "checkpoints"
    shutil.copytree(root / "step-000001", root / "warmup-000003")  # three too many
    (root / ".step-000005").mkdir()
    run(tmp_path, resume=folder, checkpoint={"every": 1, "keep": 2})
    assert sorted(path.name for path in root.iterdir()) == ["step-000003", "step-000004"]


@pytest.mark.nightly
def test_an_evaluation_that_was_not_due_is_not_made(tmp_path: Path) -> None:
    first = run(tmp_path, steps=4, evaluation={**EVALUATION, "every": 3}, checkpoint={"every": 1, "keep": None})
    chosen = first.folder.path / "checkpoints" / "step-000002"
    resumed = run(tmp_path, resume=chosen, steps=4, evaluation={**EVALUATION, "every": 3})
    assert [row["step"] for row in lines(resumed, "evaluation.jsonl")] == [0, 3, 4]


@pytest.mark.nightly
def test_torn_lines_are_dropped_with_a_message(
    tmp_path: Path, uninterrupted: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    half = run(tmp_path / "half", steps=2)
    with (half.folder.path / "metrics.jsonl").open("a") as file:
        file.write('\n{"step": 3, "upd')
    resumed = run(tmp_path / "half", resume=half.folder.path)
    assert "metrics.jsonl: 2 unreadable line(s) dropped" in capsys.readouterr().out
    assert timeless(lines(resumed)) == timeless(lines(uninterrupted))
    assert torch.equal(weights(resumed), weights(uninterrupted))


def test_a_damaged_checkpoint_is_skipped_with_a_message(
    tmp_path: Path, uninterrupted: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(uninterrupted, tmp_path)
    last = folder / "checkpoints" / "step-000004" / "training.pt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    resumed = run(tmp_path, resume=folder)
    message = capsys.readouterr().out
    assert "resuming from step 3" in message
    assert "step-000004 is damaged (training.pt has changed since it was written)" in message
    assert torch.equal(weights(resumed), weights(uninterrupted))


@pytest.mark.nightly
def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path, uninterrupted: Trainer) -> None:
    interrupted = started(tmp_path / "half", failing(1))
    interrupted.train()
    assert interrupted.status == "terminated"
    assert list_checkpoints(interrupted.folder.path) == []
    resumed = run(tmp_path / "half", resume=interrupted.folder.path)
    assert resumed.folder.path == interrupted.folder.path
    assert torch.equal(weights(resumed), weights(uninterrupted))


@pytest.mark.nightly
def test_a_run_that_ended_after_its_first_evaluation_evaluates_its_start_once(tmp_path: Path) -> None:
    """Without a warm-up there is no checkpoint before the first step; the evaluation of step 0 was written twice."""
    evaluation = {"prompts": {"source": "python:mmgrpo.examples.digits:digit_prompts", "limit": 2}, "every": 1}
    ended = started(tmp_path / "ended", failing(2), evaluation=evaluation, steps=1)
    ended.train()
    assert list_checkpoints(ended.folder.path) == []
    assert [row["step"] for row in lines(ended, "evaluation.jsonl")] == [0]
    resumed = Trainer(make_policy(), {"brightness": brightness}, digit_prompts(), resume=ended.folder.path)
    resumed.train()
    uninterrupted = started(tmp_path / "whole", brightness, evaluation=evaluation, steps=1)
    uninterrupted.train()
    assert [row["step"] for row in lines(resumed, "evaluation.jsonl")] == [0, 1]
    assert timeless(lines(resumed, "evaluation.jsonl")) == timeless(lines(uninterrupted, "evaluation.jsonl"))


def test_a_run_with_deleted_checkpoints_does_not_restart(
    tmp_path: Path, uninterrupted: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(uninterrupted.folder.path, folder)
    (list_checkpoints(folder)[-1] / "manifest.json").unlink()
    run(tmp_path, resume=folder, steps=5)
    assert "step-000004 has no manifest.json, so its files cannot be checked" in capsys.readouterr().out
    shutil.rmtree(folder / "checkpoints")
    metrics = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(
        CheckpointError, match=r"copy has trained 5 step\(s\), and its checkpoints are missing: .* mmgrpo train"
    ):
        run(tmp_path, resume=folder)
    assert (folder / "metrics.jsonl").read_bytes() == metrics


def test_folders_that_are_no_run_raise(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint and contains none"):
        run(tmp_path, resume=tmp_path)


@pytest.mark.nightly
def test_a_reward_that_changes_the_working_directory_moves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    def wandering(samples: Sequence[Sample]) -> list[float]:
        os.chdir(tmp_path / "elsewhere")
        return brightness(samples)

    started(Path("runs"), wandering).train()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert json.loads((tmp_path / "runs" / "run" / "run.json").read_text())["status"] == "finished"
    assert len((tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()) == 8


@pytest.mark.nightly
def test_a_full_disk_raises_and_the_run_can_resume(tmp_path: Path, uninterrupted: Trainer) -> None:
    trainer = started(tmp_path / "half", brightness, checkpoint={"every": 2})
    log = trainer.optimizer.apply
    full = tmp_path / "half" / "run" / "metrics.jsonl"

    def fill() -> Any:
        if trainer.step == 3 and not full.is_symlink():
            full.rename(tmp_path / "kept")
            full.symlink_to("/dev/full")
        return log()

    trainer.optimizer.apply = fill
    with pytest.raises(OSError, match=r"metrics.jsonl cannot be written: No space left on device; free disk space"):
        trainer.train()
    assert about(trainer)["error"].startswith("OutputError: ")
    full.unlink()
    (tmp_path / "kept").rename(full)
    resumed = run(tmp_path / "half", resume=trainer.folder.path)
    assert timeless(lines(resumed)) == timeless(lines(uninterrupted))
    assert torch.equal(weights(resumed), weights(uninterrupted))
