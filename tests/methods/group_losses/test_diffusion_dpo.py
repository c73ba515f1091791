"""Diffusion-DPO: the published formula on random errors, and a run on stored pairs of images.

Axes: B images, T noise levels.
"""

from __future__ import annotations

import json
from math import log
from pathlib import Path

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from PIL import Image
from torch import Tensor

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import load_config
from mmgrpo.errors import DataError
from mmgrpo.explain.forward_counts import StepForwards, forwards_per_sample
from mmgrpo.maths.strategies import Answer, Request
from mmgrpo.methods.group_losses.dpo import chosen
from mmgrpo.training.build import build_rewards
from mmgrpo.training.request_sampling import off_policy_samples_of
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import OffPolicySample, Prompt, Sample
from mmgrpo.values import Value, of_view
from tests.configs.method_steps import Step, config_of, loss_and_gradient
from tests.policies.readings import value_of
from tests.policies.tiny_policies import pipeline_of

SMALL = {"steps": 3, "rollout.prompts_per_step": 2, "update.optimizer.lr": 1e-3}
CALL = {"height": 16, "width": 16, "num_inference_steps": 2, "guidance_scale": 1.0, "max_sequence_length": 16}
DARK, BRIGHT = (Image.new("RGB", (16, 16), color) for color in ((20, 20, 40), (230, 220, 200)))


def published_loss(error_B: Tensor, reference_B: Tensor, *, beta: float) -> Tensor:
    """Sec. 4, eq. 14 as the code has it: the better images are the first half of the rows."""
    better_B, worse_B = error_B.chunk(2)
    better_reference_B, worse_reference_B = reference_B.chunk(2)
    inside_B = -0.5 * beta * ((better_B - worse_B) - (better_reference_B - worse_reference_B))
    return -torch.nn.functional.logsigmoid(inside_B).mean()


def test_value_and_gradient_are_the_published_ones() -> None:
    random = torch.Generator().manual_seed(0)
    error_B = 0.1 + 1e-3 * torch.rand(6, generator=random, dtype=torch.float64)
    reference_B = 0.1 + 1e-3 * torch.rand(6, generator=random, dtype=torch.float64)
    theirs_B = error_B.clone().requires_grad_()
    expected = published_loss(theirs_B, reference_B, beta=5000)
    expected.backward()
    step = Step(
        reward=(1.0,) * 3 + (0.0,) * 3,
        groups=(0, 1, 2) * 2,
        old_logprob=(-error_B[:, None]).tolist(),
        values={of_view("reference"): (-reference_B[:, None]).tolist()},
    )
    result = loss_and_gradient(config_of("diffusion-dpo"), step)
    assert theirs_B.grad is not None
    torch.testing.assert_close(result.value, expected.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(result.gradient_BT[:, 0], -theirs_B.grad, rtol=1e-6, atol=1e-9)


def pairs() -> list[Prompt]:
    return [
        Prompt("a dark room", columns={"chosen": DARK, "rejected": BRIGHT}),
        Prompt("a bright room", columns={"chosen": BRIGHT, "rejected": DARK}),
    ]


def policy_of_method() -> DenoisingPolicy:
    config = load_config(
        "methods/diffusion-dpo", {"policy.name": "denoising", "policy.model": "none", "policy.call": CALL}
    )
    assert config.policy is not None
    return DenoisingPolicy(pipeline_of("sd3"), config.policy.settings)


def test_reward_is_the_label_of_the_pair() -> None:
    prompt = pairs()[0]
    images = (DARK.copy(), BRIGHT.copy(), Image.new("RGB", (16, 16)))
    assert chosen([Sample(prompt, 0, member, image=image) for member, image in enumerate(images)]) == [1.0, 0.0, None]


def test_images_of_a_pair_share_level_and_noise() -> None:
    """The same image twice has the same error twice."""
    prompt = pairs()[0]
    policy = policy_of_method()
    samples = [
        OffPolicySample(sample=Sample(prompt, group, member, image=DARK)) for group in (0, 1) for member in (0, 1)
    ]
    error_BT = value_of(policy, policy.read(samples, seed=3), Value("error"))
    assert error_BT.shape == (4, 1)
    torch.testing.assert_close(error_BT[0], error_BT[1])
    torch.testing.assert_close(error_BT[2], error_BT[3])
    assert not torch.allclose(error_BT[0], error_BT[2])


@pytest.mark.nightly
def test_run_raises_chosen_above_rejected(tmp_path: Path) -> None:
    """At first all errors are those of the reference: a loss of log 2. No reward is stated, and nothing is sampled."""
    config = load_config("methods/diffusion-dpo", {**SMALL, "output": str(tmp_path), "policy": None})
    trainer = Trainer(policy_of_method(), build_rewards(config.rewards), pairs(), config)
    lines = [json.loads(line) for line in (trainer.train() / "metrics.jsonl").read_text().splitlines()]
    losses = [line["policy/loss"] for line in lines]
    assert losses[0] == pytest.approx(log(2), abs=1e-6)
    assert losses[2] < losses[0] - 0.01
    assert [line["reward/chosen/mean"] for line in lines] == [0.5] * 3
    explained = forwards_per_sample(Algorithm.of(config), 2, 1)
    assert explained.rollout == StepForwards(0, 1)
    counts = [explained.rollout, explained.values, explained.views, explained.update]
    assert lines[0]["count/forwards_per_sample"] == sum(count.at(2) for count in counts)


def test_answers_are_texts_unless_the_strategy_says_media() -> None:
    """For any policy, so that masked language models read texts."""
    prompt = Prompt("a room", columns={"chosen": "dark.png", "image": DARK})
    answers = (Answer("chosen"), Answer("image", is_media=True))
    request = Request(prompt=0, members=(0, 1), off_policy_rows=answers)
    text, image = (item.sample for item in off_policy_samples_of([request], lambda _: prompt))
    assert (text.text, text.image) == ("dark.png", None)
    assert (image.text, image.image) == (None, DARK)


def test_row_without_an_image_is_an_error(tmp_path: Path) -> None:
    small = {**SMALL, "rollout.prompts_per_step": 3}
    config = load_config("methods/diffusion-dpo", {**small, "output": str(tmp_path), "policy": None})
    prompts = [*pairs(), Prompt("a gray room", columns={"chosen": DARK, "rejected": None})]
    trainer = Trainer(policy_of_method(), build_rewards(config.rewards), prompts, config)
    with pytest.raises(DataError, match="column 'rejected' must have an image, or the frames of a video as an answer"):
        trainer.train()
