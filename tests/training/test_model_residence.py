"""Models of rewards leave the accelerator before rollouts and updates, and return when a reward is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from mmgrpo.rewards.models.checkpoints import freeze
from torch import nn

from mmgrpo import Trainer
from mmgrpo.system.model_residence import offload_models, register_model, restore_models
from mmgrpo.types import Sample
from tests.policies import tiny_language


class Residence(nn.Linear):
    """A model of a reward, with the devices that it was moved to: this machine has one."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.device = "accelerator"

    def to(self, device: torch.device) -> Residence:
        self.device = "host" if device.type == "cpu" else "accelerator"
        return self


@pytest.mark.parametrize("offloads", [True, False])
def test_model_is_on_the_accelerator_in_calls_alone(offloads: bool, tmp_path: Path) -> None:
    model, events = Residence(), list[str]()
    register_model(model, torch.device("cuda"))

    def scored(samples: Sequence[Sample]) -> list[float]:
        events.append(f"reward {model.device}")
        return [float(sample.member) for sample in samples]

    policy = tiny_language.policy_of("llama", lora={"rank": 2, "alpha": 2.0})
    policy.model.register_forward_pre_hook(
        lambda *_: events.append(f"{'update' if torch.is_grad_enabled() else 'rollout'} {model.device}")
    )
    trainer = Trainer(
        policy,
        {"member": scored},
        tiny_language.prompts_of("llama"),
        {
            "output": str(tmp_path),
            "steps": 2,
            "rollout": {"prompts_per_step": 2, "group_size": 2},
            "runtime": {"device": "cpu", "offload_rewards": offloads},
        },
    )
    events.clear()
    trainer.train()
    place = "host" if offloads else "accelerator"
    in_steps = {event for event in events if not event.startswith("reward")}
    assert "reward accelerator" in events
    assert "reward host" not in events
    assert f"update {place}" in in_steps
    assert all(event.endswith(place) for event in in_steps)


def test_offloaded_models_return_once() -> None:
    model = Residence()
    register_model(model, torch.device("cuda", 1))
    offload_models()
    assert model.device == "host"
    restore_models()
    assert model.device == "accelerator"


def test_models_of_the_cpu_stay() -> None:
    model = Residence()
    register_model(model, torch.device("cpu"))
    offload_models()
    restore_models()
    assert model.device == "accelerator"  # never moved
    assert freeze(nn.Linear(2, 1), torch.device("cpu")).weight.requires_grad is False
