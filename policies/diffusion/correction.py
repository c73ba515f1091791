"""The loss on noised examples, and on where a step of the model's own leads from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import PolicyError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.self_correction import level_after, off_path

from .instrumented_pipeline import InstrumentedPipeline
from .noised_prediction import CleanSample, NoisedPrediction, Noising, predict_at_levels, predict_noised, two_step_call
from .noising import Noised, per_row
from .pipeline_run import StepCall
from .scheduler_families import FLOW, family_of
from .settings import SupervisionSettings


def supervised_error(
    stage: InstrumentedPipeline,
    cleans: Sequence[CleanSample],
    call: Mapping[str, Any],
    supervision: SupervisionSettings,
) -> Tensor:
    """Mean squared error on noised examples and, with a correction, on K points beside each.

    L = (e + w sum_k e_k) / (1 + w K)

    Args:
        stage: the pipeline.
        cleans: N examples of one shape; of a pipeline that is shown something with a row, one.
        call: arguments of the pipeline's call.
        supervision: how they are noised.

    Returns:
        A scalar, with grad where grad is enabled.

    Raises:
        PolicyError: the pipeline does not fit, or has a correction without flow matching.
    """
    reading, correction, grad = supervision.reading, supervision.correction, torch.is_grad_enabled()
    own = predict_at_levels(stage, cleans, two_step_call(call), reading, grad=grad)
    if correction is None:
        return own.error_mean
    step = predict_at_levels(stage, cleans, two_step_call({**call, **correction.call}), reading, grad=False)
    total = own.error_mean
    for point in range(correction.points):
        beside = predict_noised(
            stage, cleans, two_step_call(call), _off_path(cleans, step, supervision, point), grad=grad
        )
        total = total + correction.weight * beside.error_mean
    return total / (1 + correction.weight * correction.points)


def _off_path(
    cleans: Sequence[CleanSample], step: NoisedPrediction, supervision: SupervisionSettings, point: int
) -> Noising:
    """A point of each example beside its way, the same for a seed in any batch."""
    correction, before = supervision.correction, step.noised
    assert correction is not None

    def noising(asked: StepCall, data: Tensor, whole: bool) -> Noised:
        if family_of(asked.scheduler) is not FLOW:
            raise PolicyError(
                f"policy.supervision.correction is for flow matching, and {type(asked.scheduler).__name__} is of "
                "another family: set it to null"
            )
        num_train = asked.scheduler.config.num_train_timesteps
        generators = [torch.Generator().manual_seed(derive_seed(clean.seed, point)) for clean in cleans]
        share_N = torch.cat([torch.rand(1, generator=generator) for generator in generators]).to(data.device)
        share_N = share_N.repeat_interleave(len(data) // len(cleans))
        after_N = level_after(
            before.sigma_N, num_steps=correction.num_steps, shift=supervision.shift, least=1 / num_train
        )
        sigma_N = after_N + share_N * (1 - after_N)
        level = per_row(before.sigma_N, data)
        found = off_path(
            before.noisy,
            before.noisy + (1 - level) * before.target,
            data,
            step.output,
            level=level,
            after=per_row(after_N, data),
            share=per_row(share_N, data),
        )
        timestep_N = sigma_N * num_train
        return replace(
            before,
            state=found.state,
            noisy=found.state,
            target=found.velocity,
            timestep_N=timestep_N.floor() if whole else timestep_N,
            sigma_N=sigma_N,
            of_output=-per_row(sigma_N, data),
        )

    return noising
