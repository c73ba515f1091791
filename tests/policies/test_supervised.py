"""The warm-up's loss through the pipeline is the textbook's, computed by hand on the bare network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from mmgrpo.policies.diffusion import DenoisingPolicy
from PIL import Image
from torch.nn.functional import mse_loss

from mmgrpo.errors import DataError, PolicyError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.types import Example, Prompt
from tests.tiny.pipelines import PIPELINES

SEEDS = [3, 4]
TEXTS = ["a red cat", "two dogs"]


def picture(seed: int, size: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (size, size, 3), dtype=np.uint8))


def make(name: str, **settings: Any) -> tuple[DenoisingPolicy, list[Example]]:
    tiny = PIPELINES[name]
    policy = DenoisingPolicy(tiny.build(), {"call": {**tiny.call, **tiny.no_cfg}, **settings})
    size = tiny.call["height"]
    return policy, [Example(Prompt(text), image=picture(i, size)) for i, text in enumerate(TEXTS)]


def draws(shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
    """Uniform level and noise of each row, by the documented order of draws."""
    generators = [torch.Generator().manual_seed(seed) for seed in SEEDS]
    level = torch.cat([torch.rand(1, generator=generator) for generator in generators])
    return level, torch.stack([torch.randn(shape, generator=generator) for generator in generators])


def per_row(value_N: torch.Tensor) -> torch.Tensor:
    return value_N[:, None, None, None]


def latents(pipeline: Any, examples: list[Example]) -> torch.Tensor:
    pixels = torch.cat([pipeline.image_processor.preprocess(example.image) for example in examples])
    vae = pipeline.vae
    with torch.no_grad():
        mode = vae.encode(pixels).latent_dist.mode()
    return (mode - (vae.config.get("shift_factor") or 0.0)) * vae.config.scaling_factor


def test_flow_matching_loss_on_sd3() -> None:
    policy, examples = make("sd3")
    pipeline, call = policy.pipeline, policy.settings.call
    clean = latents(pipeline, examples)
    level, noise = draws(clean.shape[1:])
    sigma = level[:, None, None, None]
    with torch.no_grad():
        embeds, _, pooled, _ = pipeline.encode_prompt(
            prompt=TEXTS, prompt_2=None, prompt_3=None, do_classifier_free_guidance=False,
            max_sequence_length=call["max_sequence_length"],
        )  # fmt: skip
        velocity = pipeline.transformer(
            hidden_states=(1 - sigma) * clean + sigma * noise,
            timestep=level * 1000,
            encoder_hidden_states=embeds,
            pooled_projections=pooled,
            return_dict=False,
        )[0]
    expected = mse_loss(velocity, noise - clean)
    loss = policy.supervised_loss(examples, seeds=SEEDS).mean
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-5)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in policy.trainable if p.grad is not None)
    assert sum(float(p.grad.abs().sum()) for p in policy.trainable if p.grad is not None) > 0


def test_inverted_flow_trains_the_velocity_from_noise_to_data() -> None:
    tiny = PIPELINES["sd3"]
    pipeline = tiny.build()
    pipeline.scheduler = FlowMatchEulerDiscreteScheduler.from_config(pipeline.scheduler.config, invert_sigmas=True)
    policy = DenoisingPolicy(pipeline, {"call": {**tiny.call, **tiny.no_cfg}, "sampler": "native"})
    _, examples = make("sd3")
    clean = latents(pipeline, examples)
    level, noise = draws(clean.shape[1:])
    share = level[:, None, None, None]  # of the data: timestep 0 is noise
    with torch.no_grad():
        embeds, _, pooled, _ = pipeline.encode_prompt(
            prompt=TEXTS, prompt_2=None, prompt_3=None, do_classifier_free_guidance=False,
            max_sequence_length=policy.settings.call["max_sequence_length"],
        )  # fmt: skip
        velocity = pipeline.transformer(
            hidden_states=share * clean + (1 - share) * noise,
            timestep=level * 1000,
            encoder_hidden_states=embeds,
            pooled_projections=pooled,
            return_dict=False,
        )[0]
        loss = policy.supervised_loss(examples, seeds=SEEDS).mean
    assert float(loss) == pytest.approx(float(mse_loss(velocity, clean - noise)), rel=1e-5)


def test_denoising_score_matching_loss_on_sd15() -> None:
    policy, examples = make("sd15")
    pipeline = policy.pipeline
    clean = latents(pipeline, examples)
    level, noise = draws(clean.shape[1:])
    timestep = (level * 1000).long()
    alpha_cumprod = pipeline.scheduler.alphas_cumprod[timestep][:, None, None, None]
    with torch.no_grad():
        embeds, _ = pipeline.encode_prompt(TEXTS, "cpu", 1, False)
        predicted = pipeline.unet(
            alpha_cumprod.sqrt() * clean + (1 - alpha_cumprod).sqrt() * noise,
            timestep,
            encoder_hidden_states=embeds,
            return_dict=False,
        )[0]
    expected = mse_loss(predicted, noise)
    assert float(policy.supervised_loss(examples, seeds=SEEDS).mean.detach()) == pytest.approx(
        float(expected), rel=1e-5
    )


def test_rows_do_not_depend_on_their_batch() -> None:
    policy, examples = make("sd3")
    with torch.no_grad():
        together = policy.supervised_loss(examples, seeds=SEEDS).mean
        alone = [policy.supervised_loss([e], seeds=[s]).mean for e, s in zip(examples, SEEDS, strict=True)]
    assert float(together) == pytest.approx(float(sum(alone)) / 2, rel=1e-5)


CORRECTION: dict[str, Any] = {"points": 2, "weight": 0.5, "num_steps": 4, "call": {"guidance_scale": 4.5}}


@pytest.mark.nightly
def test_self_correction_trains_the_way_back_on_sd3() -> None:
    """One guided step of the bare network, noised again, and the example itself: (e + 0.5 (e_1 + e_2)) / 2."""
    policy, examples = make("sd3", supervision={"shift": 3.0, "correction": CORRECTION})
    pipeline, call = policy.pipeline, policy.settings.call
    clean = latents(pipeline, examples)
    uniform, noise = draws(clean.shape[1:])
    sigma = 3 * uniform / (1 + 2 * uniform)
    after = 3 * (uniform - 0.25).clamp(min=1e-3) / (1 + 2 * (uniform - 0.25).clamp(min=1e-3))
    noisy = (1 - per_row(sigma)) * clean + per_row(sigma) * noise
    embeds, bare, pooled, bare_pooled = pipeline.encode_prompt(
        prompt=TEXTS, prompt_2=None, prompt_3=None, max_sequence_length=call["max_sequence_length"]
    )

    def velocity(state: torch.Tensor, level: torch.Tensor, embeds: torch.Tensor, pooled: torch.Tensor) -> Any:
        return pipeline.transformer(
            hidden_states=state,
            timestep=level * 1000,
            encoder_hidden_states=embeds,
            pooled_projections=pooled,
            return_dict=False,
        )[0]

    with torch.no_grad():
        conditional = velocity(noisy, sigma, embeds, pooled)
        without = velocity(noisy, sigma, bare, bare_pooled)
        stepped = noisy + per_row(after - sigma) * (without + 4.5 * (conditional - without))
        total = mse_loss(conditional, noise - clean)
        for point in range(2):
            share = torch.cat(
                [torch.rand(1, generator=torch.Generator().manual_seed(derive_seed(seed, point))) for seed in SEEDS]
            )
            level = after + share * (1 - after)
            state = (1 - per_row(share)) * stepped + per_row(share) * noise
            corrected = (state - clean) / per_row(level)
            total = total + 0.5 * mse_loss(velocity(state, level, embeds, pooled), corrected)
    loss = policy.supervised_loss(examples, seeds=SEEDS).mean
    assert float(loss.detach()) == pytest.approx(float(total) / 2, rel=1e-5)
    loss.backward()
    assert sum(float(p.grad.abs().sum()) for p in policy.trainable if p.grad is not None) > 0
    with torch.no_grad():
        alone = [policy.supervised_loss([e], seeds=[s]).mean for e, s in zip(examples, SEEDS, strict=True)]
    assert float(sum(alone)) / 2 == pytest.approx(float(loss.detach()), rel=1e-5)


@pytest.mark.nightly
def test_unsupported_supervision_raises() -> None:
    wrong, example = make("sd15", supervision={"correction": {}})
    with pytest.raises(PolicyError, match=r"correction needs a flow-matching scheduler, got \w+; set it to null"):
        wrong.supervised_loss(example, seeds=SEEDS)
    policy, _ = make("sd3")
    with pytest.raises(DataError, match="need an image"):
        policy.supervised_loss([Example(Prompt("a cat"))], seeds=[0])
