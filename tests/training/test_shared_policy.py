"""Tasks of a mixed run that train one policy: their rows are one batch, and the weights exist once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

import mmgrpo
from mmgrpo import Prompt, Sample, Trainer
from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config, validated
from mmgrpo.config.parts import tasks_of
from mmgrpo.config.sections import updated
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.memory import Memory
from mmgrpo.runs.checkpoint import list_checkpoints
from mmgrpo.runs.resuming import policy_weights_folder
from mmgrpo.scoring import NamedReward
from mmgrpo.training.build import plan_at
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.mixed import MixedTrainer
from mmgrpo.training.update_policy import UpdatePlan, update_jointly
from tests.policies.letters import letters
from tests.policies.test_unified import PROMPTS
from tests.policies.test_unified import policy_of as unified
from tests.policies.tiny_language import measured_policy_of
from tests.test_resuming import timeless
from tests.test_trainer import lines, weights
from tests.test_trainer_language import TEXTS, vowels
from tests.tiny.language_models import make
from tests.training import shared_digits

TEXT_PROMPTS = [Prompt(text) for text in TEXTS]
TASK: dict[str, Any] = {
    "rollout": {"prompts_per_step": 4, "group_size": 3},
    "objective": {"kl": {"divergence": "k3", "beta": 0.1}},
}
GUEST = {**TASK, "rollout": {**TASK["rollout"], "task": {"policy_of": "one"}}}
UPDATE: dict[str, Any] = {"epochs": 2, "minibatches": 2, "optimizer": {"lr": 1e-2}, "ema": {"decay": 0.5}}


def taking_part(task: dict[str, Any]) -> dict[str, Any]:
    """The rollout of a task of a mixed run."""
    return {"rollout": {**TASK["rollout"], "task": task}}


def late(samples: Sequence[Sample]) -> list[float]:
    return [sum(letter > "m" for letter in sample.text or "") / 4 for sample in samples]


def shared(output: Path, *, guest: Any = None, reward: Any = vowels, resume: Path | None = None, steps: int = 2) -> Any:
    """Two tasks that train one policy of letters, which differ by their rewards."""
    tasks = {"one": {**TASK, "update": UPDATE}, "other": {**GUEST, **(guest or {})}}
    values = {
        "about": {"name": "two"},
        "output": str(output),
        "steps": steps,
        "runtime": {"device": "cpu"},
        "tasks": tasks,
    }
    trainer = MixedTrainer(
        values,
        policies={"one": letters()},
        rewards={"one": {"vowels": vowels}, "other": {"asked": reward}},
        prompts={"one": TEXT_PROMPTS, "other": TEXT_PROMPTS},
        resume=resume,
    )
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def batch() -> Advantages:
    """Rows of different lengths, of four prompts, as a language model drew them."""
    config, job = RunConfig.model_validate(TASK), mmgrpo.Job(Accelerator(cpu=True))
    policy, rewards = measured_policy_of("llama"), [NamedReward("vowels", vowels)]
    arguments = {"setting": Algorithm.of(config).step_setting(0, Memory(), str), "job": job}
    strategy, scorer = Algorithm.of(config).strategy, mmgrpo.Scorer(rewards)
    experience = mmgrpo.collect_rollouts(
        policy, strategy, TEXT_PROMPTS.__getitem__, scorer, plan=plan_at(Algorithm.of(config), policy, 0), **arguments
    )
    verdict = mmgrpo.score_rollouts(experience, rewards, step=0, job=job)
    advantages = mmgrpo.compute_advantages(policy, experience, verdict, Algorithm.of(config), job=job)
    length_B = torch.arange(12) % 5 + 2
    return replace(
        advantages, rollout=advantages.rollout.keep(torch.arange(advantages.rollout.shape[1]) < length_B[:, None])
    )


def part_of(batch: Advantages, groups: Sequence[int]) -> Advantages:
    """The same without the rows of other groups."""
    in_part_B = torch.isin(batch.rollout.prompt_index_B, torch.tensor(groups))
    return replace(
        batch,
        rollout=batch.rollout.keep(in_part_B[:, None]),
        zero_B=batch.zero_B & in_part_B,
        chosen_B=batch.chosen_B & in_part_B,
    )


def updated_weights(batches: Sequence[Advantages], objective: Mapping[str, Any]) -> tuple[torch.Tensor, list[float]]:
    """The weights after two updates from these batches together, and the norms of the gradients."""
    update = {
        "optimizer": {"lr": 1e-2, "eps": 1e-2, "max_grad_norm": None}
    }  # AdamW blows up roundings of small gradients
    config = RunConfig.model_validate({**TASK, "objective": objective, "update": update})
    policy, job = measured_policy_of("llama"), mmgrpo.Job(Accelerator(cpu=True))
    made = partial(UpdatePlan, policy, objective=Algorithm.of(config).objective, job=job)
    optimizer = mmgrpo.optimizer_of(Algorithm.of(config), policy.trainable, job=job)
    norms = [
        updates[0].applied.grad_norm
        for updates in update_jointly([made(batch) for batch in batches], optimizer, epochs=1, minibatches=2)
    ]
    return torch.cat([parameter.detach().flatten() for parameter in policy.trainable]), norms


@pytest.mark.first_case
@pytest.mark.parametrize("aggregate", ["token_mean", "group_sum"])
def test_halves_of_the_prompts_in_two_tasks_are_all_of_them_in_one(aggregate: str, batch: Advantages) -> None:
    """Whatever the loss is a mean over: rows of 2 to 6 tokens count as they would in one batch."""
    objective = {"aggregate": aggregate, "kl": {"divergence": "k3", "beta": 0.1}}
    complete, norms = updated_weights([batch], objective)
    halves, norms_of_halves = updated_weights([part_of(batch, (0, 1)), part_of(batch, (2, 3))], objective)
    assert norms_of_halves == pytest.approx(norms, rel=1e-5)
    assert float((halves - complete).abs().max()) < 1e-6
    first, norms_of_first = updated_weights([part_of(batch, (0, 1))], objective)
    assert norms_of_first[0] != pytest.approx(norms[0], rel=0.05)
    assert float((first - complete).abs().max()) > 1e-4


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """One of the two tasks alone."""
    values = {**TASK, "update": UPDATE, "steps": 2, "runtime": {"device": "cpu"}}
    trainer = Trainer(
        letters(), {"vowels": vowels}, TEXT_PROMPTS, values | {"output": str(tmp_path_factory.mktemp("once"))}
    )
    trainer.train()
    return trainer


@pytest.mark.nightly
def test_the_same_task_twice_is_the_task_once(once: Trainer, tmp_path: Path) -> None:
    both = shared(tmp_path)
    assert torch.equal(weights(both.tasks["one"]), weights(once))
    assert [task.average for task in both.tasks.values()] == [both.tasks["one"].average] * 2
    for name, reward in (("one", "vowels"), ("other", "asked")):
        for line, alone in zip(lines(both.tasks[name]), timeless(lines(once)), strict=True):
            named = {key.replace(reward, "vowels"): value for key, value in line.items() if "time" not in key}
            for key in ("policy/loss", "policy/loss/surrogate", "policy/loss/kl"):  # its part of the sum
                assert named.pop(key) == pytest.approx(alone.pop(key) / 2, rel=1e-5)
            assert named == {key: value for key, value in alone.items() if "time" not in key}


@pytest.mark.first_case
@pytest.mark.parametrize(("weight", "share"), [(0, 0.5), (3, 2)])
def test_a_weight_multiplies_the_gradient_of_a_tasks_rows(
    weight: float, share: float, once: Trainer, tmp_path: Path
) -> None:
    """Of two that are alike each is half of the gradient."""
    arguments = shared(tmp_path, guest=taking_part({"policy_of": "one", "weight": weight}), steps=1)
    norms = [lines(run)[0]["optimizer/grad_norm"] for run in (arguments.tasks["one"], once)]
    assert norms[0] == pytest.approx(share * norms[1], rel=1e-5)


@pytest.mark.nightly
def test_the_weights_are_saved_once_and_the_run_resumes_exactly(tmp_path: Path) -> None:
    rare = taking_part({"policy_of": "one", "every": 2, "weight": 0.5})
    uninterrupted = shared(tmp_path / "whole", guest=rare, reward=late, steps=3)
    half = shared(tmp_path / "half", guest=rare, reward=late, steps=2)
    resumed = shared(tmp_path / "half", guest=rare, reward=late, steps=3, resume=half.folder.path)
    for name in ("one", "other"):
        assert torch.equal(weights(resumed.tasks[name]), weights(uninterrupted.tasks[name]))
        assert timeless(lines(resumed.tasks[name])) == timeless(lines(uninterrupted.tasks[name]))
    assert [line["step"] for line in lines(uninterrupted.tasks["other"])] == [1] * 4 + [2] * 4
    assert len(list((uninterrupted.folder.path / "one").rglob("letters.safetensors"))) == 2  # with the average
    assert not list((uninterrupted.folder.path / "other").rglob("*.safetensors"))
    state = torch.load(list_checkpoints(uninterrupted.folder.path / "other")[-1] / "training.pt", weights_only=True)
    assert state.keys() == {"memory"}


def test_a_folder_without_weights_refers_to_those_that_it_trains(tmp_path: Path) -> None:
    run = shared(tmp_path, steps=1).folder.path
    newest = list_checkpoints(run / "one")[-1] / "average"
    assert policy_weights_folder(run / "one") == policy_weights_folder(run / "other") == newest
    with pytest.raises(
        CheckpointError, match=r"has no weights: it trains the policy of one; give a checkpoint of .*/one"
    ):
        policy_weights_folder(list_checkpoints(run / "other")[-1])
    assert load_config(run / "other" / "config.yaml").update.optimizer.lr == UPDATE["optimizer"]["lr"]


@pytest.mark.parametrize(
    ("guest", "message"),
    [
        ({"rollout": {"task": {"policy_of": "nobody"}}},
         "rollout.task.policy_of: 'nobody' is no task before it; those are one"),
        ({"update": {"optimizer": {"lr": 1.0}}},
         "tasks.other: update: that follows from one, as it trains the same policy; leave"),
        ({"policy": {"name": "language"}}, "tasks.other: policy: that follows from one"),
        ({"update": {"warmup": {"examples": "x", "steps": 1}}}, "tasks.other: update: that follows from one"),
        ({"schedules": {"update.optimizer.max_grad_norm": {"name": "linear", "start": 1, "end": 2, "steps": 3}}},
         "tasks.other: update.optimizer.max_grad_norm: that follows from one"),
        ({"rollout": {"task": {"weight": 2}}},
         "rollout.task.weight=2 weights the rows of tasks that share a policy, and no other task"),
        ({"rollout": {"task": {"policy_of": "one", "weight": -1}}}, "tasks.other: .*weight"),
    ],
)  # fmt: skip
def test_values_of_the_owner_are_not_repeated(guest: dict[str, Any], message: str) -> None:
    other = {**GUEST, **guest}
    with pytest.raises(ConfigError, match=message):
        validated({"tasks": {"one": {**TASK, "update": UPDATE}, "other": other}})


def test_invalid_policy_owners_raise() -> None:
    tasks = {
        "one": TASK,
        "other": GUEST,
        "third": {**TASK, **taking_part({"policy_of": "other"})},
    }
    with pytest.raises(
        ConfigError, match=r"tasks.third: rollout.task.policy_of: other has its policy of one; name that"
    ):
        validated({"tasks": tasks})
    rollouts = {"one": taking_part({"every": 2}), "b": taking_part({"policy_of": "one", "every": 3})}
    with pytest.raises(ConfigError, match=r"takes part in each 2th step .* set a multiple of 2, got 3"):
        validated({"tasks": {name: {**TASK, **rollout} for name, rollout in rollouts.items()}})
    twice: dict[str, Any] = {"one": letters(), "other": letters()}
    with pytest.raises(ConfigError, match="policies: other trains the policy of one: give that one alone"):
        MixedTrainer(
            {"tasks": {name: tasks[name] for name in twice}},
            policies=twice,
            rewards=dict.fromkeys(twice, vowels),
            prompts=dict.fromkeys(twice, TEXT_PROMPTS),
        )


def test_derived_values_of_an_included_file_are_left_out(tmp_path: Path) -> None:
    """``include: quickstart/digits-vlm`` says policy, warm-up and update, which are those of the owner then."""
    file = tmp_path / "run.yaml"
    text = {"tasks": {"a": {"include": "quickstart/digits-vlm"}, "b": {"include": "quickstart/digits-vlm"}}, "steps": 4}
    text["tasks"]["a"]["update"] = {"optimizer": {"lr": 0.5}}  # pyrefly: ignore[bad-assignment]
    text["tasks"]["b"]["rollout"] = {"task": {"policy_of": "a"}}  # pyrefly: ignore[bad-assignment]
    file.write_text(json.dumps(text))
    first, second = tasks_of(load_config(file)).values()
    assert first.update.warmup is not None
    assert (updated(first, "update.warmup", None).update, first.policy) == (second.update, second.policy)
    assert second.rewards == first.rewards


@pytest.mark.nightly
def test_an_alert_of_one_task_ends_the_run_for_all(tmp_path: Path) -> None:
    """At a step that is complete for both, from which the run resumes."""
    watched = {
        "evaluation": {
            "watchdog": {"window": 2, "alerts": [{"name": "dead_groups", "limit": 0.5}], "stop": ["dead_groups"]}
        }
    }
    arguments = shared(tmp_path, guest=watched, reward=lambda samples: [1.0] * len(samples), steps=4)
    assert (
        arguments.status
        == json.loads((arguments.folder.path / "run.json").read_text())["status"]
        == "stopped by the alert dead_groups"
    )
    assert arguments.step == 2
    for task in arguments.tasks.values():
        assert [checkpoint.name for checkpoint in list_checkpoints(task.folder.path)] == ["step-000002"]


def exact(output: Path, size: int) -> dict[str, torch.Tensor]:
    """The weights at the end, for a job of so many processes."""
    trainer = shared(output, reward=late)
    trainer.job.barrier()
    assert trainer.job.size == size
    return {"one": weights(trainer.tasks["one"])}


def test_a_task_may_have_separate_sampling_settings(tmp_path: Path) -> None:
    """Two tokens where the owner has seven, in updates of both."""
    size = {"rollout": {"prompts_per_step": 2, "group_size": 2}}
    named = {"name": "language", "model": "python:tests.training.test_shared_policy:tiny"}
    short = {"schedules": {"policy.max_new_tokens": {"name": "step", "values": [2], "at": []}}}
    tasks = {
        "one": {**size, "policy": {**named, "max_new_tokens": 7}},
        "other": {"rollout": {**size["rollout"], "task": {"policy_of": "one"}}, **short},
    }
    trainer = MixedTrainer(
        {"steps": 1, "runtime": {"device": "cpu"}, "output": str(tmp_path), "tasks": tasks},
        rewards=dict.fromkeys(tasks, vowels),
        prompts=dict.fromkeys(tasks, TEXT_PROMPTS),
    )
    trainer.train()
    lengths = [lines(task)[0]["completions/max_length"] for task in trainer.tasks.values()]
    assert lengths[0] > 2 == lengths[1]
    gaps = [lines(task)[0]["policy/on_policy_gap"] for task in trainer.tasks.values()]
    assert max(gaps) < 1e-5


def tiny() -> Any:
    """The model of a policy by its name in a configuration."""
    return make("llama")


@pytest.mark.nightly
def test_a_model_of_texts_and_images_is_one_policy_of_two_tasks(tmp_path: Path) -> None:
    """Texts are rewarded as texts and images as images, and an update moves the heads of both."""
    settings = {"rollout": {"prompts_per_step": 1, "group_size": 4}}
    tasks = {
        "writes": {**settings, "update": {"optimizer": {"lr": 1e-3}}},
        "draws": {"rollout": {**settings["rollout"], "task": {"policy_of": "writes"}}},
    }
    policy, outputs = unified(), {"writes": set[tuple[bool, bool]](), "draws": set[tuple[bool, bool]]()}

    def judge(task: str, samples: Sequence[Sample]) -> list[float]:
        outputs[task] |= {(sample.text is None, sample.image is None) for sample in samples}
        return [sum(sample.tokens or ()) % 7 for sample in samples]

    before = {name: weight.detach().clone() for name, weight in policy.draw.model.named_parameters()}
    trainer = MixedTrainer(
        {"steps": 1, "runtime": {"device": "cpu"}, "output": str(tmp_path), "tasks": tasks},
        policies={"writes": policy},
        rewards={task: {"low": partial(judge, task)} for task in tasks},
        prompts={"writes": PROMPTS[1:], "draws": PROMPTS[:1]},
    )
    trainer.train()
    assert outputs == {"writes": {(False, True)}, "draws": {(True, False)}}
    after = dict(policy.draw.model.named_parameters())
    for name in ("lm_head.weight", "model.generation_head.vision_head.weight"):
        assert not torch.equal(before[name], after[name])


@pytest.mark.nightly
def test_a_vision_language_model_learns_to_read_and_to_compare(tmp_path: Path) -> None:
    """One model, one optimizer: digits in images, and the largest of three that are written."""
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(shared_digits.CONFIG | {"steps": 20, "output": str(tmp_path)}))
    trainer = MixedTrainer(load_config(file))
    trainer.train()
    before, *_, after = zip(*(lines(task, "evaluation.jsonl") for task in trainer.tasks.values()), strict=True)
    score = "eval/held_out_accuracy/mean"
    reading, largest = [(first[score], last[score]) for first, last in zip(before, after, strict=True)]
    assert reading[0] < 0.6
    assert reading[1] > reading[0] + 0.2
    assert largest[0] < 0.8
    assert largest[1] > largest[0] + 0.15
