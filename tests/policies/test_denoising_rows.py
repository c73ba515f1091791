"""Rows with different arguments in one rollout, and prompts longer than any before."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.rewards.images.pixels import Brightness
from PIL import Image

from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Example, OffPolicySample, Plan, Prompt, Sample
from tests.breadth import assembly, trial
from tests.forked import on_processes
from tests.policies.contract import values
from tests.policies.families import daily
from tests.policies.tiny_policies import pipeline_of, policy_of, prompts_of

SEED = 3
NEGATIVE, NONE = Prompt("a cat", negative="ugly"), Prompt("two dogs on grass")
LONG = "two blue squares on a very long table with many other things that lie on it and around it"
PADDED = {
    "CogView4Pipeline": ("a cat", "one cat"),
    "Kandinsky3Pipeline": ("a cat", "one cat"),
    "AudioLDM2Pipeline": ("a cat", "one cat"),
    "OmniGenPipeline": ("a cat", "one cat"),
    "QwenImage21Pipeline": ("a cat", "one cat"),
    "Kandinsky5T2IPipeline": trial.TEXTS,
    "Kandinsky5T2VPipeline": trial.TEXTS,
}
"""Pipelines whose padding reaches the denoiser, and prompts whose lengths differ by too little to show it."""


@cache
def _sdxl() -> DenoisingPolicy:
    """One for all tests, none of which trains it."""
    return policy_of("sdxl", guided=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(["sdxl", "flux", "qwen-image"], "flux"))
def test_rows_without_a_negative_prompt_equal_rows_alone(name: str) -> None:
    policy = _sdxl() if name == "sdxl" else policy_of(name, guided=True, without=("negative_prompt",))
    plan = Plan(keep_latents=True)
    both = policy.rollout([NEGATIVE, NONE], group_size=1, seed=SEED, plan=plan)
    for index, prompt in enumerate((NEGATIVE, NONE)):
        alone = policy.rollout([prompt], group_size=1, seed=SEED, plan=replace(plan, prompt_ids=(index,)))
        assert torch.equal(both.samples[index].latent, alone.samples[0].latent)  # pyrefly: ignore[bad-argument-type]
        assert torch.equal(both.old_logprob_BT[index], alone.old_logprob_BT[0])
    assert torch.equal(values(policy, both), both.old_logprob_BT)
    assert torch.equal(values(policy, both, [1])[1], both.old_logprob_BT[1])


@pytest.mark.nightly
def test_evaluations_keep_negative_prompts_to_their_rows() -> None:
    policy, greedy = _sdxl(), Plan(stochastic=(), keep_latents=True)
    both = policy.rollout([NEGATIVE, NONE], group_size=1, seed=SEED, plan=greedy)
    alone = policy.rollout([NONE], group_size=1, seed=SEED, plan=replace(greedy, prompt_ids=(1,)))
    assert torch.equal(both.samples[1].latent, alone.samples[0].latent)  # pyrefly: ignore[bad-argument-type]


@pytest.mark.nightly
def test_renoised_samples_keep_negative_prompts_to_their_rows() -> None:
    policy = _sdxl()
    sampled = policy.rollout([NEGATIVE, NONE], group_size=1, seed=SEED, plan=Plan(stochastic=(), keep_latents=True))
    samples = [OffPolicySample(sample=sample) for sample in sampled.samples]
    both, alone = policy.read(samples, seed=SEED), policy.read(samples[1:], seed=SEED)
    torch.testing.assert_close(both.old_logprob_BT[1], alone.old_logprob_BT[0], rtol=1e-6, atol=1e-6)


def test_examples_keep_negative_prompts_to_their_rows() -> None:
    policy = _sdxl()
    examples = [Example(prompt, image=Image.new("RGB", (16, 16), "red")) for prompt in (NEGATIVE, NONE)]
    with torch.no_grad():
        losses = [float(policy.supervised_loss([e], seeds=[n]).mean) for n, e in enumerate(examples)]
        assert float(policy.supervised_loss(examples, seeds=[0, 1]).mean) == pytest.approx(sum(losses) / 2, rel=1e-6)


def test_an_empty_negative_prompt_differs_from_a_missing_one() -> None:
    policy = _sdxl()
    empty, none = (
        policy.rollout([p], group_size=1, seed=SEED) for p in (Prompt("a cat", negative=""), Prompt("a cat"))
    )
    assert not torch.equal(empty.old_logprob_BT, none.old_logprob_BT)  # SDXL takes zeros in place of a missing one


@pytest.mark.nightly
def test_columns_without_a_value_use_the_pipeline_default() -> None:
    policy = policy_of("sdxl", guided=True, columns=("prompt_2",))
    rows = [Prompt("a cat", columns={"prompt_2": "in the snow"}), Prompt("two dogs", columns={"prompt_2": None})]
    both = policy.rollout(rows, group_size=1, seed=SEED)
    plain = _sdxl().rollout(rows[1:], group_size=1, seed=SEED, plan=Plan(prompt_ids=(1,)))
    assert torch.equal(both.old_logprob_BT[1], plain.old_logprob_BT[0])
    assert torch.equal(values(policy, both, [0])[0], both.old_logprob_BT[0])


def _padded(name: str) -> tuple[DenoisingPolicy, Prompt]:
    pipeline = assembly.build(name)
    (prompt, *_), call = trial.prompts_and_call(name, pipeline)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        settings = assembly.recipes()[name].get("settings") or {}
        return DenoisingPolicy(pipeline, {"call": call, "lora": {"rank": 2, "alpha": 2.0}, **settings}), prompt


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "CogView4Pipeline" else pytest.mark.nightly) for name in PADDED]
)
def test_a_longer_prompt_is_scored_like_a_row_alone(name: str) -> None:
    policy, prompt = _padded(name)
    policy.rollout([replace(prompt, text=text) for text in PADDED[name]], group_size=1, seed=1)
    later = policy.rollout([replace(prompt, text=text) for text in ("a cat", LONG)], group_size=1, seed=2)
    assert later.num_unbatched == 2
    for row in (0, 1):
        assert torch.equal(values(policy, later, [row])[row], later.old_logprob_BT[row])


@pytest.mark.nightly
@pytest.mark.parametrize("first", ["read", "supervised", "greedy"])
def test_padding_is_measured_outside_rollouts_too(first: str) -> None:
    policy, example = _padded("CogView4Pipeline")
    prompts = [replace(example, text=text) for text in ("a cat", LONG)]
    if first == "greedy":
        policy.rollout(prompts, group_size=1, seed=SEED, plan=Plan(stochastic=()))
    elif first == "read":
        sampled = [
            policy.rollout([p], group_size=1, seed=SEED, plan=Plan(keep_latents=True)).samples[0] for p in prompts
        ]
        samples = [OffPolicySample(sample=replace(sample, group=n)) for n, sample in enumerate(sampled)]
        both, alone = policy.read(samples, seed=SEED), policy.read(samples[:1], seed=SEED)
        assert torch.equal(both.old_logprob_BT[0], alone.old_logprob_BT[0])
    else:
        examples = [Example(prompt, image=Image.new("RGB", (16, 16), "red")) for prompt in prompts]
        with torch.no_grad():
            losses = [float(policy.supervised_loss([e], seeds=[n]).mean) for n, e in enumerate(examples)]
            assert float(policy.supervised_loss(examples, seeds=[0, 1]).mean) == pytest.approx(sum(losses) / 2)
    assert any("each runs alone" in choice for choice in policy.resolved_settings)


@pytest.mark.nightly
def test_prompt_overrides_measure_padding() -> None:
    policy, prompt = _padded("CogView4Pipeline")
    rollout = policy.rollout([replace(prompt, text="a cat")], group_size=1, seed=SEED)
    assert rollout.num_unbatched == 0
    both = policy.rollout([replace(prompt, text="a cat"), replace(prompt, text="one cat")], group_size=1, seed=SEED)
    view = policy.override_prompts(both, [replace(prompt, text=text) for text in ("a cat", LONG)])
    assert torch.equal(values(policy, view)[0], values(policy, view, [0])[0])


@pytest.mark.nightly
def test_masked_padding_keeps_rows_batched() -> None:
    policy = policy_of("sd3", guided=True)
    policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED)
    assert policy.rollout([*prompts_of("sd3"), Prompt(LONG)], group_size=1, seed=SEED).num_unbatched == 0


@pytest.mark.nightly
def test_bfloat16_rounding_keeps_rows_batched() -> None:
    pipeline = pipeline_of("qwen-image").to(torch.bfloat16)  # masked padding takes other kernels: 1.3e-2 on the CPU
    policy = policy_of("qwen-image", pipeline, guided=True)
    assert policy.rollout(prompts_of("qwen-image"), group_size=1, seed=SEED).num_unbatched == 0


def batch_dependence(folder: Path, names: Sequence[str]) -> list[float]:
    """Rows alone of each step, where the second process alone has measured that they depend on their batch."""
    policy = policy_of("sd3")
    if os.environ["RANK"] == "1":
        policy.disable_row_batching()
    run = {"steps": 2, "output": str(folder), "rollout": {"prompts_per_step": 2, "group_size": 2}}
    lines: list[float] = []

    def alone(samples: Sequence[Sample]) -> list[float]:
        lines.append(float(policy._batches.alone))
        return [0.0] * len(samples)

    Trainer(policy, {"brightness": Brightness(), "alone": alone}, prompts_of("sd3"), run).train()
    return lines


@pytest.mark.nightly
def test_batch_dependence_on_one_process_applies_to_all(tmp_path: Path) -> None:
    lines: Any = on_processes(tmp_path, [], module="tests.policies.test_denoising_rows", function="batch_dependence")
    assert lines[-2:] == [0.0, 1.0]  # the first process at steps 1 and 2
