"""Rewards that read latents: the decoder runs only for samples that someone looks at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.latent_decoding import decoders_of
from mmgrpo.rewards.groups.rarity import Rarity
from mmgrpo.rewards.images.pixels import Brightness

from mmgrpo.errors import PolicyError, RewardError
from mmgrpo.scoring import NamedReward, Scorer, with_reward_inputs
from mmgrpo.testing import sample_difference
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Plan, Prompt, Sample
from tests.policies.tiny_policies import policy_of, prompts_of

HERE = "python:tests.policies.test_latent_rewards"
SEED = 3


def held_out() -> list[Prompt]:
    """The prompts of an evaluation."""
    return [Prompt("a fox"), Prompt("blue")]


def latent_mean(samples: Sequence[Sample]) -> list[float]:
    """The mean of each latent."""
    assert all(sample.image is None and sample.video is None for sample in samples)
    return [float(sample.latent.float().mean()) for sample in samples if sample.latent is not None]


latent_mean.reads_latents = True  # pyrefly: ignore[missing-attribute]


@contextmanager
def decoded_rows(policy: DenoisingPolicy) -> Iterator[list[int]]:
    """The rows of each call of a decoder."""
    rows: list[int] = []
    decoders: list[Any] = [decoder.get_submodule("decoder") for decoder in decoders_of(policy.pipeline)]
    handles = [d.register_forward_hook(lambda module, args, output: rows.append(len(output))) for d in decoders]
    try:
        yield rows
    finally:
        for handle in handles:
            handle.remove()


def _sizes(name: str) -> dict[str, int]:
    return {"width": 32, "height": 16} if name == "flux" else {}


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize(
    "name", ["sd3", "wan", "flux", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("sdxl", "qwen-image"))]
)
@pytest.mark.parametrize("stochastic", [(1,), ()], ids=["sampled", "evaluated"])
def test_undecoded_samples_decode_later_to_the_same_pixels(name: str, stochastic: tuple[int, ...]) -> None:
    policy = policy_of(name, evaluation_call=_sizes(name))  # another size than in training
    plain = policy.rollout(prompts_of(name), group_size=2, seed=SEED, plan=Plan(stochastic=stochastic))
    plan = Plan(stochastic=stochastic, keep_latents=True, decode=False)
    with decoded_rows(policy) as rows:
        rollout = policy.rollout(prompts_of(name), group_size=2, seed=SEED, plan=plan)
        assert rows == []
        previews = [policy.preview(sample) for sample in rollout.samples[:2]]
        assert len(rows) >= 2
    assert torch.equal(rollout.old_logprob_BT, plain.old_logprob_BT)
    assert sample_difference(previews, plain.samples[:2]) <= 1
    assert all(sample.image is None and sample.video is None for sample in rollout.samples)
    assert [policy.preview(sample) for sample in plain.samples] == list(plain.samples)


@pytest.mark.nightly
def test_a_run_with_latent_rewards_decodes_saved_samples_alone(tmp_path: Path) -> None:
    policy = policy_of("sd3")
    run = {"steps": 2, "output": str(tmp_path), "rollout": {"prompts_per_step": 2, "group_size": 2}}
    run |= {"evaluation": {"every": 2, "saved_samples": 1, "prompts": {"source": f"{HERE}:held_out"}}}
    trainer = Trainer(policy, [latent_mean], prompts_of("sd3"), run)
    with decoded_rows(policy) as rows:
        trainer.train()
    assert sum(rows) == 2 + 2  # two probe the batch size, and one of each evaluation is saved
    assert sorted(path.name for path in trainer.folder.path.glob("samples/*/*.png")) == ["0000.png"] * 2
    lines = [json.loads(line) for line in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["reward/latent_mean/mean"] != 0.0 for line in lines)


def test_plans_include_the_inputs_of_all_rewards() -> None:
    latent, pixels = NamedReward("latent", latent_mean), NamedReward("pixels", Brightness())
    wrapper = NamedReward("rarity", Rarity(latent_mean, marks=["<A>"]))
    plans = [
        with_reward_inputs(Plan(), rewards)
        for rewards in ([latent], [pixels], [latent, pixels], [wrapper], [NamedReward("bound", partial(latent_mean))])
    ]
    assert [(plan.keep_latents, plan.decode) for plan in plans] == [
        (True, False),
        (False, True),
        (True, True),
        (True, True),  # the wrapper may read more
        (True, False),
    ]


def test_a_latent_reward_of_samples_without_latents_is_an_error() -> None:
    scorer = Scorer([NamedReward("latent", latent_mean)], max_failure_frac=1.0)
    with pytest.raises(RewardError, match=r"'latent' reads Sample\.latent, which the samples of this policy do not"):
        scorer([Sample(Prompt("x"), 0, 0, text="y")])


def test_a_reward_of_values_that_no_sample_has_is_an_error() -> None:
    def certain(samples: Sequence[Sample]) -> list[float]:
        return [sample.values["certainty"] for sample in samples]

    scorer = Scorer([NamedReward("certain", certain, needs_values=("certainty",))], max_failure_frac=1.0)
    samples = policy_of("sd3").rollout(prompts_of("sd3")[:1], group_size=2, seed=0).samples
    with pytest.raises(RewardError, match=r"'certain' reads Sample\.values of certainty, which the samples of this"):
        scorer(samples)
    with_values = [replace(sample, values={"certainty": 0.5}) for sample in samples]
    assert scorer(with_values).value_BR.flatten().tolist() == [0.5, 0.5]


def test_samples_of_two_final_states_are_not_left_undecoded() -> None:
    with pytest.raises(PolicyError, match="decodes 2 final states per sample"):
        policy_of("sd3")._sampler_loop._require_single_state([torch.zeros(1), torch.zeros(1)])  # as of audio with video
