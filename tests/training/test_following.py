"""Co-training: a task gets the samples of another in its prompts, which is rewarded by the results."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from mmgrpo.examples.digits import caption
from mmgrpo.examples.language_models import rewriter_lm
from mmgrpo.examples.rewriting import is_caption, literal_rewritings, requests
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.rewards.groups.of_task import OfTask

from mmgrpo import Trainer
from mmgrpo.config import EvaluationConfig
from mmgrpo.config.loading import CONFIGS, load_config, validated
from mmgrpo.config.parts import tasks_of
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Setting
from mmgrpo.maths.strategies.downstream import following
from mmgrpo.memory import Memory
from mmgrpo.scoring import NamedReward, Scorer
from mmgrpo.training.evaluation import evaluate
from mmgrpo.training.held_out_sampling import HeldOutSampler
from mmgrpo.training.mixed import MixedTrainer
from mmgrpo.types import Plan, Sample
from tests.maths.round_rows import round_of
from tests.policies.families import daily
from tests.test_trainer import BASE, lines, make_policy, weights

SCORED_SAMPLES: list[Sample] = []
PAINTER = {
    "objective": BASE["objective"],
    "update": {"optimizer": {"lr": 1e-3}},
    "rollout": {"group_size": 3, "task": {"after": "rewriter"}},
}
TASKS: dict[str, Any] = {
    "rewriter": {"rollout": {"prompts_per_step": 2, "group_size": 2}, "update": {"optimizer": {"lr": 1e-2}}},
    "painter": PAINTER,
}


def prompt_reward(samples: Sequence[Sample]) -> list[float]:
    """A number that goes by the image and by the digit that the user's own prompt asks for."""
    SCORED_SAMPLES.extend(samples)
    return [worth(sample) for sample in samples]


def worth(sample: Sample) -> float:
    assert sample.image is not None
    return sum(sample.image.tobytes()) / 64 + sample.prompt.columns["digit"]


def rewriter() -> LanguagePolicy:
    model, tokenizer = rewriter_lm()
    settings = {"chat": False, "max_new_tokens": 3, "rollout_batch": 4, "temperature": 1.0}
    return LanguagePolicy(model, tokenizer, settings)


def trained(output: Path, *, steps: int = 1, rewards: Any = None, resume: Path | None = None, **painter: Any) -> Any:
    SCORED_SAMPLES.clear()
    tasks = {**copy.deepcopy(TASKS), "painter": {**PAINTER, **painter}}
    values = {
        "about": {"name": "co"},
        "output": str(output),
        "steps": steps,
        "runtime": {"device": "cpu"},
        "tasks": tasks,
    }
    trainer = MixedTrainer(
        values,
        policies={"rewriter": rewriter(), "painter": make_policy()},
        rewards={
            "rewriter": rewards or [NamedReward("of_task", OfTask("painter"))],
            "painter": {"asked": prompt_reward},
        },
        prompts={"rewriter": requests(), "painter": requests()},
        resume=resume,
    )
    trainer.train()
    return trainer


def written(trainer: Any, step: int = 1) -> list[dict[str, Any]]:
    """The rewritings of a step as the run folder keeps them."""
    folder = trainer.tasks["rewriter"].folder.path / "samples" / f"train-{step:06d}"
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


@pytest.mark.nightly
@pytest.mark.parametrize("compare", daily(["sample", "prompt"], "prompt"))
def test_a_rewriting_has_the_mean_reward_of_its_images(compare: str, tmp_path: Path) -> None:
    size = 3 if compare == "sample" else 6
    task = {"after": "rewriter", "compare": compare}
    trainer = trained(tmp_path, rollout={"group_size": size, "task": task})
    assert len(SCORED_SAMPLES) == 2 * 2 * 3
    rewards_of_sample: dict[tuple[int, int], list[float]] = {}
    for sample in SCORED_SAMPLES:
        (identity,) = sample.after
        rewards_of_sample.setdefault(identity, []).append(worth(sample))
        assert sample.prompt in requests()  # the user's own words, whatever was shown
    assert {identity: len(each) for identity, each in rewards_of_sample.items()} == {
        (g, m): 3 for g in (0, 1) for m in (0, 1)
    }
    groups = {(sample.group, sample.after[0]) for sample in SCORED_SAMPLES}
    expected = [(2 + n, (n // 2, n % 2)) for n in range(4)] if compare == "sample" else [
        (n // 2, (n // 2, n % 2)) for n in range(4)
    ]  # fmt: skip
    assert sorted(groups) == expected
    rows = written(trainer)
    for row in rows:
        mean = sum(rewards_of_sample[row["group"], row["member"]]) / 3
        assert row["rewards"]["of_task"] == pytest.approx(mean, rel=1e-5)
    first, second = (sum(rewards_of_sample[0, member]) / 3 for member in (0, 1))
    half = abs(first - second) / 2  # of two, (r - mean) / std = half / (half sqrt 2)
    advantages = sorted(row["advantage"] for row in rows if row["group"] == 0)
    assert advantages == pytest.approx([-(half / (half * 2**0.5 + 1e-4)), half / (half * 2**0.5 + 1e-4)], rel=1e-3)
    metrics = [lines(trainer.tasks[name])[0] for name in ("rewriter", "painter")]
    assert metrics[0]["reward/mean"] == pytest.approx(metrics[1]["reward/mean"], rel=1e-5)
    assert all(line["policy/on_policy_gap"] < 1e-5 for line in metrics)


def test_evaluations_sample_from_the_rewriting(tmp_path: Path) -> None:
    """The painter's prompts are the rewriter's likeliest texts of held-out requests; the reward reads the request."""
    trainer = trained(tmp_path, steps=0)
    painter, writer = trainer.tasks["painter"], trainer.tasks["rewriter"]
    prompts = requests()[10:13]
    rewards_of_sample = writer.policy.rollout(prompts, group_size=1, seed=5, plan=Plan(stochastic=()))
    rewritten = [
        replace(prompt, text=str(sample.text))
        for prompt, sample in zip(prompts, rewards_of_sample.samples, strict=True)
    ]
    config = EvaluationConfig.model_validate({"prompts": {"source": "x"}, "samples_per_prompt": 2})
    scorer = Scorer([NamedReward("asked", prompt_reward)])
    evaluation = evaluate(painter.policy, prompts, scorer, config, painter.held_out_sampler)
    plain = evaluate(painter.policy, rewritten, scorer, config, HeldOutSampler(job=painter.job))
    assert evaluation is not None
    assert plain is not None
    pictures = [
        [sample.image.tobytes() for sample in evaluation.samples if sample.image] for evaluation in (evaluation, plain)
    ]
    assert pictures[0] == pictures[1]
    assert [sample.prompt for sample in evaluation.samples] == [prompt for prompt in prompts for _ in range(2)]


@pytest.mark.nightly
def test_a_reward_of_one_label_and_custom_rewards(tmp_path: Path) -> None:
    rewards = [NamedReward("of_task", OfTask("painter", "asked"), 2.0), NamedReward("caption", is_caption, 0.5)]
    trainer = trained(tmp_path, rewards=rewards)
    writer, painter = (lines(trainer.tasks[name])[0] for name in ("rewriter", "painter"))
    assert writer["reward/of_task/mean"] == pytest.approx(painter["reward/asked/mean"], rel=1e-5)
    assert writer["reward/mean"] == pytest.approx(
        2 * writer["reward/of_task/mean"] + 0.5 * writer["reward/caption/mean"], rel=1e-5
    )


@pytest.mark.nightly
def test_both_train_and_resume_exactly(tmp_path: Path) -> None:
    uninterrupted = trained(tmp_path / "whole", steps=2)
    fresh = {"rewriter": rewriter(), "painter": make_policy()}
    for name, policy in fresh.items():
        before = torch.cat([p.detach().flatten() for p in policy.trainable])
        assert float((weights(uninterrupted.tasks[name]) - before).abs().max()) > 1e-4
    half = trained(tmp_path / "half", steps=1)
    resumed = trained(tmp_path / "half", steps=2, resume=half.folder.path)
    for name in fresh:
        assert torch.equal(weights(resumed.tasks[name]), weights(uninterrupted.tasks[name]))


def test_samples_follow_those_of_the_task_before() -> None:
    setting = Setting(step=0, num_prompts=2, group_size=4, seed=0, memory=Memory(), key_of=str)
    rows = [(0, 0), (0, 1), (3, 0), (3, 1)]
    alone = following(rows, compare="sample").ask([], setting)
    assert [(r.prompt, r.members, r.after) for r in alone] == [
        (4 + n, (0, 1, 2, 3), (row,)) for n, row in enumerate(rows)
    ]
    answers = round_of(alone, [0.0] * 16)
    assert list(following(rows, compare="sample").ask([answers], setting)) == []  # one round
    shared = following(rows, compare="prompt").ask([], setting)
    assert [(r.prompt, r.members) for r in shared] == [(0, (0, 1)), (0, (2, 3)), (3, (0, 1)), (3, (2, 3))]
    with pytest.raises(ConfigError, match="fewer than the 5 samples"):
        following([(0, n) for n in range(5)], compare="prompt").ask([], setting)


def test_values_of_the_task_before_are_derived() -> None:
    painter = tasks_of(load_config("quickstart/digits-rewritten"))["painter"]
    assert painter.rollout.prompts_per_step == 80
    assert painter.prompts is not None
    assert painter.prompts.source == "python:mmgrpo.examples.rewriting:requests"


@pytest.mark.parametrize(
    ("painter", "message"),
    [
        ({"rollout": {"task": {"after": "nobody"}}}, "'nobody' is no task before it"),
        ({"rollout": {"task": {"after": "rewriter", "every": 2}}}, "rewriter takes part in other steps"),
        ({"prompts": {"source": "x"}}, "prompts: that follows from rewriter"),
        (
            {"rollout": {"prompts_per_step": 3, "task": {"after": "rewriter"}}},
            "rollout.prompts_per_step: that follows from rewriter",
        ),
        (
            {"rollout": {"group_size": 3, "task": {"after": "rewriter", "compare": "prompt"}}},
            "set a multiple of 2, got 3",
        ),
    ],
)
def test_invalid_followers_raise(painter: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validated({"tasks": {**TASKS, "painter": {**PAINTER, **painter}}})


def test_a_reward_of_an_unknown_task_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'poet' is no task after rewriter; those are painter"):
        trained(tmp_path, rewards=[NamedReward("of_task", OfTask("poet"))])
    with pytest.raises(ConfigError, match="painter has no reward 'beauty'; it has asked"):
        trained(tmp_path, rewards=[NamedReward("of_task", OfTask("painter", "beauty"))])
    with pytest.raises(ConfigError, match="'painter' is no task after this run"):
        Trainer(rewriter(), OfTask("painter"), ["a"], {"output": str(tmp_path)})


def test_the_requests_and_their_literal_rewritings() -> None:
    prompts = {prompt.text: prompt.columns["digit"] for prompt in requests()}
    assert (prompts["the digit after six"], prompts["the digit before zero"], prompts["two"]) == (7, 9, 2)
    examples = literal_rewritings(0.6)
    right = [example.text == example.prompt.columns["answer"] for example in examples]
    assert sum(right) / len(right) == pytest.approx(1 / 3 + 2 / 3 * 0.4)
    named = next(example for example in examples if example.prompt.text == "the digit after six")
    assert named.text == caption(6)
    tokenizer = rewriter_lm()[1]
    texts = [example.text or "" for example in examples] + list(prompts)
    assert all(tokenizer.decode(tokenizer(text)["input_ids"]) == text for text in texts)


def test_the_configuration_of_a_paper_on_the_page_loads() -> None:
    page = (CONFIGS.resolve().parent / "docs" / "how-to/mixed-runs.md").read_text()
    _, paper = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(tasks:\n  rewriter:.*?)```", page, re.DOTALL))
    tasks = tasks_of(validated(paper))
    assert tasks["painter"].rollout.prompts_per_step == tasks["rewriter"].rollout.prompts_per_step
    assert tasks["painter"].advantage.scale.settings == {"eps": 1e-4, "correction": 0}


def exact(output: Path, size: int) -> dict[str, torch.Tensor]:
    """The weights of both at the end, each row computed alone so that processes differ in the order of sums only."""
    settings = {"chat": False, "max_new_tokens": 3, "rollout_batch": 1, "update_tokens": 1, "temperature": 1.0}
    update = {"optimizer": {"lr": 1e-3, "eps": 1e-2}}  # AdamW blows up roundings of small gradients
    tasks = {
        "rewriter": {"rollout": {"prompts_per_step": 2, "group_size": 2}, "update": update},
        "painter": {**PAINTER, "update": update},
    }
    values = {"output": str(output), "steps": 2, "runtime": {"device": "cpu"}, "tasks": tasks}
    model, tokenizer = rewriter_lm()
    trainer = MixedTrainer(
        values,
        policies={
            "rewriter": LanguagePolicy(model, tokenizer, settings),
            "painter": make_policy(rollout_batch=1, update_batch=1),
        },
        rewards={"rewriter": [NamedReward("of_task", OfTask("painter"))], "painter": {"asked": prompt_reward}},
        prompts={"rewriter": requests(), "painter": requests()},
    )
    trainer.train()
    trainer.job.barrier()
    assert trainer.job.size == size
    return {name: weights(task) for name, task in trainer.tasks.items()}


SCRIPT = """
import os, sys
from importlib import import_module
from pathlib import Path
import torch
exact = import_module(sys.argv[3]).exact
found = exact(Path(sys.argv[1]), 2)
if os.environ["RANK"] == "0":
    torch.save(found, sys.argv[2])
"""


@pytest.mark.nightly
@pytest.mark.parametrize("module", ["tests.training.test_following", "tests.training.test_shared_policy"])
def test_two_processes_make_the_updates_of_one(module: str, tmp_path: Path) -> None:
    """Each samples the images of its rewritings, or some rows of both tasks, and the advantages are equal on both."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    command += [str(tmp_path / "script.py"), str(tmp_path / "two"), str(tmp_path / "found.pt"), module]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, env=environment, timeout=800, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    two, single = torch.load(tmp_path / "found.pt"), import_module(module).exact(tmp_path / "one", 1)
    for name, result in single.items():
        assert float((result - two[name]).abs().max()) < 1e-6
