"""Commands on a mixed run, and the values of its trackers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmgrpo.config.loading import load_config
from mmgrpo.config.parts import tasks_of
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.runs.resuming import policy_weights_folder
from mmgrpo.training.build import build_policy
from mmgrpo.types import Plan, Prompt, Sample
from tests.test_cli import call

SMALL: dict[str, Any] = {
    "include": "quickstart/arithmetic-text",
    "rollout": {"prompts_per_step": 2, "group_size": 4},
    "evaluation": {"prompts": {"limit": 6}, "every": 1},
}
WARM = {"examples": {"name": "careless_sums", "fraction": 0.7}, "steps": 2, "batch_size": 4}
CUT_OFF = " ... (cut off by the length limit)"
CONFIG: dict[str, Any] = {
    "about": {"name": "mixed"},
    "steps": 3,
    "runtime": {"device": "cpu", "trackers": ["tensorboard"]},
    "tasks": {
        "sums": {**SMALL, "update": {"warmup": WARM}},
        "more": {
            **SMALL,
            "rollout": {**SMALL["rollout"], "task": {"policy_of": "sums", "every": 2}},
            "evaluation": {
                **SMALL["evaluation"],
                "watchdog": {"window": 2, "alerts": [{"name": "dead_groups", "limit": 1e-9}]},
            },
        },
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two tasks, as the command line trains it."""
    output = tmp_path_factory.mktemp("runs")
    (output / "run.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    result = call("train", str(output / "run.yaml"), f"output={output}")
    assert result.exit_code == 0, result.output
    return output / "mixed"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.nightly
def test_trackers_get_the_numbers_and_texts_of_each_task_under_its_name(run: Path) -> None:
    """At the steps of the run: the second task takes part in the first and the third."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    file = min(run.rglob("*tfevents*"), key=lambda path: len(path.parts))
    events = EventAccumulator(str(file.parent), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    for task, steps in (("sums", [1, 1, 2, 2, 3, 3]), ("more", [1, 1, 3, 3])):
        scalars = events.Scalars(f"{task}/reward/mean")
        assert [scalar.step for scalar in scalars] == steps
        rewards = [row["reward/mean"] for row in rows(run / task / "metrics.jsonl")]
        assert [scalar.value for scalar in scalars] == pytest.approx(rewards)
        evaluated_steps = [0, *dict.fromkeys(steps)]
        assert [scalar.step for scalar in events.Scalars(f"eval/{task}/held_out_accuracy/mean")] == evaluated_steps
        texts = events.Tensors(f"evaluation/{task}/texts/text_summary")
        assert [text.step for text in texts] == evaluated_steps
        assert texts[0].tensor_proto.string_val[0].decode().startswith("| prompt | text | held_out_accuracy |")


@pytest.mark.nightly
def test_evaluate_scores_all_tasks_or_the_named_one(run: Path) -> None:
    """The second task has its weights of the first."""
    result = json.loads(call("evaluate", str(run), "--json").stdout)
    last = {task: rows(run / task / "evaluation.jsonl")[-1] for task in ("sums", "more")}
    for task, row in last.items():
        mean = row["eval/held_out_accuracy/mean"]
        assert result[f"eval/{task}/held_out_accuracy/mean"] == mean
        named = json.loads(call("evaluate", str(run), "--task", task, "--json").stdout)
        of_folder = json.loads(call("evaluate", str(run / task), "--json").stdout)
        assert named == of_folder
        assert named["eval/held_out_accuracy/mean"] == mean


@pytest.mark.nightly
def test_sample_wants_to_know_which_task(run: Path, tmp_path: Path) -> None:
    command = ("sample", str(run), "12+13=", "--out", str(tmp_path))
    assert "this is a mixed run of the tasks sums, more: choose one with --task" in call(*command).output
    assert "--task less: unknown task; valid tasks: sums, more" in call(*command, "--task", "less").output
    task_output = call(*command, "--task", "more")
    assert task_output.exit_code == 0, task_output.output
    of_sums = call("sample", str(run / "sums"), "12+13=", "--out", str(tmp_path))  # is added to the files of the folder
    output, where = task_output.stdout.split(" samples in ")
    assert of_sums.stdout.split(" samples in ")[0] == output
    assert "".join(of_sums.stdout.split(" samples in ")[1].split()) == "".join(where.split()) + "-2"
    file = str(run.parent / "run.yaml")
    of_file = call("sample", file, "12+13=", "--out", str(tmp_path), "--task", "more", "--checkpoint", str(run))
    assert of_file.stdout.split(" samples in ")[0] == output


def test_explain_prints_the_part_of_each_task(run: Path) -> None:
    output = " ".join(call("explain", str(run)).stdout.split())
    assert "task of a mixed run prompts" in output
    assert "in the first and then each 2th step of it; steps are those here trains the policy of sums" in output


@pytest.mark.nightly
def test_a_finished_run_is_reported_and_one_task_does_not_resume_alone(run: Path) -> None:
    done = call("train", "--resume", str(run))
    assert done.exit_code == 0
    assert f"nothing to do: {run} is at step 3 of 3" in done.output
    alone = call("train", "--resume", str(run / "more"))
    assert alone.exit_code == 2
    assert "more is a task of a mixed run, which resumes as one run" in alone.output


def test_alerts_are_of_the_task_that_watches(run: Path) -> None:
    """Of the task's own second step, the third of the run."""
    alerts = rows(run / "more" / "alerts.jsonl")
    assert [(alert["step"], alert["kind"]) for alert in alerts if alert["kind"] != "no_effect"] == [(2, "dead_groups")]
    assert rows(run / "alerts.jsonl") == [{"task": "more", **alert, "step": 3} for alert in alerts]
    assert not (run / "sums" / "alerts.jsonl").exists()


def test_the_page_shows_all_tasks(run: Path) -> None:
    page = " ".join(re.sub("<[^>]+>", " ", (run / "report.html").read_text()).split())
    assert "Alerts step alert measurement suggested fix 3 dead_groups" in page
    assert "Reward of sums" in page
    assert "Reward of more" in page
    assert "Before and after" not in page
    assert "Mean reward: not recorded" not in page
    last = [rows(run / task / "evaluation.jsonl")[-1]["eval/held_out_accuracy/mean"] for task in ("sums", "more")]
    assert "The numbers step sums/held_out_accuracy more/held_out_accuracy 0 " in page
    assert f" 3 {last[0]:.3f} {last[1]:.3f} " in page


@pytest.mark.nightly
def test_evaluate_samples_the_prompts_of_the_task_before(tmp_path: Path) -> None:
    small = [
        "tasks.rewriter.update.warmup.steps=20",
        "tasks.painter.update.warmup.steps=20",
        "checkpoint.every=1",
        "steps=2",
    ]
    small += ["tasks.painter.evaluation.samples_per_prompt=1", "tasks.painter.evaluation.every=1"]
    assert call("train", "quickstart/digits-rewritten", *small, f"output={tmp_path}").exit_code == 0
    run = tmp_path / "digits-rewritten"
    _, first, last = rows(run / "painter" / "evaluation.jsonl")
    of_run = json.loads(call("evaluate", str(run), "--json").stdout)
    of_first = json.loads(call("evaluate", str(run / "painter/checkpoints/step-000001"), "--json").stdout)
    for name in ("recall", "spread"):
        assert of_run[f"eval/painter/{name}/mean"] == last[f"eval/{name}/mean"] != first[f"eval/{name}/mean"]
        assert of_first[f"eval/{name}/mean"] == first[f"eval/{name}/mean"]


def checksum(samples: Sequence[Sample]) -> list[float]:
    """A number of each text."""
    return [float(sum(n * ord(letter) for n, letter in enumerate(sample.text or "", 1))) for sample in samples]


LEARNING = {"warmup": WARM, "optimizer": {"lr": 0.05}}
CHECKSUM = [{"name": "python:tests.training.test_mixed_commands:checksum"}]
CHAINED = {"rewards": CHECKSUM, "evaluation": {**SMALL["evaluation"], "rewards": CHECKSUM}}
CHAIN: dict[str, Any] = {
    "about": {"name": "chain"},
    "steps": 2,
    "runtime": {"device": "cpu"},
    "checkpoint": {"every": 1},
    "tasks": {
        "first": {**SMALL, **CHAINED, "update": LEARNING},
        "second": {
            **SMALL,
            **CHAINED,
            "rollout": {
                "group_size": 2,
                "task": {"after": "first", "prompt_template": {"name": "after_answers", "text": "{answer}+12="}},
            },
            "update": LEARNING,
        },
        "third": {
            **SMALL,
            **CHAINED,
            "rollout": {
                "group_size": 2,
                "task": {
                    "after": "second",
                    "policy_of": "first",
                    "prompt_template": {"name": "after_answers", "text": "7+{answer}="},
                },
            },
        },
    },
}


@pytest.fixture
def chain_file(tmp_path: Path) -> Path:
    """The configuration of three tasks, each of which samples after the one before."""
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(CHAIN, sort_keys=False))
    return file


@pytest.mark.nightly
def test_evaluate_plays_a_chain_of_three_tasks(chain_file: Path, tmp_path: Path) -> None:
    """The run, a checkpoint and a task have the means of the evaluations of the run."""
    file = chain_file
    result = call("train", str(file), f"output={tmp_path}")
    assert result.exit_code == 0, result.output
    run, key = tmp_path / "chain", "eval/checksum/mean"
    recorded = {task: [row[key] for row in rows(run / task / "evaluation.jsonl")] for task in CHAIN["tasks"]}
    assert len(set(recorded["third"])) > 1
    evaluated = call("evaluate", str(run), "--json")
    assert evaluated.exit_code == 0, evaluated.output
    of_run = json.loads(evaluated.stdout)
    assert {task: of_run[f"eval/{task}/checksum/mean"] for task in recorded} == {t: v[-1] for t, v in recorded.items()}
    checkpoint = str(run / "second/checkpoints/step-000001")
    assert json.loads(call("evaluate", checkpoint, "--json").stdout)[key] == recorded["second"][1]
    of_task = json.loads(call("evaluate", str(file), "--task", "third", "--checkpoint", str(run), "--json").stdout)
    assert of_task[key] == recorded["third"][-1]


@pytest.mark.nightly
def test_commands_on_a_chain_without_weights_sample_after_the_base_models(chain_file: Path, tmp_path: Path) -> None:
    tasks = tasks_of(load_config(chain_file))
    policies = {name: build_policy(config, "cpu") for name, config in tasks.items()}

    def answers(name: str, texts: Sequence[str]) -> list[str]:
        prompts, plan = [Prompt(text) for text in texts], Plan(stochastic=())
        rollout = policies[name].rollout(prompts, group_size=1, seed=0, plan=plan)
        return [str(sample.text) for sample in rollout.samples]

    held_out = tasks["third"].held_out
    assert held_out is not None
    texts = [prompt.text for prompt in load_prompts_of(held_out.prompts)]
    seconds = answers("second", [f"{answer}+12=" for answer in answers("first", texts)])
    thirds = answers("third", [f"7+{answer}=" for answer in seconds])
    command = ("evaluate", str(chain_file), "--task", "third", "--json")
    expected = sum(checksum([Sample(Prompt(""), 0, 0, text=text) for text in thirds])) / len(thirds)
    assert json.loads(call(*command).stdout)["eval/checksum/mean"] == pytest.approx(expected, rel=1e-6)
    out = ("--count", "1", "--out", str(tmp_path / "samples"))
    sampled = call("sample", str(chain_file), texts[0], "--task", "second", *out)
    assert sampled.stdout.splitlines()[0].removesuffix(CUT_OFF) == seconds[0]
    (unchanged,) = answers("second", texts[:1])
    verbatim = call("sample", str(chain_file), texts[0], "tasks.second.rollout.task=null", "--task", "second", *out)
    assert verbatim.stdout.splitlines()[0].removesuffix(CUT_OFF) == unchanged != seconds[0]


def test_a_task_without_the_configuration_of_the_task_before_raises(chain_file: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "config.yaml"
    alone.parent.mkdir()
    second = tasks_of(load_config(chain_file))["second"]
    alone.write_text(yaml.safe_dump(second.model_dump(mode="json"), sort_keys=False))
    output = " ".join(call("evaluate", str(alone)).output.split())
    assert "is a task whose prompts the task first generates, and" in output
    assert "or set rollout.task=null to use the prompts unchanged" in output


TURNS: dict[str, Any] = {
    **SMALL,
    "about": {"name": "turns"},
    "steps": 1,
    "runtime": {"device": "cpu"},
    "rewards": [{"name": "of_prompt_template", "of": CHECKSUM[0]["name"], "prompt_templates": ["adder"]}],
    "rollout": {
        **SMALL["rollout"],
        "strategy": {"name": "take_turns", "roles": ["solver", "adder"], "turns": 2, "follow": "best"},
        "prompt_templates": {
            "solver": {"name": "role", "text": "{prompt}"},
            "adder": {"name": "role", "text": "7+", "turn": "{text}="},
        },
    },
    "update": LEARNING,
}


@pytest.mark.nightly
def test_evaluate_and_sample_hold_the_conversation_of_roles(tmp_path: Path) -> None:
    """The run and the commands on its folder have the turns of the roles, with the same values."""
    file = tmp_path / "run.yaml"
    rewards = {"rewards": TURNS["rewards"]}
    file.write_text(yaml.safe_dump({**TURNS, "evaluation": {**SMALL["evaluation"], **rewards}}, sort_keys=False))
    result = call("train", str(file), f"output={tmp_path}")
    assert result.exit_code == 0, result.output
    run, key = tmp_path / "turns", "eval/of_prompt_template/mean"
    first, last = (row[key] for row in rows(run / "evaluation.jsonl"))
    assert json.loads(call("evaluate", str(run), "--json").stdout)[key] == last != first
    policy = build_policy(load_config(run / "config.yaml"), "cpu")
    policy.load(policy_weights_folder(run))
    turns = ["12+13="]
    for _ in range(2):
        prompt = Prompt(turns[-1] if len(turns) == 1 else f"7+\n\n{turns[-1]}=")
        (sample,) = policy.rollout([prompt], group_size=1, seed=0, plan=Plan(stochastic=())).samples
        turns.append(str(sample.text))
    output = call("sample", str(run), "12+13=", "--count", "1", "--out", str(tmp_path / "samples")).stdout
    printed = [line.removesuffix(CUT_OFF) for line in output.splitlines()[:2]]
    assert printed == [f"solver: {turns[1]}", f"adder: {turns[2]}"]
