"""Supervised loss on noised examples, and on points that the model's own step reaches from them."""

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
    instrumented: InstrumentedPipeline,
    clean_samples: Sequence[CleanSample],
    call: Mapping[str, Any],
    supervision: SupervisionSettings,
) -> Tensor:
    """Mean squared error on noised examples and, with a correction, on K further points per example.

    L = (e + w sum_k e_k) / (1 + w K)

    Args:
        instrumented: the pipeline.
        clean_samples: N examples of one shape; a single one for pipelines with media in the call.
        call: arguments of the pipeline's call.
        supervision: the noise levels and the correction.

    Returns:
        A scalar, with grad if grad is enabled.

    Raises:
        PolicyError: the pipeline does not fit, or has a correction without flow matching.
    """
    reading, correction, grad = supervision.reading, supervision.correction, torch.is_grad_enabled()
    prediction = predict_at_levels(instrumented, clean_samples, two_step_call(call), reading, grad=grad)
    if correction is None:
        return prediction.error_mean
    step = predict_at_levels(
        instrumented, clean_samples, two_step_call({**call, **correction.call}), reading, grad=False
    )
    total = prediction.error_mean
    for point in range(correction.points):
        off_path_prediction = predict_noised(
            instrumented,
            clean_samples,
            two_step_call(call),
            _off_path(clean_samples, step, supervision, point),
            grad=grad,
        )
        total = total + correction.weight * off_path_prediction.error_mean
    return total / (1 + correction.weight * correction.points)


def _off_path(
    clean_samples: Sequence[CleanSample], step: NoisedPrediction, supervision: SupervisionSettings, point: int
) -> Noising:
    """A point of each example off its noising path, a function of its seed in any batch."""
    correction, base = supervision.correction, step.noised
    assert correction is not None

    def noising(step_call: StepCall, data: Tensor, integer_timesteps: bool) -> Noised:
        if family_of(step_call.scheduler) is not FLOW:
            raise PolicyError(
                "policy.supervision.correction needs a flow-matching scheduler, got "
                f"{type(step_call.scheduler).__name__}; set it to null"
            )
        num_train = step_call.scheduler.config.num_train_timesteps
        generators = [torch.Generator().manual_seed(derive_seed(clean.seed, point)) for clean in clean_samples]
        share_N = torch.cat([torch.rand(1, generator=generator) for generator in generators]).to(data.device)
        share_N = share_N.repeat_interleave(len(data) // len(clean_samples))
        after_N = level_after(
            base.sigma_N, num_steps=correction.num_steps, shift=supervision.shift, least=1 / num_train
        )
        sigma_N = after_N + share_N * (1 - after_N)
        level = per_row(base.sigma_N, data)
        point_off_path = off_path(
            base.noisy,
            base.noisy + (1 - level) * base.target,
            data,
            step.output,
            level=level,
            after=per_row(after_N, data),
            share=per_row(share_N, data),
        )
        timestep_N = sigma_N * num_train
        return replace(
            base,
            state=point_off_path.state,
            noisy=point_off_path.state,
            target=point_off_path.velocity,
            timestep_N=timestep_N.floor() if integer_timesteps else timestep_N,
            sigma_N=sigma_N,
            of_output=-per_row(sigma_N, data),
        )

    return noising
