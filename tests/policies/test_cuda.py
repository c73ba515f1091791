"""The laws of tiny policies on a GPU, in float32 and bfloat16, and steps of the trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy

from mmgrpo.testing import Subject, check_gradients, check_on_policy_gap, check_rows_and_batches, check_seeds
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Plan
from tests.policies import tiny_language, tiny_policies
from tests.policies.tiny_language import TEMPERATURE
from tests.tiny.language_models import make

pytestmark = pytest.mark.gpu

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
ROUNDING = {FLOAT32: 1e-4, BFLOAT16: 0.1}
GAP = {FLOAT32: 1e-5, BFLOAT16: 0.05}
"""Of a language policy, which decodes by other kernels than it is scored with; of a denoiser it is 0."""


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def denoiser(name: str, dtype: torch.dtype, batch: int) -> DenoisingPolicy:
    return tiny_policies.policy_of(name, tiny_policies.pipeline_of(name).to("cuda", dtype), batch=batch)


def language(name: str, dtype: torch.dtype, batch: int) -> LanguagePolicy:
    model, processor = make(name)
    rows = {"update_tokens": 1} if batch == 1 else {}
    torch.manual_seed(0)
    return LanguagePolicy(
        model.to("cuda", dtype),  # pyrefly: ignore[bad-argument-type]
        processor,
        {
            "max_new_tokens": 7,
            "temperature": TEMPERATURE,
            "rollout_batch": batch,
            "lora": {"rank": 2, "alpha": 2.0},
            **rows,
        },
    )


def denoising_subject(name: str, dtype: torch.dtype) -> Subject:
    return Subject(
        make=lambda batch: denoiser(name, dtype, batch),
        parameters=tiny_policies.parameters_of,
        prompts=tiny_policies.prompts_of(name),
        rounding=ROUNDING[dtype],
        min_trained_frac=0.9,
    )


def language_subject(name: str, dtype: torch.dtype) -> Subject:
    return Subject(
        make=lambda batch: language(name, dtype, batch),
        parameters=tiny_language.parameters_of,
        prompts=tiny_language.prompts_of(name),
        gap=GAP[dtype],
        rounding=ROUNDING[dtype],
        min_trained_frac=0.6,
    )


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["sd3", "flux", "wan", "sd15"])
def test_denoiser_ratio_is_one(name: str, dtype: torch.dtype) -> None:
    subject = denoising_subject(name, dtype)
    check_on_policy_gap(subject)
    check_on_policy_gap(subject, Plan(stochastic=(1, 2), same_initial_noise=True))
    check_gradients(subject)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl"])
def test_language_ratio_is_one_up_to_rounding(name: str, dtype: torch.dtype) -> None:
    subject = language_subject(name, dtype)
    check_on_policy_gap(subject)
    check_gradients(subject)


@pytest.mark.parametrize("name", ["sd3", "wan"])
def test_denoiser_batches_change_rounding_alone(name: str) -> None:
    subject = denoising_subject(name, FLOAT32)
    check_rows_and_batches(subject)
    check_seeds(subject)


@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl"])
def test_language_batches_change_rounding_alone(name: str) -> None:
    check_rows_and_batches(language_subject(name, FLOAT32))


def test_rows_of_both_devices_agree() -> None:
    """Noise is sampled on the CPU, so that a seed gives one image on every device."""
    prompts = tiny_policies.prompts_of("sd3")
    policies = tiny_policies.policy_of("sd3"), denoiser("sd3", FLOAT32, 8)
    on_cpu, on_gpu = (policy.rollout(prompts, group_size=2, seed=0) for policy in policies)
    assert torch.allclose(on_cpu.old_logprob_BT, on_gpu.old_logprob_BT, atol=1e-3)


@pytest.mark.parametrize(("kind", "gap"), [("denoising", 1e-6), ("language", 1e-4)])
def test_trainer_steps(kind: str, gap: float, tmp_path: Path) -> None:
    policy: Any = denoiser("sd3", FLOAT32, 8) if kind == "denoising" else language("llama", FLOAT32, 8)
    module = tiny_policies if kind == "denoising" else tiny_language
    config = {
        "output": str(tmp_path / "run"),
        "steps": 2,
        "rollout": {"prompts_per_step": 2, "group_size": 2},
        "update": {"optimizer": {"lr": 1e-2}},
        "runtime": {"device": "cuda"},
    }

    def alternating(samples: Any) -> list[float]:
        return [float(row % 2) for row in range(len(samples))]

    before = [parameter.detach().clone() for parameter in policy.trainable]
    prompts = module.prompts_of("sd3" if kind == "denoising" else "llama")
    run = Trainer(policy, {"alternating": alternating}, prompts, config).train()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["policy/on_policy_gap"] <= gap for line in lines)
    assert all(parameter.is_cuda for parameter in policy.trainable)
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.trainable, strict=True))
