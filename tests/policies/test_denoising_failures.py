"""Failed samples are counted, logged once, and never scored."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from diffusers import StableDiffusionPipeline
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow
from mmgrpo.policies.diffusion.failures import DECODED, REPLACED, STATES, failures_of, finite_rows, finite_states
from mmgrpo.policies.diffusion.outputs import samples_of
from mmgrpo.rewards.images.pixels import Brightness
from PIL import Image
from transformers import CLIPConfig, CLIPImageProcessor

from mmgrpo.distributed.job import Job
from mmgrpo.errors import PolicyError
from mmgrpo.runs.prompt_samples import write_prompt_samples
from mmgrpo.scoring import NamedReward, Scorer
from mmgrpo.training.evaluation import sample_prompt
from mmgrpo.training.held_out_sampling import HeldOutSampler
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Plan, Prompt, Sample
from tests.breadth import assembly
from tests.breadth.trial import prompts_and_call
from tests.policies.contract import gradients, values
from tests.policies.tiny_policies import pipeline_of, policy_of, prompts_of

SEED = 3
HERE = "python:tests.policies.test_denoising_failures"
GREEDY = Plan(stochastic=())
TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast")


def held_out() -> list[Prompt]:
    """The prompts of an evaluation."""
    return [Prompt("a fox"), Prompt("blue")]


def _reward(samples: Sequence[Sample]) -> list[float]:
    assert all(sample.failure is None for sample in samples)
    return [float(np.asarray(sample.image).mean()) for sample in samples]


REWARD = NamedReward("brightness", _reward)


def _not_a_number(name: str) -> Any:
    pipeline = pipeline_of(name)
    with torch.no_grad():
        for parameter in pipeline.vae.decoder.parameters():
            parameter.fill_(float("nan"))
    return pipeline


def _censored() -> StableDiffusionPipeline:
    """With a safety checker that finds every image unsafe."""
    parts = pipeline_of("sd15").components
    vision = {**TOWER, "image_size": 16, "patch_size": 8}
    checker = StableDiffusionSafetyChecker(CLIPConfig(text_config=TOWER, vision_config=vision, projection_dim=16))
    with torch.no_grad():
        checker.concept_embeds.normal_()
        checker.special_care_embeds.normal_()
        checker.concept_embeds_weights.fill_(-1.0)
        checker.special_care_embeds_weights.fill_(1.0)
    processor = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=16)
    return StableDiffusionPipeline(**{**parts, "safety_checker": checker, "feature_extractor": processor})  # pyrefly: ignore[bad-argument-type]


@cache
def _half_broken() -> DenoisingPolicy:
    """Its latents are no numbers where the prompt has the word "fox"."""
    pipeline = pipeline_of("sd15")
    embedding, tokenizer = pipeline.text_encoder.get_input_embeddings(), pipeline.tokenizer
    plain, fox = (tokenizer(text).input_ids for text in ("a red", "a red fox"))
    with torch.no_grad():
        embedding.weight[sorted(set(fox) - set(plain))] = float("nan")
    return policy_of("sd15", pipeline)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("build", "reason", "fix"),
    [
        (lambda: _not_a_number("sd15"), DECODED, "vae: float32"),
        pytest.param(lambda: _not_a_number("wan"), DECODED, "vae: float32", marks=pytest.mark.nightly),
        (_censored, REPLACED, "safety_checker: null"),
    ],
)
def test_failed_samples_warn_once_and_have_no_reward(
    build: Any, reason: str, fix: str, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = build()
    policy = policy_of("wan" if "Wan" in type(pipeline).__name__ else "sd15", pipeline)
    with caplog.at_level(logging.WARNING, logger="mmgrpo"):
        rollouts = [policy.rollout([Prompt("a cat")], group_size=2, seed=seed, plan=plan)
                    for seed in (0, 1) for plan in (Plan(), GREEDY)]  # fmt: skip
    for rollout in rollouts:
        assert [sample.failure for sample in rollout.samples] == [reason] * 2
        scores = Scorer([REWARD])(rollout.samples)
        assert not scores.valid_BR.any()
        assert not scores.failures.get("brightness")
    (line,) = [record.getMessage() for record in caplog.records if "have no reward" in record.getMessage()]
    assert fix in line
    assert reason in line


@pytest.mark.nightly
def test_non_finite_latents_fail_only_their_row() -> None:
    policy, prompts = _half_broken(), [Prompt("a red fox"), Prompt("two blue squares")]
    rollout = policy.rollout(prompts, group_size=2, seed=SEED)
    assert [sample.failure for sample in rollout.samples] == [STATES, STATES, None, None]
    assert rollout.mask_BT.any(1).tolist() == [False, False, True, True]
    torch.testing.assert_close(values(policy, rollout), rollout.old_logprob_BT, rtol=1e-6, atol=1e-6)
    assert all(torch.isfinite(gradient).all() for gradient in gradients(policy, rollout))
    scores = Scorer([REWARD])(rollout.samples)
    assert scores.valid_BR[:, 0].tolist() == [False, False, True, True]
    assert scores.value_BR[2, 0] == _reward(rollout.samples[2:3])[0]
    greedy = policy.rollout(prompts, group_size=1, seed=SEED, plan=GREEDY)
    assert [sample.failure for sample in greedy.samples] == [STATES, None]


def test_each_final_state_of_a_row_must_be_finite() -> None:
    """Pipelines with copies of their scheduler have several, such as one per frame."""
    finite, second = torch.zeros(2, 3), torch.tensor([[0.0], [float("inf")]])
    assert finite_states([finite, second], 2) == [True, False]
    assert finite_states([finite, torch.zeros(3)], 2) == [True, True]
    assert finite_states([torch.zeros(3)], 2) is finite_states([], 2) is None


def test_samples_of_copied_schedulers_have_no_latent() -> None:
    """No single state of such a pipeline is the latent that it decodes."""
    name = "SkyReelsV2DiffusionForcingImageToVideoPipeline"
    pipeline = assembly.build(name)
    prompts, call = prompts_and_call(name, pipeline)
    policy = DenoisingPolicy(pipeline, {"call": call, "lora": {"rank": 2, "alpha": 2.0}})
    rollout = policy.rollout(prompts[:1], group_size=1, seed=SEED, plan=Plan(keep_latents=True))
    assert [(sample.latent, sample.failure) for sample in rollout.samples] == [(None, None)]
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)


def test_a_pipeline_without_finite_latents_raises() -> None:
    pipeline = pipeline_of("sd15")
    with torch.no_grad():
        pipeline.unet.conv_in.weight.fill_(float("nan"))
    with pytest.raises(PolicyError, match=r"has finite latents: .*policy\.dtype"):
        policy_of("sd15", pipeline).rollout([Prompt("a cat")], group_size=2, seed=SEED)


@pytest.mark.nightly
def test_a_run_counts_failed_samples_and_trains_on_the_others(tmp_path: Path) -> None:
    run = {"steps": 1, "output": str(tmp_path), "rollout": {"prompts_per_step": 2, "group_size": 2}}
    run |= {"evaluation": {"every": 1, "prompts": {"source": f"{HERE}:held_out"}}}
    rows = [Prompt("a red fox"), Prompt("two blue squares")]
    trainer = Trainer(_half_broken(), [Brightness()], rows, run)
    before = [parameter.detach().clone() for parameter in trainer.policy.trainable]
    trainer.train()
    (line,) = [json.loads(line) for line in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]
    evaluated = [json.loads(line) for line in (trainer.folder.path / "evaluation.jsonl").read_text().splitlines()]
    assert line["rollout/failed_samples"] == 2
    assert [each["eval/failed_samples"] for each in evaluated] == [1.0] * len(evaluated) != []
    assert all(torch.isfinite(parameter).all() for parameter in trainer.policy.trainable)
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.policy.trainable, strict=True))


@pytest.mark.nightly
def test_previews_state_the_failure_reason(tmp_path: Path) -> None:
    policy, sampler = policy_of("sd15", _not_a_number("sd15")), HeldOutSampler(job=Job(Accelerator(cpu=True)))
    sampled = sample_prompt(policy, Prompt("a cat"), [REWARD], sampler, count=2, seed=0, noise=False)
    assert sampled.unscored == {"brightness": DECODED}
    lines = (write_prompt_samples(sampled, tmp_path / "preview") / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["failure"] for line in lines] == [DECODED] * 2


def test_non_finite_audio_and_arrays_are_failures() -> None:
    rows = [DenoisingRow(prompt=Prompt("rain"), seed=0, group=n, member=0) for n in range(2)]
    sounds = np.zeros((2, 8), dtype=np.float32)
    sounds[1, 3] = np.nan
    for rate in (8, None):  # a sound, or an array of unknown rate
        samples = samples_of(rows, {"audios": sounds}, rate=rate)
        assert [sample.failure for sample in samples] == [None, DECODED]
        assert (samples[1].audio is None) is (rate is None)


@pytest.mark.parametrize(
    ("decoded", "expected"),
    [
        ([[True, False, True, True]], [False, True]),  # two frames a row
        ([[True, True], [True, False]], [True, False]),  # chunks of frames, a row each
        ([[True], [True], [False], [True]], [True, False]),  # row after row
        ([[True], [False], [True]], [False, False]),  # of no row in particular
        ([], [True, True]),
    ],
)
def test_decoder_entries_map_to_rows(decoded: list[list[bool]], expected: list[bool]) -> None:
    assert finite_rows([torch.tensor(entries) for entries in decoded], 2) == expected


def test_safety_checker_flags_are_read_from_any_output() -> None:
    image = Image.new("RGB", (4, 4))
    for output in (
        {"images": [image] * 2, "nsfw_content_detected": [False, True]},
        {"images": [image] * 2, "nsfw_detected": None, "watermark_detected": [0, 1]},
        ([image] * 2, [False, True]),
    ):
        assert failures_of(output, 2, finite_states=None, decoded=[]) == [None, REPLACED]
    assert failures_of({"images": [image], "nsfw_content_detected": None}, 1, finite_states=None, decoded=[]) == [None]


@pytest.mark.nightly
def test_a_working_pipeline_has_no_failures() -> None:
    for plan in (Plan(), GREEDY):
        samples = policy_of("sd15").rollout(prompts_of("sd15"), group_size=1, seed=SEED, plan=plan).samples
        assert [sample.failure for sample in samples] == [None, None]
