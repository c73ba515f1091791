"""Steps of denoisers: where a step leads, how far it spreads, and how likely a next latent is.

Axes: B samples, C H W channels, height and width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from torch import Tensor

from benchmarks.agreement.authors import Source
from benchmarks.agreement.comparing import Case, Numbers, Rows
from mmgrpo.config.loading import find_config, read_layers
from mmgrpo.maths.gaussian import DENSITIES, REDUCTIONS
from mmgrpo.maths.transitions import (
    SAMPLERS,
    DenoisingStep,
    Level,
    Prediction,
    ddim,
    extrapolated,
    kernel_mean,
    velocity_to_prediction,
)

NUM_STEPS, SHIFT = 10, 3.0


@dataclass(frozen=True, slots=True)
class Latents:
    """A step of a schedule, float32, that begins at sigma = 1 in every ninth draw; never the last.

    Attributes:
        sigmas: of the schedule, from 1 to 0.
        index: of the step.
        latent_BCHW: where it begins.
        velocity_BCHW: what the network says there, with grad.
        next_BCHW: where it ends.
    """

    sigmas: Tensor
    index: int
    latent_BCHW: Tensor
    velocity_BCHW: Tensor
    next_BCHW: Tensor


def latents(rows: Rows) -> Latents:
    """The step of a draw."""
    random = torch.Generator().manual_seed(rows.seed)
    even = torch.linspace(1, 0, NUM_STEPS + 1)
    latent, velocity, change = torch.randn(3, 4, 2, 4, 4, generator=random)
    sigmas, index = SHIFT * even / (1 + (SHIFT - 1) * even), rows.seed % (NUM_STEPS - 1)
    length = sigmas[index] - sigmas[index + 1]
    ends = latent - length * velocity + 0.3 * length.sqrt() * change
    return Latents(sigmas, index, latent, velocity.requires_grad_(), ends)


def _case(method: str, source: Source, theirs: Callable[[SimpleNamespace, Latents, float], Numbers], note: str) -> Case:
    policy = read_layers(find_config(f"methods/{method}"))["policy"]

    def ours(rows: Rows) -> Numbers:
        at = latents(rows)
        level, next_level, second = (
            Level(alpha=1 - sigma, sigma=sigma) for sigma in at.sigmas.double()[[at.index, at.index + 1, 1]].tolist()
        )
        step = DenoisingStep(level=level, next_level=next_level, second_sigma=second.sigma)
        kernel = SAMPLERS[policy["sampler"]](step, strength=policy["strength"])
        mean = kernel_mean(kernel, velocity_to_prediction(at.latent_BCHW, at.velocity_BCHW, level))
        density = DENSITIES[policy["density"]](at.next_BCHW, mean, kernel.std).flatten(1)
        logprob_B = REDUCTIONS[policy["reduction"]](density.sum(1), density.shape[1])
        return _differentiated(at, {"mean": mean, "std": torch.tensor(kernel.std), "logprob": logprob_B})

    def of_theirs(functions: SimpleNamespace, rows: Rows) -> Numbers:
        at = latents(rows)
        return _differentiated(at, theirs(functions, at, policy["strength"]))

    return Case(method=method, source=source, theirs=of_theirs, ours=ours, note=note)


def _differentiated(at: Latents, numbers: Numbers) -> Numbers:
    (gradient,) = torch.autograd.grad(numbers["logprob"].sum(), at.velocity_BCHW)
    return {**{name: number.detach() for name, number in numbers.items()}, "gradient": gradient}


def _scheduled(theirs: SimpleNamespace, at: Latents, strength: float) -> Numbers:
    """flow_grpo's step of a scheduler of diffusers."""
    scheduler = SimpleNamespace(sigmas=at.sigmas, index_for_timestep=int)
    timestep = torch.full((len(at.latent_BCHW),), at.index)
    _, logprob_B, mean, rate = theirs.sde_step_with_logprob(
        scheduler, at.velocity_BCHW, timestep, at.latent_BCHW, strength, at.next_BCHW
    )
    length = at.sigmas[at.index] - at.sigmas[at.index + 1]
    return {"mean": mean, "std": rate.flatten()[0] * length.sqrt(), "logprob": logprob_B}


def _mixed(theirs: SimpleNamespace, at: Latents, strength: float) -> Numbers:
    _, _, logprob_B, mean, std = theirs.flow_grpo_step(
        at.velocity_BCHW, at.latent_BCHW, strength, at.sigmas, at.index, at.next_BCHW
    )
    return {"mean": mean, "std": std, "logprob": logprob_B}


def _danced(theirs: SimpleNamespace, at: Latents, strength: float) -> Numbers:
    """DanceGRPO's step, asked once for its log-density and once for its mean."""
    arguments = (at.velocity_BCHW, at.latent_BCHW, strength, at.sigmas, at.index, at.next_BCHW)
    logprob_B = theirs.flux_step(*arguments, grpo=True, sde_solver=True)[2]
    mean = theirs.flux_step(*arguments, grpo=False, sde_solver=True)[0]
    length = at.sigmas[at.index] - at.sigmas[at.index + 1]
    return {"mean": mean, "std": strength * length.sqrt(), "logprob": logprob_B}


def _strategy(theirs: SimpleNamespace, at: Latents, strength: float) -> Numbers:
    """UniRL's step of a sampler, and its density."""
    sigma, next_sigma = at.sigmas[at.index], at.sigmas[at.index + 1]
    _, mean, std = theirs.step(None, at.velocity_BCHW, at.latent_BCHW, sigma, next_sigma, strength, at.next_BCHW)
    density = theirs.compute_log_prob(None, at.next_BCHW, mean, std_var=std)
    return {"mean": mean, "std": std, "logprob": density.flatten(1).mean(1)}


def _after_the_window(theirs: SimpleNamespace, at: Latents) -> Numbers:
    """MixGRPO-Flash's step after its window; the clean sample that the step before predicted is as good as any."""
    settings = SimpleNamespace(dpm_algorithm_type="dpmsolver++", dpm_solver_type="midpoint")
    clean = at.latent_BCHW - at.sigmas[at.index] * at.velocity_BCHW
    following = theirs.multistep_dpm_solver_second_order_update(
        settings, [at.next_BCHW, clean], at.sigmas, at.index, at.latent_BCHW
    )[0]
    return {"mean": following, "logprob": following.flatten(1).mean(1)}


def _of_second_order(at: Latents) -> Numbers:
    before, level, next_level = (
        Level(alpha=1 - sigma, sigma=sigma) for sigma in at.sigmas.double()[at.index - 1 : at.index + 2].tolist()
    )
    step = DenoisingStep(level=level, next_level=next_level, second_sigma=float(at.sigmas[1]))
    now = velocity_to_prediction(at.latent_BCHW, at.velocity_BCHW, level)
    prediction = Prediction(at.next_BCHW, torch.zeros_like(at.next_BCHW))
    following = kernel_mean(ddim(step, strength=0.0), extrapolated(at.latent_BCHW, now, prediction, step, before))
    return {"mean": following, "logprob": following.flatten(1).mean(1)}


def _later(rows: Rows) -> Latents:
    """The step of a draw, which is not the first of its schedule."""
    at = latents(rows)
    return replace(at, index=max(at.index, 1))


SCHEDULED = "flow_grpo/diffusers_patch/sd3_sde_with_logprob.py"
FLOAT32 = "float32"
CASES: Sequence[Case] = (
    _case(
        "flow-grpo",
        Source(repo="yifan123/flow_grpo", path=SCHEDULED, names=("sde_step_with_logprob",)),
        _scheduled,
        FLOAT32,
    ),
    _case(
        "mix-grpo",
        Source(repo="Tencent-Hunyuan/MixGRPO", path="fastvideo/utils/sampling_utils.py", names=("flow_grpo_step",)),
        _mixed,
        FLOAT32,
    ),
    Case(
        method="mix-grpo-flash",
        source=Source(
            repo="Tencent-Hunyuan/MixGRPO",
            path="fastvideo/utils/sampling_utils.py",
            names=("multistep_dpm_solver_second_order_update", "_sigma_to_alpha_sigma_t"),
        ),
        theirs=lambda functions, rows: _differentiated(at := _later(rows), _after_the_window(functions, at)),
        ours=lambda rows: _differentiated(at := _later(rows), _of_second_order(at)),
        note=FLOAT32,
    ),
    _case(
        "dance-grpo",
        Source(repo="XueZeyue/DanceGRPO", path="fastvideo/train_grpo_flux_lora.py", names=("flux_step",)),
        _danced,
        FLOAT32,
    ),
    _case(
        "flow-grpo-fast",
        Source(
            repo="Tencent-Hunyuan/UniRL",
            path="unirl/sde/kernels.py",
            names=("CPSSDEStrategy.step", "CPSSDEStrategy.compute_log_prob"),
        ),
        _strategy,
        FLOAT32,
    ),
)
