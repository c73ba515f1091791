"""Rows of a shared rollout, sampled once more in a pipeline call each."""

from __future__ import annotations

import torch
from mmgrpo.policies.diffusion.chunks import make_groups
from mmgrpo.policies.diffusion.encoder_cache import EncoderCache
from mmgrpo.policies.diffusion.instrumented_pipeline import InstrumentedPipeline
from mmgrpo.policies.diffusion.pipeline_run import PipelineRun
from mmgrpo.policies.diffusion.recorder import Recorder
from mmgrpo.policies.diffusion.step_sampler import StepSampler

from mmgrpo.types import Plan
from tests.policies.tiny_policies import final_latent, pipeline_of, policy_of, prompts_of, settings_of


def assert_rows_equal_single_rows(name: str, plan: Plan, *, group_size: int, seed: int) -> None:
    """Every state of a tiny policy's rollout is that of its row alone, to 1e-5 of the row's largest latent."""
    prompts = prompts_of(name)
    rollout = policy_of(name).rollout(prompts, group_size=group_size, seed=seed, plan=plan)
    settings = settings_of(name)
    denoiser = "unet" if name == "sd15" else "transformer"
    pipeline = pipeline_of(name)
    stage = InstrumentedPipeline(pipeline, pipeline.scheduler, pipeline.scheduler, (denoiser,), EncoderCache(2**20))
    sampling = StepSampler(
        sampler=settings["sampler"], strength=settings["strength"], density="gaussian", reduction="mean"
    )
    rows = [row for group in make_groups(prompts, group_size, seed, plan) for row in group]
    for index, row in enumerate(rows):
        alone = Recorder([row], plan, sampling)
        with torch.no_grad():
            stage.run(PipelineRun(on_step=alone), stage.form.arguments([row], settings["call"]), seed=seed)
        scale = float(final_latent(rollout, index).abs().max())
        for sampled, transition in zip(alone.steps, rollout.trace.transitions[index], strict=True):
            assert float((sampled.next_state - transition.next_state).abs().max()) < 1e-5 * scale
