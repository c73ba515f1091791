"""Finished samples to renoise, and bare networks that give the expected values by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor

from mmgrpo.maths.seeds import derive_seed
from mmgrpo.types import OffPolicySample, Plan, Prompt, Rollout, Sample, Source
from mmgrpo.values import Value
from tests.policies.test_denoising_targets import STATES, TEXTS, examples_of

SEED = 3
T = 3
READING = {"num_levels": T, "levels": "uniform"}
ERROR, LEVEL = Value("error"), Value("level")


def off_policy_samples_of(name: str) -> list[OffPolicySample]:
    """Two members of each of two groups, with images or videos alone."""
    examples = examples_of(name)
    return [
        OffPolicySample(sample=Sample(example.prompt, group, member, image=example.image, video=example.video))
        for group, example in zip((5, 9), examples, strict=True)
        for member in (0, 3)
    ]


def latents_of(policy: DenoisingPolicy, prompts: Sequence[Prompt] | None = None) -> list[OffPolicySample]:
    """Samples that the policy drew without noise, two members of each of two groups."""
    plan = Plan(stochastic=(), keep_latents=True, prompt_ids=(5, 9), members=((0, 3), (0, 3)))
    rollout = policy.rollout(prompts or [Prompt(text) for text in TEXTS], group_size=2, seed=SEED, plan=plan)
    return [OffPolicySample(sample=sample, source=Source.ON_POLICY) for sample in rollout.samples]


def draws(group: int, member: int, place: int, shape: torch.Size) -> tuple[float, Tensor]:
    """Uniform number and noise by the documented keys."""
    generator = torch.Generator().manual_seed(derive_seed(SEED, group, member, -2, place))
    return float(torch.rand(1, generator=generator)), torch.randn(shape, generator=generator)


def value_of(policy: DenoisingPolicy, rollout: Rollout, value: Value) -> Tensor:
    result_BT = torch.full(rollout.shape, torch.nan)
    with torch.no_grad():
        for part in policy.evaluate(rollout, values=[value]):
            assert part.rows is not None
            result_BT[part.rows[:, None], torch.tensor(list(part.columns))[None]] = part.values[value]
    return result_BT


class Hand:
    """The bare network on noised data, textbook in hand."""

    def __init__(self, name: str, policy: DenoisingPolicy) -> None:
        self.name, self.pipeline, self.call = name, policy.pipeline, policy.settings.call

    def prediction(self, text: str, noisy: Tensor, share: float) -> Tensor:
        """What the network says at a level, u of (0, 1) on flow."""
        pipe, level = self.pipeline, torch.tensor([share])
        if self.name == "sd15":
            embeds, _ = pipe.encode_prompt([text], "cpu", 1, False)
            return pipe.unet(noisy, (level * 1000).long(), encoder_hidden_states=embeds, return_dict=False)[0]
        if self.name == "sd3":
            embeds, _, pooled, _ = pipe.encode_prompt(
                prompt=[text], prompt_2=None, prompt_3=None, do_classifier_free_guidance=False, max_sequence_length=64
            )
            return pipe.transformer(
                hidden_states=noisy, timestep=level * 1000, encoder_hidden_states=embeds, pooled_projections=pooled,
                return_dict=False,
            )[0]  # fmt: skip
        if self.name == "flux":
            embeds, pooled, text_ids = pipe.encode_prompt([text], None, max_sequence_length=64)
            side = int(noisy.shape[1] ** 0.5)
            ids = pipe._prepare_latent_image_ids(1, side, side, torch.device("cpu"), torch.float32)
            return pipe.transformer(
                hidden_states=noisy, timestep=level, guidance=torch.full((1,), 3.5), encoder_hidden_states=embeds,
                pooled_projections=pooled, txt_ids=text_ids, img_ids=ids, return_dict=False,
            )[0]  # fmt: skip
        embeds, _ = pipe.encode_prompt([text], do_classifier_free_guidance=False, max_sequence_length=64)
        return pipe.transformer(noisy, (level * 1000).long(), embeds, return_dict=False)[0]

    def noised(self, clean: Tensor, group: int, member: int, place: int) -> tuple[Tensor, Tensor, float, float]:
        """x_t, the target, u and sigma."""
        uniform, noise = draws(group, member, place, clean.shape)
        if self.name == "sd15":
            alpha_cumprod = self.pipeline.scheduler.alphas_cumprod[int(uniform * 1000)]
            sigma = (1 - alpha_cumprod).sqrt()
            return alpha_cumprod.sqrt() * clean + sigma * noise, noise, uniform, float(sigma)
        if self.name == "wan":  # its schedule has integers
            uniform = int(uniform * 1000) / 1000
        return (1 - uniform) * clean + uniform * noise, noise - clean, uniform, uniform


def clean_states(name: str, policy: DenoisingPolicy) -> list[Tensor]:
    if name in ("flux", "wan"):
        return [STATES[name](policy.pipeline, example) for example in examples_of(name)]
    vae, processor = policy.pipeline.vae, policy.pipeline.image_processor
    with torch.no_grad():
        modes = [vae.encode(processor.preprocess(example.image)).latent_dist.mode() for example in examples_of(name)]
    return [(mode - (vae.config.get("shift_factor") or 0.0)) * vae.config.scaling_factor for mode in modes]
