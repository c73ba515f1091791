"""Auxiliary supervised losses: their part of an update, their rows, and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from mmgrpo.examples.digits import digit_prompts
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo import Example, Prompt, Sample, Trainer
from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import validated
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.prompt_weights import below
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.training.supervision import EXAMPLES_SEED, SupervisedBatch, accumulate_supervised, accumulate_weighted
from tests.policies.tiny_language import measured_policy_of, prompts_of
from tests.test_trainer import brightness, lines, make_policy

ALOUD = {"name": "python:tests.test_world_sizes:read_aloud"}
DIGITS = {"name": "mislabeled_digits", "fraction": 0.5}
STILL = {"surrogate": None, "terms": [{"name": "departure", "weight": 0.0}]}
"""An objective of 0."""


def equal(samples: Sequence[Sample]) -> list[float]:
    return [1.0] * len(samples)


def half_of_odd_groups(samples: Sequence[Sample]) -> list[float]:
    return [float(sample.group % 2 and sample.member % 2) for sample in samples]


def words(
    output: Path,
    *,
    prompts: Sequence[Prompt] | None = None,
    reward: Any = equal,
    resume: Path | None = None,
    **sections: Any,
) -> Trainer:
    rollout = {"prompts_per_step": 2, "group_size": 2, **sections.pop("rollout", {})}
    values = {"output": str(output), "steps": 1, "rollout": rollout, "runtime": {"device": "cpu"}, **sections}
    used_prompts = prompts or prompts_of("llama")[:2]
    trainer = Trainer(measured_policy_of("llama"), {"reward": reward}, used_prompts, values, resume=resume)
    trainer.train()
    return trainer


def pictures(output: Path, *, prompts: Sequence[Prompt] | None = None, reward: Any = equal, **sections: Any) -> Trainer:
    rollout = {"prompts_per_step": 2, "group_size": 2}
    values = {"output": str(output), "steps": 1, "rollout": rollout, "runtime": {"device": "cpu"}, **sections}
    trainer = Trainer(make_policy(), {"reward": reward}, prompts or digit_prompts()[:2], values)
    trainer.train()
    return trainer


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])


@pytest.mark.first_case
@pytest.mark.parametrize(("train", "examples"), [(words, ALOUD), (pictures, DIGITS)], ids=["words", "pictures"])
def test_with_an_objective_of_0_it_is_a_step_of_the_warm_up(train: Any, examples: Any, tmp_path: Path) -> None:
    auxiliary = {**examples, "batch_size": 4}
    alike = {"lr": 1e-3, "betas": (0.9, 0.99)}
    warmed = train(
        tmp_path / "a",
        steps=0,
        update={
            "warmup": {
                "examples": examples,
                "batch_size": 4,
                "steps": 1,
                "optimizer": {**alike, "schedule": "constant"},
            }
        },
    )
    with_auxiliary = train(tmp_path / "b", objective={"auxiliary": [auxiliary]}, update={"optimizer": alike})
    (line,) = lines(with_auxiliary)
    assert line["policy/loss"] == line["policy/supervised_mean"] == lines(warmed, "warmup.jsonl")[0]["loss"]
    assert torch.equal(weights(warmed), weights(with_auxiliary))


@pytest.mark.parametrize("train", [words, pictures])
def test_with_weight_0_it_has_no_effect(train: Any, tmp_path: Path) -> None:
    reward = half_of_odd_groups if train is words else brightness
    examples = ALOUD if train is words else DIGITS
    without, with_auxiliary = (
        train(
            tmp_path / str(n),
            reward=reward,
            objective={"auxiliary": auxiliary},
            update={"minibatches": 2, "optimizer": {"lr": 1e-3}},
        )
        for n, auxiliary in enumerate([[], [{**examples, "weight": 0.0}]])
    )
    assert torch.equal(weights(without), weights(with_auxiliary))
    assert [line["count/forwards_per_sample"] for line in lines(without)] == [
        line["count/forwards_per_sample"] for line in lines(with_auxiliary)
    ]


def answered() -> list[Prompt]:
    prompts = prompts_of("llama")[:2]
    return [replace(p, columns={"solution": text}) for p, text in zip(prompts, ("two red", "one"), strict=True)]


def gradient_norm(policy: LanguagePolicy, loss: Tensor) -> float:
    return float(flat(torch.autograd.grad(loss, policy.trainable, allow_unused=True)).norm())


def test_an_answer_is_supervised_where_its_group_fails(tmp_path: Path) -> None:
    """Success rates 0 and 0.5, threshold 0.25: the first prompt's answer alone, at the weight of one of two prompts."""
    auxiliary = {
        "name": "answers",
        "label": "expert",
        "column": "solution",
        "weight_by_success": {"name": "below", "rate": 0.25},
        "weight": 0.5,
    }
    trainer = words(
        tmp_path,
        prompts=answered(),
        reward=half_of_odd_groups,
        objective={**STILL, "auxiliary": [auxiliary]},
        update={"optimizer": {"lr": 1e-9}},
    )
    (line,) = lines(trainer)
    first = next(s.prompt for s in read(trainer) if s.group == 0)
    policy = measured_policy_of("llama")
    loss = policy.supervised_loss([Example(first, str(first.columns["solution"]))], seeds=[0]).mean
    assert line["policy/loss"] == pytest.approx(0.5 * 0.5 * float(loss.detach()), rel=1e-6)
    assert line["policy/expert_mean"] == pytest.approx(float(loss.detach()), rel=1e-6)
    assert line["optimizer/grad_norm"] == pytest.approx(0.25 * gradient_norm(policy, loss), rel=1e-5)
    # four sampled, one answer; the objective of 0 takes no forward
    assert line["count/forwards_per_sample"] == pytest.approx(
        lines(words(tmp_path / "x", objective=STILL))[0]["count/forwards_per_sample"] + 1 / 4
    )


def test_an_answer_is_supervised_for_the_failing_part(tmp_path: Path) -> None:
    """Members 0 and 1 have the prompt "brief" and fail, 2 and 3 are right: of four parts two are supervised."""
    prompt_templates = {name: {"name": "systems", "texts": [name]} for name in ("brief", "long")}
    trainer = words(
        tmp_path,
        prompts=answered(),
        reward=lambda samples: [float(sample.prompt_template == "long") for sample in samples],
        objective={
            **STILL,
            "auxiliary": [
                {
                    "name": "answers",
                    "column": "solution",
                    "per_prompt_template": True,
                    "weight_by_success": {"name": "below", "rate": 0.25},
                }
            ],
        },
        rollout={
            "group_size": 4,
            "prompt_templates": prompt_templates,
            "strategy": {"name": "mixed_prompt_templates", "prompt_templates": list(prompt_templates)},
        },
        update={"optimizer": {"lr": 1e-9}},
    )
    (line,) = lines(trainer)
    expected_prompts = [
        replace(s.prompt, messages=[{"role": "system", "content": "brief"}, *_label_column(s.prompt)])
        for s in read(trainer)
    ]
    policy = measured_policy_of("llama")
    losses = [
        policy.supervised_loss([Example(prompt, str(prompt.columns["solution"]))], seeds=[0]).mean
        for prompt in expected_prompts
    ]
    assert line["policy/loss"] == pytest.approx(float(sum(losses).detach()) / 4, rel=1e-5)  # type: ignore[union-attr]
    assert line["policy/supervised_mean"] == pytest.approx(float(sum(losses).detach()) / 2, rel=1e-5)  # type: ignore[union-attr]


def _label_column(prompt: Prompt) -> Sequence[Any]:
    return prompt.messages or [{"role": "user", "content": prompt.text}]


def read(trainer: Trainer) -> Sequence[Sample]:
    """A sample of each of the step's groups, of its prompt."""
    prompts = trainer.stream.at_step(0, trainer.session.memory)
    return [Sample(prompts.prompt(group), group, 0) for group in range(2)]


def test_an_image_is_supervised_by_flow_matching_on_its_row(tmp_path: Path) -> None:
    rows = [replace(p, columns={"picture": brightness_picture(n)}) for n, p in enumerate(digit_prompts()[:2])]
    auxiliary = {"name": "answers", "label": "own", "column": "picture"}
    trainer = pictures(
        tmp_path, prompts=rows, objective={**STILL, "auxiliary": [auxiliary]}, update={"optimizer": {"lr": 1e-9}}
    )
    expected_examples = [Example(row.prompt, image=row.prompt.columns["picture"]) for row in read(trainer)]
    seeds = [derive_seed(0, EXAMPLES_SEED, 0, group) for group in range(2)]
    loss = make_policy().supervised_loss(expected_examples, seeds=seeds)
    assert lines(trainer)[0]["policy/own_mean"] == pytest.approx(float(loss.mean.detach()), rel=1e-6)
    assert loss.num_terms == 2


def brightness_picture(number: int) -> Any:
    from PIL import Image

    return Image.new("RGB", (8, 8), (40 + 120 * number,) * 3)


def test_a_resumed_run_continues_with_the_next_examples(tmp_path: Path) -> None:
    failed = {
        "name": "answers",
        "label": "failed",
        "column": "solution",
        "weight_by_success": {"name": "below", "rate": 0.25},
    }
    values: dict[str, Any] = {
        "steps": 2,
        "objective": {"auxiliary": [failed, {**ALOUD, "batch_size": 2}]},
        "update": {"minibatches": 2, "optimizer": {"lr": 1e-2}},
        "checkpoint": {"every": 1},
        "prompts": answered(),
        "reward": half_of_odd_groups,
    }
    uninterrupted = words(tmp_path, **values)
    expected, logged = weights(uninterrupted), [line["policy/supervised_mean"] for line in lines(uninterrupted)]
    resumed = words(tmp_path, resume=uninterrupted.folder.path / "checkpoints" / "step-000001", **values)
    assert torch.equal(weights(resumed), expected)
    assert [line["policy/supervised_mean"] for line in lines(resumed)] == logged
    assert len({*logged}) == 4  # every update has other examples


EXAMPLES = [Example(Prompt("what"), text) for text in ("one", "two red squares")]


def test_a_mean_is_over_terms_and_a_weighted_one_over_examples() -> None:
    policy, job = measured_policy_of("llama"), Job(Accelerator(cpu=True))
    lesson = SupervisedBatch(examples=EXAMPLES, seeds=[0, 1])
    losses = [policy.supervised_loss([example], seeds=[0]) for example in EXAMPLES]
    n, m = (loss.num_terms for loss in losses)
    assert n != m
    over_terms = (n * losses[0].mean + m * losses[1].mean) / (n + m)
    weighted = (losses[0].mean + 0.5 * losses[1].mean) / 3  # and a third that is not supervised
    grads = [torch.autograd.grad(loss, policy.trainable, retain_graph=True) for loss in (over_terms, weighted)]
    auxiliary = accumulate_supervised(policy, lesson, parameters=policy.trainable, job=job, scale=3.0)
    torch.testing.assert_close(gradient_of(policy), 3 * flat(grads[0]))
    assert auxiliary.local_loss == 3 * auxiliary.mean == pytest.approx(3 * float(over_terms.detach()), rel=1e-6)
    auxiliary = accumulate_weighted(policy, lesson, [1.0, 0.5], num=3, job=job, scale=2.0)
    torch.testing.assert_close(gradient_of(policy), 2 * flat(grads[1]))
    assert auxiliary.local_loss == pytest.approx(2 * float(weighted.detach()), rel=1e-6)
    assert auxiliary.mean == pytest.approx(2 * float(weighted.detach()), rel=1e-6)  # of weights 1.5 in place of 3
    assert accumulate_weighted(policy, SupervisedBatch(examples=[], seeds=[]), [], num=3, job=job).mean == 0.0


def gradient_of(policy: LanguagePolicy) -> Tensor:
    """The gradient, which is cleared."""
    result = flat([parameter.grad for parameter in policy.trainable])
    for parameter in policy.trainable:
        parameter.grad = None
    return result


def flat(grads: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([grad.flatten() for grad in grads if grad is not None])


def test_below_weights_by_1_or_0() -> None:
    assert below(torch.tensor([0.0, 0.2, 0.25, 0.5]), rate=0.25).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "name is missing: write the name of the function next to its settings"),
        ({"column": "a"}, "'column' is not a setting; it is now {name: answers, column: COLUMN}"),
        ({"examples": "rows"}, "it is now {name: rows, source: FILE, column: COLUMN}"),
        ({"name": "answers", "column": "a", "batch_size": 2}, "leave out batch_size"),
    ],
)
def test_a_section_without_a_name_raises(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validated({"objective": {"auxiliary": [section]}})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "answer"}, "unknown name 'answer'; did you mean answers"),
        ({"name": "answers"}, "answers needs column"),
        ({"name": "prefixes", "weight_by_success": "failure"}, "prefixes takes no 'weight_by_success'"),
        (
            {"name": "answers", "column": "a", "in_parts": True},
            "answers takes no 'in_parts'; it is now per_prompt_template",
        ),
    ],
)
def test_sources_and_their_settings_are_checked(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"objective\.auxiliary \(supervised\): {message}"):
        Algorithm.of(validated({"objective": {"auxiliary": [section]}}))


def test_right_without_weights_raises() -> None:
    section = {"name": "answers", "column": "a", "right": 0.5}
    with pytest.raises(ConfigError, match="right of answers is for weight_by_success, which is not set"):
        Algorithm.of(validated({"objective": {"auxiliary": [section]}}))
    Algorithm.of(
        validated({"objective": {"auxiliary": [section | {"weight_by_success": {"name": "below", "rate": 0.5}}]}})
    )


def test_unsupported_examples_raise(tmp_path: Path) -> None:
    answers = {"auxiliary": [{"name": "answers", "column": "answer"}]}
    with pytest.raises(
        ConfigError, match=r"auxiliary\.supervised\.column reads the column 'answer', which none of the"
    ):
        words(tmp_path / "a", prompts=answered(), objective=answers)
    further = Prompt("a row that has it", columns={"answer": "b"})
    with pytest.raises(DataError, match=r"'answer' must have a text, .*; the row has \['solution'\]"):
        words(tmp_path / "d", prompts=[*answered(), further], objective=answers)
    with pytest.raises(ConfigError, match=r"auxiliary .supervised.: weight_by_success: unknown name 'bellow'"):
        words(
            tmp_path / "b",
            prompts=answered(),
            objective={"auxiliary": [{"name": "answers", "column": "solution", "weight_by_success": "bellow"}]},
        )
    with pytest.raises(ConfigError, match="logged by label"):
        words(tmp_path / "c", objective={"auxiliary": [ALOUD, ALOUD]})
