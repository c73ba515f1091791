"""The denoising policy and its stock pipeline: equal samples, an unmodified pipeline, and errors before training."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow

from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.types import Plan, Prompt, Sample
from mmgrpo.values import DRIFT, from_reference
from tests.policies.contract import sample_difference, values
from tests.policies.families import daily
from tests.policies.tiny_policies import final_latent, pipeline_of, policy_of, prompts_of, settings_of
from tests.tiny.pipelines import PIPELINES

SEED = 3
GREEDY = Plan(stochastic=())


def _generators(prompts: list[Prompt], group_size: int) -> list[torch.Generator]:
    return [
        DenoisingRow(prompt=prompt, seed=SEED, group=group, member=member).generator()
        for group, prompt in enumerate(prompts)
        for member in range(group_size)
    ]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", daily(["sd15", "sd15-lcm", "sd3", "flux", "sana", "z-image", "wan"], "sd15-lcm", "wan")
)
def test_greedy_samples_equal_the_stock_pipeline(name: str) -> None:
    prompts = prompts_of(name)[:1]
    settings = settings_of(name, guided=True)
    stock = pipeline_of(name)(
        prompt=[prompts[0].text] * 2,
        generator=_generators(prompts, 2),
        output_type="pil",
        **_listed(settings["call"], 2),
    )
    rollout = policy_of(name, guided=True).rollout(prompts, group_size=2, seed=SEED, plan=GREEDY)
    assert not rollout.mask_BT.any()
    media = stock.frames if PIPELINES[name].video else stock.images
    for sample, expected in zip(rollout.samples, media, strict=True):
        actual = sample.video if PIPELINES[name].video else sample.image
        # A level of 255 where rounding tips it: kernels may round by the addresses of their operands.
        np.testing.assert_allclose(np.asarray(actual, dtype=float), np.asarray(expected, dtype=float), atol=1)


def _listed(call: dict[str, Any], rows: int) -> dict[str, Any]:
    return call if "negative_prompt" not in call else {**call, "negative_prompt": [call["negative_prompt"]] * rows}


def test_evaluation_call_changes_only_greedy_samples() -> None:
    policy = policy_of("sd3", evaluation_call={"num_inference_steps": 6})
    prompts = prompts_of("sd3")
    assert policy.rollout(prompts, group_size=1, seed=SEED, plan=GREEDY).shape == (2, 6)
    assert policy.rollout(prompts, group_size=1, seed=SEED).shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "first_order"),
    [
        ("sd15", {}),
        *(pytest.param(name, {}, marks=pytest.mark.nightly) for name in ("sd15-v", "sdxl", "sd3", "cogvideox")),
        pytest.param("sana", {"solver_order": 1}, marks=pytest.mark.nightly),
        ("wan", {"solver_order": 1, "disable_corrector": [0, 1, 2, 3]}),
    ],
)
def test_strength_zero_equals_the_stock_first_order_sampler(name: str, first_order: dict[str, Any]) -> None:
    pipeline, prompts = pipeline_of(name), prompts_of(name)[:1]
    if first_order:
        pipeline.scheduler = type(pipeline.scheduler).from_config(pipeline.scheduler.config, **first_order)
    call = settings_of(name)["call"]
    rollout = policy_of(name, strength=0.0).rollout(prompts, group_size=1, seed=SEED)
    stock = pipeline(prompt=[prompts[0].text], generator=_generators(prompts, 1), output_type="latent", **call)
    latent = stock.frames if PIPELINES[name].video else stock.images
    assert not rollout.mask_BT.any()
    assert float((final_latent(rollout) - latent).abs().max() / latent.abs().max()) < 5e-6


def test_the_pipeline_is_restored_after_a_run() -> None:
    pipeline = pipeline_of("sd3")
    del pipeline.__dict__["_progress_bar_config"]
    policy = policy_of("sd3", pipeline)
    before = dict(pipeline.__dict__)
    scheduler = dict(pipeline.scheduler.__dict__)
    verbosity = diffusers.utils.logging.get_verbosity()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED, plan=Plan(same_initial_noise=True))
    for evaluation in policy.evaluate(rollout, values=[from_reference("gaussian")]):
        evaluation.logprob_BT.sum().backward()
    policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED, plan=GREEDY)
    _assert_same(before, pipeline.__dict__)
    _assert_same(scheduler, pipeline.scheduler.__dict__)
    assert torch.equal(torch.rand(3), expected)
    assert diffusers.utils.logging.get_verbosity() == verbosity


def test_the_pipeline_is_restored_after_an_exception() -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    pipeline = pipeline_of("sd3")
    pipeline.set_progress_bar_config(desc="mine")
    policy = policy_of("sd3", pipeline, call={"callback_on_step_end": interrupt})
    before = dict(pipeline.__dict__)
    for plan in (None, GREEDY, Plan(same_initial_noise=True, stochastic=(1,))):
        with pytest.raises(KeyboardInterrupt):
            policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED, plan=plan)
        _assert_same(before, pipeline.__dict__)
    assert pipeline._progress_bar_config == {"desc": "mine"}


def _assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Identity, except for the plain private values that every call of a stock pipeline sets."""
    assert [key for key in after if key not in before and not key.startswith("_")] == []
    assert [key for key, value in before.items() if after[key] is not value and not _is_scratch(key)] == []


def _is_scratch(key: str) -> bool:
    return key in ("_guidance_scale", "_num_timesteps", "_interrupt", "_clip_skip", "_joint_attention_kwargs")


@pytest.mark.nightly
def test_native_noise_equals_the_stock_sampler() -> None:
    policy = policy_of("sd15-euler-a", guided=True)
    rollout = policy.rollout(prompts_of("sd15-euler-a"), group_size=2, seed=SEED)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    # Ancestral Euler: std = sigma' sqrt(1 - sigma'^2 / sigma^2) with the scheduler's own levels.
    scheduler = pipeline_of("sd15-euler-a").scheduler
    scheduler.set_timesteps(4)
    sigmas = [float(sigma) for sigma in scheduler.sigmas]
    expected = [b * math.sqrt(1 - b * b / (a * a)) for a, b in pairwise(sigmas)]  # the last level is 0
    assert rollout.noise is not None
    torch.testing.assert_close(rollout.noise.std_BT, torch.tensor([expected] * 4), rtol=1e-4, atol=0)


@pytest.mark.nightly
def test_native_noise_of_a_consistency_sampler_is_exact() -> None:
    policy = policy_of("sd15-lcm", guided=True)
    rollout = policy.rollout(prompts_of("sd15-lcm"), group_size=2, seed=SEED)
    assert rollout.mask_BT[0].tolist() == [True, True, True, False]
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)


@pytest.mark.nightly
def test_native_noise_of_a_multistep_solver_is_replayed_in_full() -> None:
    pipeline = pipeline_of("sd15-dpm")
    config = pipeline.scheduler.config
    pipeline.scheduler = diffusers.DPMSolverMultistepScheduler.from_config(config, algorithm_type="sde-dpmsolver++")
    policy = policy_of("sd15-dpm", pipeline, sampler="native")
    rollout = policy.rollout(prompts_of("sd15-dpm"), group_size=2, seed=SEED)
    assert rollout.trace.run_ghosts
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)


@pytest.mark.nightly
def test_overwritten_elements_are_excluded_from_decisions() -> None:
    policy = policy_of("sd15-inpaint")
    rollout = policy.rollout(prompts_of("sd15-inpaint"), group_size=2, seed=SEED, plan=Plan(values=(DRIFT,)))
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert rollout.noise is not None
    # The mask repaints the lower half; the pipeline puts the given image back into the upper half after each step.
    repainted = torch.zeros(1, 4, 8, 8, dtype=torch.bool)
    repainted[:, :, 4:] = True
    for row, transitions in enumerate(rollout.trace.transitions):
        for t, transition in enumerate(transitions[:3]):
            assert torch.equal(transition.keep, repainted)
            std = rollout.noise.std_BT[row, t]
            error = (transition.next_state - transition.mean)[repainted]
            expected = (-(error**2) / (2 * std**2) - std.log() - 0.5 * math.log(2 * math.pi)).mean()
            assert float(rollout.old_logprob_BT[row, t]) == pytest.approx(float(expected), rel=1e-5)


def test_videos_are_lists_of_frames() -> None:
    sample = policy_of("wan").rollout(prompts_of("wan"), group_size=1, seed=SEED).samples[0]
    assert sample.image is None
    assert sample.video is not None
    assert [frame.size for frame in sample.video] == [(32, 32)] * 5


@pytest.mark.nightly
def test_negative_prompts_belong_to_their_prompts() -> None:
    policy = policy_of("sd3", guided=True)
    plain, warned = Prompt("a red fox"), Prompt("a red fox", negative="blue")
    alone = policy.rollout([plain], group_size=1, seed=SEED, plan=Plan(prompt_ids=(1,)))
    mixed = policy.rollout([warned, plain], group_size=1, seed=SEED)
    assert sample_difference(mixed.samples[1:], alone.samples) <= 1
    same_key = policy.rollout([warned], group_size=1, seed=SEED, plan=Plan(prompt_ids=(1,)))
    assert sample_difference(same_key.samples, alone.samples) > 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "stand_in", "changes"),
    [
        pytest.param("PNDMScheduler", "DDIMScheduler", {"clip_sample": False}, marks=pytest.mark.nightly),
        pytest.param("HeunDiscreteScheduler", "EulerDiscreteScheduler", {}, marks=pytest.mark.nightly),
        pytest.param("LMSDiscreteScheduler", "EulerDiscreteScheduler", {}, marks=pytest.mark.nightly),
        pytest.param("KDPM2AncestralDiscreteScheduler", "EulerDiscreteScheduler", {}, marks=pytest.mark.nightly),
        ("SASolverScheduler", "DPMSolverMultistepScheduler", {}),
        ("FlowMatchHeunDiscreteScheduler", "FlowMatchEulerDiscreteScheduler", {}),
    ],
)
def test_schedulers_without_decisions_use_a_first_order_replacement(
    kind: str, stand_in: str, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    name = "sd3" if kind.startswith("FlowMatch") else "sd15"
    stock, replaced = pipeline_of(name), pipeline_of(name)
    stock.scheduler = getattr(diffusers, kind).from_config(stock.scheduler.config)
    replaced.scheduler = getattr(diffusers, stand_in).from_config(stock.scheduler.config, **changes)
    with caplog.at_level(logging.WARNING, logger="mmgrpo"):
        policy, expected = policy_of(name, stock), policy_of(name, replaced)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"steps of {kind} cannot be decisions: they are sampled and scored with {stand_in}" in line
    assert any(kind in choice for choice in policy.resolved_settings)
    rollout = policy.rollout(prompts_of(name), group_size=1, seed=SEED)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    as_replaced = expected.rollout(prompts_of(name), group_size=1, seed=SEED)
    assert torch.equal(rollout.old_logprob_BT, as_replaced.old_logprob_BT)
    assert rollout.noise is not None
    assert as_replaced.noise is not None
    assert torch.equal(rollout.noise.level_BT, as_replaced.noise.level_BT)
    assert type(stock.scheduler).__name__ == kind


def test_deterministic_samples_use_the_original_scheduler() -> None:
    pipeline, prompts = pipeline_of("sd15"), prompts_of("sd15")[:1]
    stock_scheduler: Any = diffusers.PNDMScheduler.from_config(pipeline.scheduler.config, skip_prk_steps=True)
    pipeline.scheduler = stock_scheduler
    policy = policy_of("sd15", pipeline)
    greedy = policy.rollout(prompts, group_size=1, seed=SEED, plan=GREEDY).samples[0]
    arguments = {**settings_of("sd15")["call"], "prompt": [prompts[0].text], "generator": _generators(prompts, 1)}
    stock = pipeline(**arguments).images[0]
    np.testing.assert_allclose(np.asarray(greedy.image, float), np.asarray(stock, float), atol=1)
    pipeline.scheduler = diffusers.DDIMScheduler.from_config(stock_scheduler.config, clip_sample=False)
    other = pipeline(**{**arguments, "generator": _generators(prompts, 1)}).images[0]
    assert np.abs(np.asarray(stock, float) - np.asarray(other, float)).max() > 1


def test_a_multistep_scheduler_with_custom_levels_takes_first_order_steps() -> None:
    pipeline, prompts = pipeline_of("sd15"), prompts_of("sd15")
    pipeline.scheduler = diffusers.IPNDMScheduler()
    policy = policy_of("sd15", pipeline)
    rollout = policy.rollout(prompts, group_size=1, seed=SEED)
    assert rollout.mask_BT[0].tolist() == [True, True, True, False]
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    # beta = sin(pi / 2 k / 4)^2 of k = 4, 3, and alpha^2 = 1 - beta^2: from pure noise to 0.8536, at eta = 0.7
    assert rollout.noise is not None
    torch.testing.assert_close(rollout.noise.std_BT[0, 0].item(), 0.7 * 0.8535534, atol=1e-5, rtol=0)


def test_a_scheduler_without_step_raises() -> None:
    pipeline = pipeline_of("sd15")
    for name in ("KarrasVeScheduler", "ScoreSdeVeScheduler"):
        pipeline.scheduler = getattr(diffusers, name)()
        with pytest.raises(PolicyError, match=rf"{name} has no step\(model_output, timestep, sample\)"):
            policy_of("sd15", pipeline)


@pytest.mark.nightly
def test_the_default_sampler_depends_on_the_scheduler() -> None:
    for name, sampler in (("sd3", "flow_sde"), ("sd15", "ddim"), ("sd15-lcm", "native"), ("wan", "flow_sde")):
        chosen, named = policy_of(name, sampler=None), policy_of(name, sampler=sampler)
        assert [choice for choice in chosen.resolved_settings if f"sampler {sampler}, which fits" in choice]
        assert named.resolved_settings == ()
        actual, expected = (p.rollout(prompts_of(name), group_size=1, seed=SEED) for p in (chosen, named))
        assert torch.equal(actual.old_logprob_BT, expected.old_logprob_BT)


def test_a_window_outside_the_schedule_raises() -> None:
    policy = policy_of("sd3")
    for same_initial_noise in (False, True):
        with pytest.raises(ConfigError, match=r"window \(2, 3\) is outside.*of its 4 steps, 0 to 2 can be"):
            policy.rollout(
                prompts_of("sd3"),
                group_size=1,
                seed=SEED,
                plan=Plan(stochastic=(2, 3), same_initial_noise=same_initial_noise),
            )


def test_samplers_that_do_not_fit_the_scheduler_raise() -> None:
    with pytest.raises(ConfigError, match="flow_sde needs a flow schedule"):
        policy_of("sd15", sampler="flow_sde").rollout(prompts_of("sd15"), group_size=1, seed=SEED)
    with pytest.raises(ConfigError, match="DDIMScheduler is deterministic here"):
        policy_of("sd15", sampler="native").rollout(prompts_of("sd15"), group_size=1, seed=SEED)


def test_denoisers_that_do_not_denoise_raise() -> None:
    for wrong in ("text_encoder", "vae"):
        policy = policy_of("sd3", denoisers=(wrong,), lora={"rank": 2, "targets": "all-linear"})
        with pytest.raises(PolicyError, match=rf"does not call \['{wrong}'\] at each step; it calls \['transformer'\]"):
            policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED)


def test_a_scheduler_replaced_after_construction_raises() -> None:
    policy = policy_of("sd3")
    policy.pipeline.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    with pytest.raises(PolicyError, match="scheduler was replaced after the policy was created"):
        policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED)


def test_prompts_and_their_ids_are_checked() -> None:
    policy = policy_of("sd3")
    with pytest.raises(DataError, match="needs prompts and group_size"):
        policy.rollout([], group_size=1, seed=SEED)
    with pytest.raises(DataError, match="need as many prompt_ids"):
        policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED, plan=Plan(prompt_ids=(1,)))
    with pytest.raises(DataError, match="unique within a group"):
        policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED, plan=Plan(prompt_ids=(1, 1)))


def test_images_are_equal_for_every_output_type() -> None:
    def samples_of(form: str) -> Sequence[Sample]:
        policy = policy_of("sd3", call={"output_type": form})
        return policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED).samples

    expected = [np.asarray(sample.image) for sample in samples_of("pil")]
    for form in ("np", "pt"):
        for sample, picture in zip(samples_of(form), expected, strict=True):
            assert np.array_equal(np.asarray(sample.image), picture)
    latents = [sample.array for sample in samples_of("latent")]  # are no image
    assert [None if array is None else tuple(array.shape) for array in latents] == [(4, 8, 8)] * len(expected)
    assert not any(sample.image for sample in samples_of("latent"))
