"""Complete runs with views: methods that read them, errors for undefined ones, and resuming."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import load_config, validated
from mmgrpo.distributed.job import Job
from mmgrpo.doctor.examination import examine
from mmgrpo.errors import ConfigError
from mmgrpo.explain.forward_counts import forwards_per_sample
from mmgrpo.explain.view_passes import view_rows
from mmgrpo.memory import Memory
from mmgrpo.policy import Policy
from mmgrpo.scoring import NamedReward, Scorer
from mmgrpo.training.arguments import rewards_of
from mmgrpo.training.build import build_views, plan_at
from mmgrpo.training.compute_advantages import compute_advantages
from mmgrpo.training.rollout_rounds import collect_rollouts
from mmgrpo.training.score_rollouts import score_rollouts
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt, Sample
from tests.policies.contract import move
from tests.policies.tiny_language import measured_policy_of, picture, policy_of, prompts_of
from tests.policies.tiny_policies import pipeline_of, settings_of

SMALL = {"steps": 2, "rollout.prompts_per_step": 2, "rollout.group_size": 4, "update.optimizer.lr": 1e-3}
HERE = "tests.training.test_view_runs"


def first_of_four(samples: Sequence[Sample]) -> list[float]:
    """In one group one is right, in the other two are."""
    return [float(sample.member < 1 + sample.group % 2) for sample in samples]


def writer() -> tuple[Any, Any]:
    """Another language model with the tokenizer of ``llama``."""
    policy = measured_policy_of("llama")
    move(policy.trainable)
    return policy.model, policy.processor


def painter() -> Any:
    """The pipeline with other weights."""
    pipeline = pipeline_of("sd3")
    with torch.no_grad():
        for number, parameter in enumerate(pipeline.transformer.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.add_(noise * 0.05 * parameter.std(correction=0))
    return pipeline


def lines_of(trainer: Trainer) -> list[dict[str, Any]]:
    folder = trainer.train()
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def moved(policy: Policy, before: Sequence[Tensor]) -> bool:
    return any(not torch.equal(now, then) for now, then in zip(policy.trainable, before, strict=True))


def weights_of(policy: Policy) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in policy.trainable]


def trained(
    policy: Policy, method: str, prompts: list[Prompt], output: Path, reward: Any = first_of_four, **changes: Any
) -> list[dict[str, Any]]:
    """Two steps of a method, in which the weights move and the policy is what drew."""
    config = load_config(f"methods/{method}", {**SMALL, **changes, "output": str(output)})
    before = weights_of(policy)
    lines = lines_of(Trainer(policy, reward, prompts, config))
    for line in lines:
        assert line["policy/on_policy_gap"] < 1e-5
        assert line["optimizer/grad_norm"] > 0
    assert moved(policy, before)
    return lines


def test_papo_trains_and_an_empty_mask_has_no_divergence(tmp_path: Path) -> None:
    prompts = [Prompt("what is it", images=[picture(56, 56)]), Prompt("how many", images=[picture(56, 56, seed=1)])]
    for share in (0.6, 0.0):
        views = {"objective.views.masked.prompt_template.share": share, "update.minibatches": 2}
        lines = trained(policy_of("qwen2.5-vl", max_new_tokens=4), "papo", prompts, tmp_path, **views)
        assert [line["update"] for line in lines] == [0, 1, 0, 1]
        result = [line["policy/perception_mean"] for line in lines if line["update"] == 0]
        assert all(abs(value) < 1e-9 for value in result) if share == 0 else all(value > 1e-7 for value in result)
        assert lines[0]["policy/loss/perception"] == pytest.approx(-0.02 * lines[0]["policy/perception_mean"], rel=0.5)


@pytest.mark.nightly
def test_samples_with_noisy_images_are_viewed_without_noise(tmp_path: Path) -> None:
    """At the first step all see noise, at the last of the two none would."""
    prompts = [Prompt("what is it", images=[picture(56, 56)]), Prompt("how many", images=[picture(56, 56, seed=1)])]
    schedule = {"name": "linear", "start": 1.0, "end": 0.0, "steps": 1}
    changes = {"schedules": {"rollout.prompt_templates.noised.chance": schedule}}
    assert len(trained(policy_of("qwen2.5-vl", max_new_tokens=4), "vogue", prompts, tmp_path, **changes)) == 2


def test_sdpo_trains_on_members_with_a_right_peer_alone(tmp_path: Path) -> None:
    """Of group 0 one is right, so three have a right peer; of group 1 two are, so all four have."""
    lines = trained(measured_policy_of("llama", max_new_tokens=5), "sdpo", prompts_of("llama"), tmp_path)
    assert all(line["policy/distillation@peer_mean"] != 0 for line in lines)
    policy, config, job = (
        measured_policy_of("llama", max_new_tokens=5),
        load_config("methods/sdpo", SMALL),
        Job(Accelerator()),
    )
    rewards = rewards_of(first_of_four)
    arguments = {
        "setting": Algorithm.of(config).step_setting(0, Memory(), str),
        "plan": plan_at(Algorithm.of(config), policy, 0),
        "job": job,
    }
    prompts = prompts_of("llama")
    rollouts = collect_rollouts(
        policy, Algorithm.of(config).strategy, prompts.__getitem__, Scorer(rewards), **arguments
    )
    verdict = score_rollouts(rollouts, rewards, step=0, job=job)
    batch = compute_advantages(
        policy,
        rollouts,
        verdict,
        Algorithm.of(config),
        job=job,
        views=build_views(Algorithm.of(config), policy),
    )
    assert batch.rollout.mask_BT.any(1).tolist() == [False, True, True, True, True, True, True, True]
    sampled_texts = [sample.text for sample in rollouts.samples]
    view_trace = batch.views["peer"].rollout.trace
    texts = [view_trace.prompts[owner].prompt.text for owner in view_trace.prompt_of_B]
    assert [str(sampled_texts[0]) in text for text in texts[1:4]] == [True] * 3
    assert str(sampled_texts[5]) in texts[4]
    assert [str(sampled_texts[4]) in text for text in texts[5:]] == [True] * 3


def test_wrong_samples_with_a_right_peer_are_distilled_and_others_compared(tmp_path: Path) -> None:
    """Three of group 0 are distilled, two of group 1."""
    lines = trained(
        measured_policy_of("llama", max_new_tokens=5), "srpo--unifying-group", prompts_of("llama"), tmp_path
    )
    assert all(line["policy/distillation@peer_mean"] != 0 for line in lines)


@pytest.mark.parametrize("method", ["gtr-turbo", "prl", "cgpo"])
def test_the_reference_penalizes_decisions_that_are_likelier_now(method: str, tmp_path: Path) -> None:
    """The average so far, of single tokens; the first weights, of all tokens to come, and of the complete answer."""
    changes = {"about.method.rewards": {}} if method == "cgpo" else {}  # whose rewards are those of a model of the hub
    lines = trained(measured_policy_of("llama", max_new_tokens=5), method, prompts_of("llama"), tmp_path, **changes)
    assert len(lines) == 2


@pytest.mark.first_case
@pytest.mark.parametrize("method", ["on-policy-distillation", "g-opd"])
def test_a_language_policy_is_distilled_without_a_reward(method: str, tmp_path: Path) -> None:
    settings = {"model": f"python:{HERE}:writer", "max_new_tokens": 5, "dtype": "float32", "temperature": 4.0}
    teacher = {"objective": {"views": {"teacher": {"policy": {"name": "language", **settings}}}}}
    reward = NamedReward("right", first_of_four, weight=0.0)
    lines = trained(
        measured_policy_of("llama", max_new_tokens=5),
        method,
        prompts_of("llama"),
        tmp_path,
        reward,
        **teacher,
        **{"rollout.group_size": 1},
    )
    assert len(lines) == 2
    assert all(line["policy/trained_frac"] == 1.0 for line in lines)


def test_another_writer_rewards_each_token(tmp_path: Path) -> None:
    """Groups of equal rewards have a gradient by it too."""
    settings = {"model": f"python:{HERE}:writer", "max_new_tokens": 5, "dtype": "float32", "temperature": 4.0}
    views = {"preferred": {"policy": {"name": "language", **settings}}}
    alike = NamedReward("alike", lambda samples: [0.0] * len(samples), weight=1.0)
    lines = trained(
        measured_policy_of("llama", max_new_tokens=5),
        "rto",
        prompts_of("llama"),
        tmp_path,
        alike,
        objective={"views": views},
    )
    assert len(lines) == 2


@pytest.mark.nightly
def test_a_diffusion_policy_is_distilled(tmp_path: Path) -> None:
    """A teacher equal to the student gives no gradient."""
    prompts, reward = [Prompt("a red fox"), Prompt("two blue squares")], NamedReward("any", first_of_four, weight=0.0)
    for model, teaches in ((f"python:{HERE}:painter", True), ("python:tests.policies.tiny_policies:build_sd3", False)):
        settings = {**settings_of("sd3"), "name": "denoising", "model": model, "dtype": "float32"}
        config = load_config(
            "methods/on-policy-distillation",
            {**SMALL, "steps": 1, "output": str(tmp_path), "objective.views": {"teacher": {"policy": settings}}},
        )
        policy = DenoisingPolicy(pipeline_of("sd3"), settings_of("sd3"))
        (line,) = lines_of(Trainer(policy, reward, prompts, config))
        num_steps = policy.num_decisions + 1
        counted = forwards_per_sample(Algorithm.of(config), num_steps)
        parts = [part for part in (counted.rollout, counted.values, counted.views, counted.update) if part]
        skipped = 0 if teaches or counted.update is None else counted.update.at(num_steps)
        assert line["count/forwards_per_sample"] == sum(part.at(num_steps) for part in parts) - skipped
        assert (line["optimizer/grad_norm"] > 1e-4) == teaches


def test_the_doctor_looks_at_views() -> None:
    config = load_config("methods/sdpo", {**SMALL, "policy": None})
    policy = measured_policy_of("llama", max_new_tokens=5)
    findings = {
        finding.check: finding for finding in examine(config, policy, {"right": first_of_four}, prompts_of("llama"))
    }
    assert not findings["gradient"].fix
    assert findings["gradient"].measured.startswith("norm ")


def test_explain_lists_views_and_their_evaluations() -> None:
    masked = dict(view_rows(Algorithm.of(load_config("methods/papo", {"policy": None}))))
    assert masked == {
        "view masked": "weights old, prompt template masked_image (share 0.6, patch 14); a pass after the rollout"
    }
    grad = {
        "objective.terms": [{**TERM, "view": "masked", "grad": True}],
        "objective.views.masked.weights": "now",
        "about.method": None,
    }
    (text,) = dict(view_rows(Algorithm.of(load_config("methods/papo", {"policy": None, **grad})))).values()
    assert text.endswith("; a pass with each pass of the policy, and one with gradient")


def section(tmp_path: Path, **values: Any) -> Any:
    rollout = {"prompts_per_step": 2, "group_size": 2}
    return validated({"output": str(tmp_path), "steps": 1, "rollout": rollout, **values})


TERM = {"name": "divergence", "form": "k3", "view": "other", "weight": -0.1}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"objective": {"terms": [{**TERM, "weight": 0.0}]}},
            "objective.terms reads the view 'other'",
        ),
        (
            {
                "advantage": {"estimators": [{"name": "log_ratio", "view": "tutor"}]},
                "objective": {"views": {"tutors": {}}},
            },
            "tutors",
        ),
        ({"objective": {"views": {"other": {"weights": "average"}}}}, "set update.ema"),
        ({"objective": {"views": {"other": {"weights": "snapshot"}}}}, "no weights are kept under 'snapshot'"),
        ({"objective": {"terms": [{**TERM, "grad": True}], "views": {"other": {"weights": "old"}}}}, "leave out grad"),
        ({"objective": {"views": {"other": {"prompt_template": {"name": "masked_image", "patches": 3}}}}}, "patch"),
    ],
)
def test_unsupported_views_raise_before_the_first_sample(values: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        Trainer(measured_policy_of("llama"), first_of_four, prompts_of("llama"), section(tmp_path, **values))


@pytest.mark.parametrize(
    ("views", "text"),
    [
        ({"reference": {}}, "must not have the names"),
        ({"other": {"weights": "old", "policy": "language"}}, "separate weights"),
        ({"other": {"weight": "old"}}, "did you mean weights"),
    ],
)
def test_an_invalid_section_raises(views: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        section(tmp_path, objective={"views": views})


def test_the_average_is_a_view_and_the_weights_are_restored(tmp_path: Path) -> None:
    views = {"slow": {"weights": "average"}}
    terms = {"terms": [{"name": "divergence", "form": "k3", "view": "slow", "weight": 0.1}]}
    update = {"optimizer": {"lr": 1e-2}, "ema": {"decay": 0.9, "every": 1}}
    policy = measured_policy_of("llama", max_new_tokens=5)
    config = section(tmp_path, objective={"views": views, **terms}, update=update).model_copy(update={"steps": 3})
    lines = lines_of(Trainer(policy, first_of_four, prompts_of("llama"), config))
    result = [line["policy/k3_slow_mean"] for line in lines]
    assert result[0] == pytest.approx(0.0, abs=1e-9)  # the average begins as the weights
    assert all(value > 1e-7 for value in result[1:])


@pytest.mark.nightly
def test_a_run_with_views_resumes_as_the_uninterrupted_one(tmp_path: Path) -> None:
    changes = {**SMALL, "steps": 4, "checkpoint.every": 2, "output": str(tmp_path)}
    uninterrupted = Trainer(
        measured_policy_of("llama"), first_of_four, prompts_of("llama"), load_config("methods/sdpo", changes)
    )
    folder = uninterrupted.train()
    again = Trainer(
        measured_policy_of("llama"),
        first_of_four,
        prompts_of("llama"),
        load_config("methods/sdpo", changes),
        resume=folder / "checkpoints" / "step-000002",
    )
    again.train()
    assert all(torch.equal(a, b) for a, b in zip(again.policy.trainable, uninterrupted.policy.trainable, strict=True))
