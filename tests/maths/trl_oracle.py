"""TRL's losses called on a stub, and our objective on the same matrices.

``options`` are those of TRL's GRPOConfig, with ``trainer`` naming the class whose loss is called.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.maths.objectives import Objective
from mmgrpo.values import ENTROPY, from_reference

ARGS = {
    "delta": None,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
    "use_bias_correction_kl": True,
    "steps_per_generation": 1,
}
ATTRIBUTES = {
    "loss_type": "grpo",
    "importance_sampling_level": "token",
    "beta": 0.0,
    "epsilon": 0.2,
    "epsilon_high": None,
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "max_completion_length": 8,
    "entropy_coef": 0.0,
    "gradient_accumulation_steps": 1,
}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What both losses are given; ``engine_BT`` is TRL's weight for sampling with another engine."""

    logprob_BT: Tensor
    old_logprob_BT: Tensor
    ref_logprob_BT: Tensor
    entropy_BT: Tensor
    mask_BT: Tensor
    advantage_B: Tensor
    engine_BT: Tensor | None = None
    num_items: int | None = None

    @property
    def num_decisions(self) -> int:
        """TRL's ``num_items_in_batch``: the kept decisions of the generation batch."""
        return int(self.mask_BT.sum()) if self.num_items is None else self.num_items


@dataclass(frozen=True)
class Outcome:
    """A loss and its gradients with respect to the log-probabilities and the entropies."""

    value: float
    logprob_grad_BT: Tensor
    entropy_grad_BT: Tensor

    def distance(self, other: Outcome) -> float:
        """The largest absolute difference."""
        parts = [
            (self.logprob_grad_BT - other.logprob_grad_BT).abs().max().item(),
            (self.entropy_grad_BT - other.entropy_grad_BT).abs().max().item(),
        ]
        return max(abs(self.value - other.value), *parts)


class Accelerator:
    """One process."""

    num_processes, process_index, sync_gradients, device = 1, 0, True, torch.device("cpu")

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor

    gather_for_metrics = gather

    def reduce(self, tensor: Tensor, reduction: str = "sum") -> Tensor:
        return tensor

    def pad_across_processes(self, tensor: Tensor, dim: int = 0, pad_index: float = 0) -> Tensor:
        return tensor


def outcome(loss: Tensor, logprob_BT: Tensor, entropy_BT: Tensor) -> Outcome:
    grads = torch.autograd.grad(loss, [logprob_BT, entropy_BT], allow_unused=True)
    logprob_grad_BT, entropy_grad_BT = (
        torch.zeros_like(x) if grad is None else grad for grad, x in zip(grads, (logprob_BT, entropy_BT), strict=True)
    )
    return Outcome(loss.item(), logprob_grad_BT, entropy_grad_BT)


def trl_outcome(batch: Batch, options: Mapping[str, Any]) -> Outcome:
    """The loss of GRPOTrainer, GMPOTrainer or RLOOTrainer."""
    with warnings.catch_warnings(action="ignore"):  # gmpo is experimental in TRL
        from trl.experimental.gmpo import GMPOTrainer
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.rloo_trainer import RLOOTrainer

    settings = {**ARGS, **ATTRIBUTES, **options}
    trainer = {"grpo": GRPOTrainer, "gmpo": GMPOTrainer, "rloo": RLOOTrainer}[settings.pop("trainer", "grpo")]  # pyrefly: ignore[bad-index]
    high = settings["epsilon_high"]
    logprob_BT = batch.logprob_BT.clone().requires_grad_()
    entropy_BT = batch.entropy_BT.clone().requires_grad_()
    stub = SimpleNamespace(
        accelerator=Accelerator(),
        args=SimpleNamespace(**{name: settings[name] for name in ARGS}),
        aux_loss_enabled=False,
        model=SimpleNamespace(training=True),
        use_vllm=batch.engine_BT is not None,
        vllm_importance_sampling_correction=batch.engine_BT is not None,
        _entropy_bonus_enabled=settings["entropy_coef"] != 0,
        use_adaptive_entropy=False,
        current_gradient_accumulation_steps=settings["gradient_accumulation_steps"],
        epsilon_low=settings["epsilon"],
        _metrics={"train": defaultdict(list)},
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        **{name: settings[name] for name in ATTRIBUTES if name not in ("epsilon", "epsilon_high")},
    )
    stub.epsilon_high = settings["epsilon"] if high is None else high
    stub.get_high_entropy_mask = MethodType(GRPOTrainer.get_high_entropy_mask, stub)
    stub._get_per_token_logps_and_entropies = lambda *args, **kwargs: (logprob_BT, entropy_BT, None)
    ids_BT = torch.zeros(logprob_BT.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids_BT[:, :1],
        "prompt_mask": ids_BT[:, :1] + 1,
        "completion_ids": ids_BT,
        "completion_mask": batch.mask_BT.long(),
        "advantages": batch.advantage_B,
        "num_items_in_batch": torch.tensor(float(batch.num_decisions)),
        "old_per_token_logps": batch.old_logprob_BT,
        "ref_per_token_logps": batch.ref_logprob_BT,
        "old_logps": (batch.old_logprob_BT * batch.mask_BT).sum(1),
    }
    if batch.engine_BT is not None:
        inputs["importance_sampling_ratio"] = batch.engine_BT
    return outcome(trainer._compute_loss(stub, None, inputs), logprob_BT, entropy_BT)  # pyrefly: ignore[bad-argument-type]


def our_outcome(batch: Batch, objective: Objective, totals: Totals) -> Outcome:
    """The loss of an objective, selections applied."""
    logprob_BT = batch.logprob_BT.clone().requires_grad_()
    entropy_BT = batch.entropy_BT.clone().requires_grad_()
    weight_BT = objective.weights(batch.mask_BT, totals).double()
    old_BT = batch.old_logprob_BT
    if batch.engine_BT is not None and objective.ratio_level == "trajectory":
        old_BT = old_BT - batch.engine_BT.log()  # vespo has the engine's weight within its ratio
    elif batch.engine_BT is not None:
        weight_BT = weight_BT * batch.engine_BT
    divergence = objective.divergence or "k3"
    kl_BT = LOGPROB_DIVERGENCES[divergence](logprob_BT, batch.ref_logprob_BT)
    decisions = Decisions(
        logprob_BT=logprob_BT,
        old_logprob_BT=old_BT,
        advantage_BT=batch.advantage_B[:, None].expand(batch.mask_BT.shape),
        mask_BT=batch.mask_BT,
        weight_BT=weight_BT,
        mean_weight_BT=objective.mean_weights(batch.mask_BT, totals).double(),
        segment_BT=torch.zeros(batch.mask_BT.shape, dtype=torch.long),
        values={from_reference(divergence): kl_BT, ENTROPY: entropy_BT},
    )
    selected = objective.selected(decisions, {ENTROPY: batch.entropy_BT[batch.mask_BT]})
    return outcome(objective(selected).value, logprob_BT, entropy_BT)


def totals_as_trl(batch: Batch, options: Mapping[str, Any]) -> Totals:
    """What one of an update's micro-batches averages over, in TRL's counting."""
    settings = {**ARGS, **ATTRIBUTES, **options}
    accumulation = settings["gradient_accumulation_steps"]
    if settings["loss_type"] == "bnpo":  # each micro-batch separately
        num_decisions = int(batch.mask_BT.sum()) * accumulation  # pyrefly: ignore[unsupported-operation]
    else:
        num_decisions = batch.num_decisions * accumulation / settings["steps_per_generation"]  # pyrefly: ignore[unsupported-operation]
    return Totals(num_samples=len(batch.mask_BT) * accumulation, num_decisions=max(num_decisions, 1))  # pyrefly: ignore[unsupported-operation]  # pyrefly: ignore[bad-argument-type]
