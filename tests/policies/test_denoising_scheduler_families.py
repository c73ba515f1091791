"""Scheduler families: their first step, replacements, and default samplers."""

# diffusers exports lazily.

from __future__ import annotations

import inspect
from typing import Any

import diffusers
import pytest
import torch
from mmgrpo.policies.diffusion.pipeline_run import StepCall
from mmgrpo.policies.diffusion.scheduler_check import first_step_gap
from mmgrpo.policies.diffusion.scheduler_families import family_of, fitting_sampler

ROUNDING = 3e-4  # DEIS integrates in logarithms, the consistency sampler keeps a trace of its state
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
FLOW = {"use_flow_sigmas": True, "flow_shift": 3.0}
ZERO_SNR = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
KINDS = [{"prediction_type": kind} for kind in ("epsilon", "v_prediction", "sample")]
SOLVERS = ("UniPCMultistep", "DPMSolverMultistep", "DEISMultistep", "DPMSolverSinglestep")

READ: list[tuple[str, dict[str, Any]]] = [
    *((name, {**BETAS, **kind}) for name in ("DDIM", "DDPM", "CogVideoXDDIM", "CogVideoXDPM") for kind in KINDS),
    *(("DDPM", {**BETAS, **kind, "clip_sample": False}) for kind in KINDS),
    *((name, {**BETAS, **kind, "thresholding": True}) for name in ("DDIM", "DDPM") for kind in KINDS),
    ("DDPM", {**BETAS, "variance_type": "learned_range"}),
    ("DDPM", {**BETAS, "variance_type": "fixed_large"}),
    *(
        (name, {**BETAS, **ZERO_SNR, "prediction_type": "v_prediction", "snr_shift_scale": scale})
        for name in ("CogVideoXDDIM", "CogVideoXDPM")
        for scale in (1.0, 4.0)
    ),
    *((name, {**FLOW, **kind}) for name in SOLVERS for kind in [*KINDS, {"prediction_type": "flow_prediction"}]),
    *((name, {**BETAS, **kind, "thresholding": True}) for name in SOLVERS for kind in KINDS),
    *(("EulerAncestralDiscrete", {**BETAS, **kind}) for kind in KINDS[:2]),
    ("TCD", BETAS),
    ("LCM", BETAS),
    ("FlowMatchEulerDiscrete", {"stochastic_sampling": True}),
    ("FlowMapEulerDiscrete", {"shift": 3.0}),
    ("Piflow", {"num_policy_substeps": 8}),
    ("IPNDM", {}),
    *(
        ("UnCLIP", {**kind, "clip_sample_range": 5.0, "variance_type": variance})
        for kind in (KINDS[0], KINDS[2])
        for variance in ("fixed_small_log", "learned_range")
    ),
]


def _first_call(name: str, config: dict[str, Any]) -> StepCall:
    """The first step of a schedule of four, on random states."""
    kind = getattr(diffusers, f"{name}Scheduler")
    scheduler = kind(**config)
    scheduler.set_timesteps(4)
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn(2, 4, 8, 8, generator=generator) * float(getattr(scheduler, "init_noise_sigma", 1.0))
    channels = 8 if config.get("variance_type") == "learned_range" else 4
    width = 8 * (scheduler.n_grid if name == "Piflow" else 1)
    output = torch.randn(2, channels, 8, width, generator=generator)
    timestep = scheduler.timesteps[0]
    samples: dict[str, Any] = {"timestep": timestep}
    if "prev_timestep" in inspect.signature(kind.step).parameters:
        samples |= {"prev_timestep": scheduler.timesteps[1]}
    if "timestep_back" in inspect.signature(kind.step).parameters:
        samples |= {"timestep_back": timestep, "old_pred_original_sample": None}
    return StepCall(
        iteration=0,
        stream=0,
        ordinal=0,
        scheduler=scheduler,
        model_output=output,
        timestep=timestep,
        sample=scheduler.scale_model_input(sample, timestep) if name == "LCM" else sample,
        stock=lambda twin=scheduler, **changes: kind.step(twin, **{**samples, **changes}),
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "config"), READ, ids=[f"{n}-{i}" for i, (n, _) in enumerate(READ)])
def test_the_stock_first_step_matches_the_family(name: str, config: dict[str, Any]) -> None:
    call = _first_call(name, config)
    assert first_step_gap(family_of(call.scheduler), call) < ROUNDING


def test_a_wrong_family_has_a_first_step_gap() -> None:
    call = _first_call("DDIM", BETAS)
    assert first_step_gap(family_of(diffusers.EulerDiscreteScheduler(**BETAS)), _levelled(call)) > 0.1


def _levelled(call: StepCall) -> StepCall:
    call.scheduler.sigmas = torch.linspace(1, 0, 5)
    return call


@pytest.mark.parametrize(
    ("name", "config", "sampler"),
    [
        ("FlowMatchEulerDiscrete", {}, "flow_sde"),
        ("FlowMatchEulerDiscrete", {"invert_sigmas": True}, "flow_sde"),
        ("FlowMatchEulerDiscrete", {"stochastic_sampling": True}, "native"),
        ("UniPCMultistep", {**FLOW, "prediction_type": "flow_prediction"}, "flow_sde"),
        ("DPMSolverMultistep", BETAS, "ddim"),
        ("DDIM", BETAS, "ddim"),
        ("EulerDiscrete", BETAS, "ddim"),
        ("EDMEuler", {}, "ddim"),
        ("LCM", BETAS, "native"),
        ("TCD", BETAS, "native"),
        ("SCM", {}, "native"),
        ("FlowMatchLCM", {}, "native"),
        ("DDPMWuerstchen", {}, "native"),
        ("FlowMapEulerDiscrete", {}, "cps"),
        ("Piflow", {}, "cps"),
    ],
)
def test_the_sampler_fits_the_scheduler(name: str, config: dict[str, Any], sampler: str) -> None:
    assert fitting_sampler(getattr(diffusers, f"{name}Scheduler")(**config)) == sampler


def test_levels_above_one_reject_flow_samplers() -> None:
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()  # as Cosmos 2 sets it
    scheduler.register_to_config(sigma_max=80.0, sigma_min=0.002)
    assert fitting_sampler(scheduler) == "ddim"
