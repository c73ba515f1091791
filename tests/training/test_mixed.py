"""Mixed runs: tasks with common steps equal separate runs, and resume as one."""

from __future__ import annotations

import copy
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from mmgrpo.examples.digits import digit_prompts

from mmgrpo import Trainer
from mmgrpo.config.loading import dump_config, load_config, validated
from mmgrpo.config.parts import tasks_of
from mmgrpo.config.sections import updated
from mmgrpo.errors import ConfigError, OutOfMemoryError, RewardError
from mmgrpo.report.run_info import parse_tasks
from mmgrpo.runs.checkpoint import RunPosition, list_checkpoints
from mmgrpo.training.mixed import MixedTrainer
from mmgrpo.types import Prompt, Sample
from tests.forked import fork
from tests.policies.letters import letters
from tests.policies.tiny_language import measured_policy_of
from tests.test_resuming import failing, timeless
from tests.test_trainer import BASE, lines, make_policy, weights
from tests.test_trainer_language import TEXTS, vowels

WARMUP = {"examples": {"name": "mislabeled_digits", "fraction": 0.45}, "steps": 3, "batch_size": 4}
DIGITS = {"prompts": {"source": "python:mmgrpo.examples.digits:digit_prompts", "limit": 2}, "every": 2}
WRITING = {
    "rollout": {"prompts_per_step": 2, "group_size": 4},
    "objective": {"kl": {"divergence": "k3", "beta": 0.05}},
    "update": {"optimizer": {"lr": 1e-3, "eps": 1e-3}},
}
DRAWING = {key: value for key, value in BASE.items() if key != "steps"}
MIXED: dict[str, Any] = {
    "about": {"name": "both"},
    "steps": 4,
    "runtime": {"device": "cpu"},
    "checkpoint": {"every": 2, "warmup_every": 2},
    "tasks": {
        "writing": WRITING,
        "drawing": {**DRAWING, "update": {**DRAWING["update"], "warmup": WARMUP}, "evaluation": DIGITS},
    },
}
PROMPTS = {"writing": [Prompt(text) for text in TEXTS], "drawing": digit_prompts()}


def brightness(samples: Sequence[Sample]) -> list[float]:
    return [sum(sample.image.tobytes()) / 64 for sample in samples if sample.image is not None]


REWARDS = {"writing": {"vowels": vowels}, "drawing": {"brightness": brightness}}


def policies() -> dict[str, Any]:
    return {"writing": measured_policy_of("llama"), "drawing": make_policy()}


def mixed(output: Path, *, resume: Path | None = None, rewards: Any = None, **changes: Any) -> MixedTrainer:
    values = {**copy.deepcopy(MIXED), "output": str(output)}
    for key, value in changes.items():
        values[key] = value
    only = {name: policy for name, policy in policies().items() if name in values["tasks"]}
    return MixedTrainer(values, policies=only, rewards={**REWARDS, **(rewards or {})}, prompts=PROMPTS, resume=resume)


SPELT: dict[str, Any] = {
    "writing": WRITING,
    "drawing": {
        "rollout": {"prompts_per_step": 4, "group_size": 2},
        "update": {"minibatches": 2, "optimizer": {"lr": 0.1}},
    },
}


def spelt(output: Path, *, resume: Path | None = None, reward: Any = vowels, **changes: Any) -> MixedTrainer:
    """Two tasks that write letters, for what does not go by what is trained."""
    values = {**copy.deepcopy(MIXED), "tasks": SPELT, "output": str(output), **changes}
    names = list(values["tasks"])
    return MixedTrainer(
        values,
        policies={name: letters() for name in names},
        rewards={name: {"vowels": vowels if name == "writing" else reward} for name in names},
        prompts=dict.fromkeys(names, PROMPTS["writing"]),
        resume=resume,
    )


def spelt_alone(name: str, output: Path, **changes: Any) -> Trainer:
    shared = {key: MIXED[key] for key in ("steps", "runtime", "checkpoint")}
    values = {**shared, **SPELT[name], "output": str(output), **changes}
    return finished(Trainer(letters(), {"vowels": vowels}, PROMPTS["writing"], values))


def finished(trainer: Any) -> Any:
    trainer.train()
    return trainer


def alone(name: str, output: Path, **changes: Any) -> Trainer:
    shared = {key: MIXED[key] for key in ("steps", "runtime", "checkpoint")}
    values = {**shared, **MIXED["tasks"][name], "output": str(output), **changes}
    return finished(Trainer(policies()[name], REWARDS[name], PROMPTS[name], values))


def left_by(run: Path) -> dict[str, Any]:
    """Log lines without times, and the weights of the last checkpoint."""
    files = sorted(path.relative_to(run) for path in run.rglob("*.jsonl") if "samples" not in path.parts)
    result: dict[str, Any] = {
        str(file): [
            {key: value for key, value in json.loads(line).items() if "time" not in key}
            for line in (run / file).read_text().splitlines()
        ]
        for file in files
    }
    for task in ("writing", "drawing"):
        names = [checkpoint.name for checkpoint in list_checkpoints(run / task)]
        hashes = json.loads((list_checkpoints(run / task)[-1] / "manifest.json").read_text())["sha256"]
        result[task] = names, hashes
    return result


def killed_before_a_step_is_saved(trainer: Trainer) -> None:
    """The checkpoints of its warm-up are written, that of its first step is not."""
    save = trainer.session.save

    def saving(place: RunPosition, *, drops: bool = True) -> None:
        if place.step:
            os.kill(os.getpid(), signal.SIGKILL)
        save(place, drops=drops)

    trainer.session.save = saving  # pyrefly: ignore[bad-assignment]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> MixedTrainer:
    """Two tasks together, which nothing interrupted."""
    return finished(mixed(tmp_path_factory.mktemp("whole")))


def test_a_run_killed_as_it_finished_is_completed_by_resuming(tmp_path: Path) -> None:
    """Its tasks had finished, its own folder had not: the status stayed running, and the last line missed."""
    run = finished(spelt(tmp_path)).folder.path
    names = ("metrics.jsonl", "run.json")
    texts = {name: (run / name).read_text() for name in names}
    metrics = texts["metrics.jsonl"].splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(metrics[:-1]))
    header = json.loads(texts["run.json"])
    (run / "run.json").write_text(json.dumps({**header, "status": "running"}))
    resumed = spelt(tmp_path, resume=run)
    resumed.train()
    assert resumed.status == "finished"
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    assert (run / "metrics.jsonl").read_text() == texts["metrics.jsonl"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["writing", "drawing"])
def test_each_of_two_tasks_equals_its_separate_run(name: str, trained: MixedTrainer, tmp_path: Path) -> None:
    apart, task = alone(name, tmp_path), trained.tasks[name]
    assert torch.equal(weights(task), weights(apart))
    assert timeless(lines(task)) == timeless(lines(apart))
    names = [[path.name for path in list_checkpoints(trainer.folder.path)] for trainer in (task, apart)]
    assert names[0] == names[1]
    assert load_config(task.folder.path / "config.yaml").rollout.task is not None


def test_one_task_is_the_plain_run(tmp_path: Path) -> None:
    together = finished(spelt(tmp_path / "one", tasks={"writing": WRITING}))
    assert torch.equal(weights(together.tasks["writing"]), weights(spelt_alone("writing", tmp_path / "plain")))


@pytest.mark.nightly
def test_the_folder_holds_the_lines_of_all_under_their_names(trained: MixedTrainer) -> None:
    folder = trained.folder.path
    of_all = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    task_lines = [line for name in trained.tasks for line in lines(trained.tasks[name])]
    assert len(of_all) == len(task_lines) == 4 * (1 + 2)
    first = lines(trained.tasks["writing"])[0]
    assert of_all[0]["task"] == "writing"
    assert of_all[0]["writing/reward/mean"] == first["reward/mean"]
    assert [line["step"] for line in of_all] == [step for step in (1, 2, 3, 4) for _ in range(3)]
    evaluations = [json.loads(line) for line in (folder / "evaluation.jsonl").read_text().splitlines()]
    assert [line["step"] for line in evaluations] == [0, 2, 4]
    assert (
        evaluations[0]["eval/drawing/brightness/mean"]
        == lines(trained.tasks["drawing"], "evaluation.jsonl")[0]["eval/brightness/mean"]
    )
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    page = (folder / "report.html").read_text()
    assert "drawing/brightness" in page
    assert [f'<a href="{name}/report.html">{name}</a>' in page for name in trained.tasks] == [True, True]
    assert parse_tasks('tasks: {"../a": {}, b: {}, "<i>": {}}') == ["b"]
    assert load_config(folder / "config.yaml").mixed.keys() == trained.tasks.keys()


@pytest.mark.nightly
def test_a_task_takes_part_each_so_many_th_step(tmp_path: Path) -> None:
    tasks = {**SPELT, "drawing": {**SPELT["drawing"], "rollout": {**SPELT["drawing"]["rollout"], "task": {"every": 2}}}}
    slow = finished(spelt(tmp_path / "mixed", tasks=tasks, steps=3))
    assert [line["step"] for line in lines(slow.tasks["drawing"])] == [1, 1, 2, 2]
    assert [line["step"] for line in lines(slow.tasks["writing"])] == [1, 2, 3]
    of_all = [json.loads(line) for line in (slow.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["task"][0]) for line in of_all] == [
        (1, "w"), (1, "d"), (1, "d"), (2, "w"), (3, "w"), (3, "d"), (3, "d")
    ]  # fmt: skip
    apart = spelt_alone("drawing", tmp_path / "apart", steps=2)
    assert torch.equal(weights(slow.tasks["drawing"]), weights(apart))
    more = finished(spelt(tmp_path / "mixed", tasks=tasks, steps=4, resume=slow.folder.path))
    assert [line["step"] for line in lines(more.tasks["writing"])] == [1, 2, 3, 4]
    assert [line["step"] for line in lines(more.tasks["drawing"])] == [1, 1, 2, 2]


@pytest.mark.nightly
def test_sigterm_gives_the_step_up_for_all(tmp_path: Path) -> None:
    """The task that is scored first gets a signal to end, in the third step: neither task has updated."""
    interrupted = finished(spelt(tmp_path / "told", reward=failing(3, judge=vowels)))
    assert (
        interrupted.status == json.loads((interrupted.folder.path / "run.json").read_text())["status"] == "terminated"
    )
    for task in interrupted.tasks.values():
        assert [path.name for path in list_checkpoints(task.folder.path)][-1] == "step-000002"
        assert lines(task)[-1]["step"] == 2
    resumed = finished(spelt(tmp_path / "told", resume=interrupted.folder.path))
    assert left_by(resumed.folder.path) == left_by(finished(spelt(tmp_path / "whole")).folder.path)


@pytest.mark.nightly
def test_a_failure_between_the_updates_of_two_tasks_goes_back_to_a_step_of_both(
    trained: MixedTrainer, tmp_path: Path
) -> None:
    broken = mixed(tmp_path)
    apply, calls = broken.tasks["drawing"].optimizer.apply, []

    def fails() -> Any:
        calls.append(1)
        if len(calls) == 5:  # of the third step, in which the other task has updated by then
            raise RuntimeError("out of memory")
        return apply()

    broken.tasks["drawing"].optimizer.apply = fails
    with pytest.raises(OutOfMemoryError, match="out of memory in the update at step 3"):
        broken.train()
    assert broken.status == "failed"
    assert [path.name for path in list_checkpoints(broken.folder.path / "writing")] == ["step-000002"]
    resumed = finished(mixed(tmp_path, resume=broken.folder.path))
    assert left_by(resumed.folder.path) == left_by(trained.folder.path)


@pytest.mark.nightly
def test_a_run_killed_during_a_save_resumes_from_a_common_step(trained: MixedTrainer, tmp_path: Path) -> None:
    """At the second step the first task has its checkpoint, the second has none: both go back to the beginning."""
    pid = fork()
    if pid == 0:
        doomed = mixed(tmp_path)
        killed_before_a_step_is_saved(doomed.tasks["drawing"])
        doomed.train()
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    folder = tmp_path / "both"
    assert [checkpoint.name for checkpoint in list_checkpoints(folder / "writing")] == ["step-000002"]
    assert {checkpoint.name.partition("-")[0] for checkpoint in list_checkpoints(folder / "drawing")} == {"warmup"}
    resumed = finished(mixed(tmp_path, resume=folder))
    assert left_by(resumed.folder.path) == left_by(trained.folder.path)
    assert [checkpoint.name for checkpoint in (folder / "writing/checkpoints/aside").iterdir()] == ["step-000002"]


def test_invalid_configurations_raise(trained: MixedTrainer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="writing is a task of a mixed run, which resumes as one run"):
        Trainer(measured_policy_of("llama"), vowels, ["a"], resume=trained.folder.path / "writing")
    with pytest.raises(ConfigError, match="this is a mixed run of writing, drawing"):
        Trainer(measured_policy_of("llama"), vowels, ["a"], MIXED)
    with pytest.raises(ConfigError, match="has the tasks writing, drawing, and cannot resume with writing"):
        mixed(tmp_path, resume=trained.folder.path, tasks={"writing": WRITING})
    with pytest.raises(ConfigError, match="seed: 0 -> 1"):
        mixed(tmp_path, resume=trained.folder.path, seed=1)
    with pytest.raises(RewardError):
        finished(mixed(tmp_path, rewards={"drawing": {"brightness": failing(1, RewardError("none"))}}))
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tasks": {"a": {"steps": 3}}}, r"tasks.a: steps: of the run, for all of its tasks"),
        ({"tasks": {"a": {"rollout": {"group": 3}}}}, r"tasks.a: unknown key 'rollout.group'"),
        ({"tasks": {"a": {}}, "update": {"optimizer": {"lr": 1.0}}}, r"a run of several tasks cannot set update"),
        ({"tasks": {"a/b": {}}}, r"tasks are named by letters"),
        ({"tasks": {"a": {"about": {"name": "b"}}}}, r"tasks.a: about.name: of the run, for all of its tasks"),
        ({"tasks": {"a": {"tasks": [{"name": "x"}]}}}, r"tasks.a: tasks: of the run"),
    ],
)
def test_invalid_tasks_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validated(values)


def test_an_override_of_no_task_begins_none() -> None:
    with pytest.raises(ConfigError, match=r"tasks.sum.update.optimizer.lr: there is no task 'sum'.*sums"):
        load_config("quickstart/digits-mixed", ["tasks.sum.update.optimizer.lr=0.5"])


def test_tasks_include_files_and_have_the_shared_sections() -> None:
    config = load_config("quickstart/digits-mixed", ["tasks.sums.update.optimizer.lr=0.5", "steps=8", "seed=3"])
    tasks = tasks_of(config)
    assert {name: (task.steps, task.seed, task.runtime.threads) for name, task in tasks.items()} == {
        "sums": (8, 3, 1), "reading": (8, 3, 1), "drawing": (4, 3, 1)
    }  # fmt: skip
    plain = load_config("quickstart/arithmetic-text", ["steps=8", "seed=3", "update.optimizer.lr=0.5"])
    same = updated(updated(tasks["sums"], "about.name", plain.about.name), "rollout.task", None)
    assert same == plain
    assert validated(yaml.safe_load(dump_config(config))) == config
