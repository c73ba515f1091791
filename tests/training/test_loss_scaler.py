"""Losses in float16: scaled, so that gradients do not underflow, and again at half the scale where they overflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo import Trainer
from mmgrpo.differentiating import scaled
from mmgrpo.runs.checkpoint import weights_folder
from mmgrpo.training.loss_scaler import GROWTH_INTERVAL, LossScaler
from mmgrpo.types import Sample
from tests.policies import tiny_language, tiny_policies
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.test_trainer import lines

LORA = {"lora": {"rank": 2, "alpha": 2.0}}


def policy_in(dtype: torch.dtype, name: str, **settings: Any) -> Any:
    if name == "sd3":
        torch.manual_seed(0)
        return tiny_policies.policy_of("sd3", tiny_policies.pipeline_of("sd3").to(dtype), **settings)
    model, processor = tiny_language.build_llama()
    options = {"max_new_tokens": 7, "temperature": tiny_language.TEMPERATURE, "rescore": True, **LORA, **settings}
    torch.manual_seed(0)
    return tiny_language.LanguagePolicy(model.to(dtype), processor, options)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["llama", "sd3"])
def test_small_gradients_do_not_underflow(name: str) -> None:
    prompts = tiny_language.prompts_of("llama") if name == "llama" else tiny_policies.prompts_of("sd3")
    policy = policy_in(torch.float16, name)
    assert policy.is_float16
    move(policy.trainable, scale=0.1)
    rollout = policy.rollout(prompts, group_size=2, seed=1)
    gap = largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT)
    assert gap <= (0 if name == "llama" else 1e-3)
    expected = gradients(policy, rollout)
    small = 2.0**-30
    with scaled(small):
        underflowed = [gradient / small for gradient in gradients(policy, rollout)]
    with scaled(small * 2.0**30):
        restored = gradients(policy, rollout)
    assert relative_difference(restored, expected) == 0
    assert relative_difference(underflowed, expected) > 0.5


def vowels(samples: Sequence[Sample]) -> list[float]:
    return [sum((sample.text or "").count(letter) for letter in "aeiou") / 10 for sample in samples]


def trainer_of(
    output: Path, *, resume: Path | None = None, scale: float | None = None, reward: Any = vowels, **changes: Any
) -> Trainer:
    config: dict[str, Any] = {
        "output": str(output),
        "steps": 2,
        "rollout": {"prompts_per_step": 2, "group_size": 3},
        "update": {"optimizer": {"lr": 1e-2}},
        "checkpoint": {"every": 1},
        "runtime": {"device": "cpu"},
        **changes,
    }

    policy = policy_in(torch.float16, "llama")
    trainer = Trainer(policy, {"reward": reward}, tiny_language.prompts_of("llama"), config, resume=resume)
    scaler = trainer.optimizer._scaler
    assert scaler is not None
    if scale is not None:
        scaler.scale = scale
    trainer.train()
    return trainer


def weights_of(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def weights(trainer: Trainer) -> Tensor:
    return weights_of(trainer.parameters)


@pytest.mark.nightly
def test_overflow_repeats_the_update_at_half_the_scale(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "high", scale=2.0**30)
    assert [line["optimizer/skipped"] for line in lines(trainer)] == [0.0, 0.0]
    state = torch.load(weights_folder(trainer.folder.path).parent / "training.pt", weights_only=True)
    assert state["scaler"]["num_finite"] in (1, 2)
    assert 1 <= state["scaler"]["scale"] < 2.0**30
    normal = trainer_of(tmp_path / "normal")
    assert lines(normal)[0]["optimizer/grad_norm"] == pytest.approx(lines(trainer)[0]["optimizer/grad_norm"], rel=1e-2)


def test_step_of_equal_rewards_changes_no_weight(tmp_path: Path) -> None:
    before = weights_of(policy_in(torch.float16, "llama").trainable)
    trainer = trainer_of(tmp_path, steps=1, reward=lambda samples: [1.0] * len(samples))
    assert [line["optimizer/grad_norm"] for line in lines(trainer)] == [0.0]
    assert torch.equal(weights(trainer), before)


@pytest.mark.nightly
def test_float16_resumes_bitwise(tmp_path: Path) -> None:
    complete = trainer_of(tmp_path / "complete", scale=2.0**30)
    checkpoint = complete.folder.path / "checkpoints" / "step-000001"
    resumed = trainer_of(tmp_path / "resumed", resume=checkpoint)
    assert torch.equal(weights(resumed), weights(complete))
    assert resumed.optimizer._scaler == complete.optimizer._scaler


def test_scale_doubles_after_enough_updates_and_halves_down_to_one() -> None:
    scaler = LossScaler(scale=2.0)
    for _ in range(GROWTH_INTERVAL):
        scaler.count_finite()
    assert (scaler.scale, scaler.num_finite) == (4.0, 0)
    assert [scaler.lower() for _ in range(3)] == [True, True, False]
    assert scaler.scale == 1.0
    assert LossScaler.of(tiny_language.policy_of("llama")) is None
