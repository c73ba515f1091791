"""Losses of denoisers: of steps that are Gaussian, and of errors at noise levels.

Axes: P groups, G rows of a group, B rows, T steps or levels, D elements of a latent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.agreement.authors import Settings, Source
from benchmarks.agreement.comparing import Case, G, LossInputs, Numbers, P, Rows, T, loss
from mmgrpo.config.loading import find_config, read_layers
from mmgrpo.maths.matching import matching_errors
from mmgrpo.maths.terms.group_losses import optimality
from mmgrpo.values import DRIFT, of_view
from tests.configs.method_steps import Step

OMNI = Source(
    repo="verl-project/verl-omni", path="verl_omni/trainer/diffusion/diffusion_algos.py", names=("compute_loss",)
)
LIMIT = 5.0


def _omni(*names: str) -> Source:
    return replace(OMNI, names=names)


def _denoising_step(rows: Rows, **further: Any) -> Step:
    """Rows of which every step is."""
    return replace(rows.step(rows.reward_B), lengths=None, **further)


def _random(rows: Rows, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rows.seed), dtype=torch.float64)


def _errors(rows: Rows) -> Tensor:
    """Errors of the reference, (B, T)."""
    return _random(rows, len(rows.group_B), T).abs()


def _referred(rows: Rows) -> Step:
    return _denoising_step(rows, values={of_view("reference"): (-_errors(rows)).tolist()})


def _dgpo(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    # an error of e is that of predicting sqrt(e) where 0 is right
    rows, result = inputs.rows, []
    group = {"local_group_indices": rows.group_B, "num_groups": P}
    for level in range(T):
        error_B, reference_B1 = -inputs.logprob_BT[:, level], _errors(rows)[:, level, None].sqrt()
        right_B1, advantage_B = torch.zeros_like(reference_B1), inputs.advantage_BT[:, level]
        result.append(
            theirs.compute_group_dgpo_loss_allreduce(
                right_B1, reference_B1, right_B1, advantage_B, group, None, 100.0, G, error_B
            )
        )
    return torch.stack(result).mean()


def _crd(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    settings = SimpleNamespace(weight_temp=-1, crd_beta=1.0, crd_loss_type="mse")
    score_B = (inputs.logprob_BT - inputs.old_BT).mean(1)
    share_B = inputs.advantage_BT[:, 0].clamp(-LIMIT, LIMIT) / LIMIT / 2 + 0.5
    result = []
    for group in range(P):
        row_G = inputs.rows.group_B == group
        score_G, share_G = score_B[row_G], share_B[row_G]
        result.append(LIMIT * theirs._compute_crd_loss(settings, share_G, share_G, score_G.detach(), score_G))
    return torch.stack(result).mean()


def _drift(rows: Rows) -> Tensor:
    """Divergences from the policy that sampled, half of them below the limit of 1e-5; (B, T)."""
    return 1e-5 * _random(rows, len(rows.group_B), T).exp()


def _std(rows: Rows) -> Tensor:
    """Standard deviations of T steps."""
    return torch.linspace(0.9, 0.1, T, dtype=torch.float64)


def _drifting(rows: Rows) -> Step:
    std_BT = _std(rows).expand(len(rows.group_B), T)
    return _denoising_step(rows, values={DRIFT: _drift(rows).tolist()}, std=std_BT.tolist())


def _gaussian(mean: Tensor, old_mean: Tensor, std: Tensor) -> Tensor:
    """The divergence of Gaussians of one std."""
    return (mean - old_mean) ** 2 / (2 * std**2)


def _flow_dppo(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    std_T, drift_BT = _std(inputs.rows), _drift(inputs.rows)
    mean_BT1 = ((2 * drift_BT).sqrt() * std_T)[:, :, None]
    result, _ = theirs._flowdppo_kl_adv_loss(
        new_logp=inputs.logprob_BT,
        old_logp=inputs.old_BT,
        new_means=mean_BT1,
        old_means=torch.zeros_like(mean_BT1),
        advantages=inputs.advantage_BT,
        sigma_t=std_T[:, None],
        kl_mask_threshold=1e-5,
    )
    return result.mean()


def _guarded(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    # a step of length 1, since the weight of its length is left out
    settings, result = Settings(diffusion_loss=Settings(adv_clip_max=LIMIT, clip_ratio=2e-6)), []
    for step, std in enumerate(_std(inputs.rows)):
        mean_B = (2 * _drift(inputs.rows)[:, step]).sqrt() * std
        result.append(
            theirs.compute_loss(
                None,
                old_log_prob=inputs.old_BT[:, step],
                log_prob=inputs.logprob_BT[:, step],
                advantages=inputs.advantage_BT[:, step],
                config=settings,
                old_prev_sample_mean=torch.zeros_like(mean_B),
                prev_sample_mean=mean_B,
                std_dev_t=std,
                sqrt_dt=torch.ones(()),
            )[0]
        )
    return torch.stack(result).mean()


def _predictions(rows: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Velocities, current (with grad) and old, clean and noised samples: (B, D); their noise levels: (B,)."""
    B = len(rows.group_B)
    now_BD, old_BD, clean_BD, noised_BD = _random(rows, 4, B, 6)
    return now_BD.requires_grad_(), old_BD, clean_BD, noised_BD, torch.linspace(0.1, 0.9, B, dtype=torch.float64)


def _nft_ours(rows: Rows) -> Numbers:
    (term,) = read_layers(find_config("methods/diffusion-nft"))["objective"]["terms"]
    now_BD, old_BD, clean_BD, noised_BD, level_B = _predictions(rows)
    errors = matching_errors(clean_BD, noised_BD, level_B, now_BD, old_BD, strength=term["strength"])
    share_B = optimality(rows.reward_B[:, None], limit=term["limit"])[:, 0]
    error_B = share_B * errors.positive + (1 - share_B) * errors.negative
    return _with_gradient(error_B.mean() * term["limit"] / term["strength"], now_BD)


def _nft_theirs(theirs: SimpleNamespace, rows: Rows) -> Numbers:
    now_BD, old_BD, clean_BD, noised_BD, level_B = _predictions(rows)
    settings = Settings(mix_beta=1.0, adaptive_weight_min=1e-5, adv_clip_max=LIMIT, ref_kl_coef=0.0)
    value, _ = theirs.compute_loss(
        None,
        forward_prediction=now_BD,
        old_prediction=old_BD,
        ref_forward_prediction=old_BD,
        x0=clean_BD,
        xt=noised_BD,
        t_expanded=level_B[:, None],
        reward_prob=theirs._advantage_to_reward_prob(rows.reward_B, LIMIT, "all"),
        config=Settings(diffusion_loss=settings),
    )
    return _with_gradient(value, now_BD)


def _with_gradient(value: Tensor, velocity_BD: Tensor) -> Numbers:
    (gradient_BD,) = torch.autograd.grad(value, velocity_BD)
    return {"value": value.detach(), "gradient": gradient_BD}


SINGLE_PROCESS = SimpleNamespace(all_reduce=lambda total, op: None, ReduceOp=SimpleNamespace(SUM=None))
"""torch.distributed of one process."""

CASES: Sequence[Case] = (
    loss(
        "dgpo",
        Source(
            repo="Luo-Yihong/DGPO",
            path="scripts/train_sd3_dgpo.py",
            names=("compute_group_dgpo_loss_allreduce",),
            needs={"dist": SINGLE_PROCESS},
        ),
        _dgpo,
        over={"objective.terms": [{"name": "dgpo", "beta": 100.0}], "objective.kl.beta": 0.0},
        step=_referred,
        note="without its clip, which is in another function, and its divergence",
    ),
    loss(
        "crd",
        Source(
            repo="X-GenGroup/Flow-Factory",
            path="src/flow_factory/trainers/crd.py",
            names=("CRDTrainer._compute_crd_loss",),
        ),
        _crd,
        over={"objective.kl.beta": 0.0},
        step=_denoising_step,
        note="called group by group, of the mean over levels, without the divergence",
    ),
    loss(
        "flow-dppo",
        Source(
            repo="Tencent-Hunyuan/UniRL",
            path="unirl/algorithms/flowdppo.py",
            names=("_flowdppo_kl_adv_loss",),
            needs={"_gaussian_kl_div": _gaussian},
        ),
        _flow_dppo,
        step=_drifting,
    ),
    loss(
        "grpo-guard",
        _omni("GRPOGuardLoss.compute_loss"),
        _guarded,
        over={"objective.step_weight": None},
        step=_drifting,
        note="without the weight of a step's length",
    ),
    Case(
        method="diffusion-nft",
        source=_omni("DiffusionNFTLoss.compute_loss", "DiffusionNFTLoss._advantage_to_reward_prob"),
        theirs=_nft_theirs,
        ours=_nft_ours,
        note="of advantages, without the divergence; the gradient is by the velocity",
    ),
)
