"""What an update does to weights: the optimizer, the average of the weights, and the reference.

The optimizer takes no step from a gradient that is not finite. One update is: clear, accumulate, apply. Gradients that
were in ``grad`` before, of the warm-up or of a caller's own backward, are not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import EmaConfig, ReferenceConfig
from mmgrpo.config.update import UpdateConfig
from mmgrpo.differentiating import scaled
from mmgrpo.distributed.job import Job
from mmgrpo.distributed.parameter_shards import (
    ParameterShard,
    as_piece,
    assign_gradients,
    local_shards,
    slice_for_shard,
)
from mmgrpo.errors import ConfigError, NonFiniteError
from mmgrpo.explain.view_passes import reads_reference
from mmgrpo.policy import Policy, SupportsNamedWeights
from mmgrpo.training.loss_scaler import LossScaler
from mmgrpo.training.update_hooks import UpdateHook
from mmgrpo.values import REFERENCE

RECENT, MAX_SKIPPED = 20, 5
"""Of the last 20 updates at most 5 may be skipped, or the run stops; both are choices of this project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The outcome of one gradient.

    Attributes:
        grad_norm: of all processes' gradient together, before it is clipped.
        lr: learning rate of the update.
        skipped: whether that norm was not finite, so that weights, optimizer, schedule and average did not change.
    """

    grad_norm: float
    lr: float
    skipped: bool


class GuardedOptimizer:
    """Optimizer, schedule and clipping over a fixed list of parameters, the same on every process.

    Attributes:
        parameters: the trained parameters.
        optimizer: torch's.
        schedule: of the learning rate; like transformers' it counts the updates that were taken.
        max_grad_norm: the gradient is scaled down to this norm; None leaves it.
        is_frozen: whether gradients are measured and dropped, so that no weight changes.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        schedule: LambdaLR,
        *,
        job: Job,
        max_grad_norm: float | None,
        average: Average | None = None,
        hooks: Mapping[str, UpdateHook] | None = None,
        scaler: LossScaler | None = None,
    ) -> None:
        """Puts the parts together.

        Args:
            parameters: the trained parameters, in a fixed order.
            optimizer: over this process's part of them: ``local_shards``.
            schedule: of its learning rate.
            job: the processes, whose gradients are added.
            max_grad_norm: the gradient is scaled down to this norm; None leaves it.
            average: follows the weights.
            hooks: the hooks around each step, in order, by name.
            scaler: the scale of losses; None: 1.
        """
        self.parameters = list(parameters)
        self._shards = local_shards(parameters)
        self.optimizer = optimizer
        self.schedule = schedule
        self._job = job
        self.max_grad_norm = max_grad_norm
        self.is_frozen = False
        self._average = average
        self._hooks = dict(hooks or {})
        self._scaler = scaler
        self._recent: list[bool] = []

    def begin(self, update: UpdateConfig, *, is_frozen: bool) -> None:
        """Sets the values that may differ from step to step."""
        self.max_grad_norm, self.is_frozen = update.optimizer.max_grad_norm, is_frozen

    def clear(self) -> None:
        """Forgets every gradient."""
        for parameter in (*self.parameters, *self._shards):
            parameter.grad = None

    def accumulating(self) -> AbstractContextManager[None]:
        """A context in which losses have this optimizer's scale."""
        return scaled(1.0 if self._scaler is None else self._scaler.scale)

    def has_overflowed(self) -> bool:
        """Whether scaled gradients of a process are not finite, and to be accumulated again at half the scale.

        A collective in float16. Gradients that are not finite at scale 1 are no overflow: ``apply`` skips them.
        """
        if self._scaler is None:
            return False
        is_finite = all(bool(p.grad.isfinite().all()) for p in self.parameters if p.grad is not None)
        return not all(self._job.gather_processes(is_finite)) and self._scaler.lower()

    def apply(self) -> Applied:
        """One update from the gradients of all processes, or none if they are not finite; clears them either way."""
        self._job.sum_gradients(self.parameters)
        assign_gradients(self.parameters, self._shards)
        if all(parameter.grad is None for parameter in self._shards):
            for parameter in self._shards:  # no gradient: the optimizer still takes its step, with zeros
                parameter.grad = torch.zeros_like(parameter)
        if self._scaler is not None:
            torch._foreach_mul_([p.grad for p in self._shards if p.grad is not None], 1 / self._scaler.scale)
        hooks = [] if self.is_frozen else list(self._hooks.values())
        for hook in hooks:
            hook.before()
        limit = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        norm = self._job.grad_norm(self._shards)
        torch.nn.utils.clip_grads_with_norm_(self._shards, limit, norm)
        skipped, lr = not bool(norm.isfinite()), float(self.schedule.get_last_lr()[0])
        if self._scaler is not None and not skipped:
            self._scaler.count_finite()
        if not skipped and not self.is_frozen:
            self.optimizer.step()
            for hook in hooks:
                hook.after()
            if self._average:
                self._average.update()
            self.schedule.step()
        self.clear()
        self._recent = [*self._recent[1 - RECENT :], skipped]
        return Applied(grad_norm=float(norm), lr=lr, skipped=skipped)

    def forget(self) -> None:
        """Resets its moments; the schedule continues."""
        self.optimizer.state.clear()

    def require_progress(self) -> None:
        """Raises NonFiniteError once more than a quarter of the last 20 updates were skipped."""
        num_skipped = sum(self._recent)
        if num_skipped > MAX_SKIPPED:
            raise NonFiniteError(
                f"{num_skipped} of the last {len(self._recent)} updates had a gradient that is not finite and were "
                f"skipped, more than {MAX_SKIPPED} of {RECENT}; "
                "skipped.jsonl names the samples. Look at their rewards and log-probabilities; clip the rewards, or "
                "lower the learning rate and resume from a checkpoint"
            )

    def require_finite_weights(self) -> None:
        """Raises NonFiniteError if a weight is infinite or no number, before it is saved over a good one.

        A collective for sharded weights.
        """
        finite = all(bool(parameter.isfinite().all()) for parameter in self._shards)
        if not (all(self._job.gather(finite)) if self._job.is_sharded else finite):
            raise NonFiniteError(
                "weights are infinite or NaN, so they are not saved; resume from the newest checkpoint with a "
                "lower learning rate"
            )

    def state_dict(self) -> dict[str, Any]:
        """Optimizer, schedule and the skipped ones of the last updates; of sharded weights, the shards."""
        optimizer = self.optimizer.state_dict()
        return {
            "optimizer": {**optimizer, "state": self._each(optimizer["state"], as_piece)},
            "schedule": self.schedule.state_dict(),
            "recently_skipped": self._recent,
            "hooks": {name: hook.state_dict() for name, hook in self._hooks.items()},
            **({} if self._scaler is None else {"scaler": self._scaler.state_dict()}),
        }

    def load_state_dict(self, state: dict[str, Any], *, num_updates: int | None = None) -> None:
        """Restores the moments and the place in the schedule; rates, betas and the rest stay as they were built.

        Args:
            state: of ``state_dict``.
            num_updates: the place in the schedule; None: where it was.
        """
        settings = [{key: value for key, value in group.items() if key != "params"} for group in self._groups]
        base_lrs = list(self.schedule.base_lrs)
        moments = state["optimizer"]
        self.optimizer.load_state_dict({**moments, "state": self._each(moments["state"], slice_for_shard)})
        self.schedule.load_state_dict(state["schedule"])
        self.schedule.base_lrs = base_lrs
        self.schedule.last_epoch = self.schedule.last_epoch if num_updates is None else num_updates
        factors = [factor(self.schedule.last_epoch) for factor in self.schedule.lr_lambdas]
        for group, built, base_lr, factor in zip(self._groups, settings, base_lrs, factors, strict=True):
            group.update({**built, "lr": base_lr * factor})
        self.schedule._last_lr = [group["lr"] for group in self._groups]
        self._recent = list(state.get("recently_skipped", []))
        if self._scaler is not None and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])
        for name in self._hooks.keys() & state.get("hooks", {}).keys():
            self._hooks[name].load_state_dict(state["hooks"][name])

    def _each(
        self, states: Mapping[int, Mapping[str, Any]], of: Callable[[Any, nn.Parameter], Any]
    ) -> dict[int, dict[str, Any]]:
        """The optimizer's state of each parameter, tensor by tensor; torch numbers them in their order."""
        return {
            number: {name: of(tensor, self._shards[number]) for name, tensor in state.items()}
            for number, state in states.items()
        }

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups


def ema_decay(num_updates: int, config: EmaConfig) -> float:
    """The share of the average that stays when the weights after ``num_updates`` optimizer updates join it.

    share = min((1 + n) / (10 + n), decay) ** times where n + 1 is a multiple of ``every``, 1 elsewhere.

    Source: flow_grpo, flow_grpo/ema.py, EMAModuleWrapper.step, which its scripts call after each micro-batch with the
    number of optimizer updates so far: a due update is averaged in as often as it has micro-batches (``times``).
    """
    if (num_updates + 1) % config.every:
        return 1.0
    return min((1 + num_updates) / (10 + num_updates), config.decay) ** config.times


class Average:
    """Exponential moving average of a fixed list of parameters, from their values when it is made."""

    def __init__(self, parameters: Sequence[nn.Parameter], config: EmaConfig) -> None:
        self._parameters = local_shards(parameters)
        self._config = config
        self._updates = 0
        self._average = [parameter.detach().clone() for parameter in self._parameters]

    @property
    def is_sharded(self) -> bool:
        """Whether it is of sharded weights, which all processes must swap together."""
        return any(isinstance(parameter, ParameterShard) for parameter in self._parameters)

    @torch.no_grad()
    def restart(self) -> None:
        """Restarts from the current parameters."""
        self._updates = 0
        for average, parameter in zip(self._average, self._parameters, strict=True):
            average.copy_(parameter)

    @torch.no_grad()
    def update(self) -> None:
        """Counts an optimizer update, and averages when it is due."""
        self._updates += 1
        share = ema_decay(self._updates, self._config)
        if share < 1:
            for average, parameter in zip(self._average, self._parameters, strict=True):
                average.lerp_(parameter, 1 - share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within it the parameters hold their averages."""
        trained = [parameter.detach().cpu().clone() for parameter in self._parameters]
        self._set(self._average)
        try:
            yield
        finally:
            self._set(trained)

    def state_dict(self) -> dict[str, Any]:
        """The averages and their number of updates; of sharded weights, the shards."""
        pairs = zip(self._average, self._parameters, strict=True)
        return {"average": [as_piece(average, parameter) for average, parameter in pairs], "updates": self._updates}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""
        for average, stored, parameter in zip(self._average, state["average"], self._parameters, strict=True):
            average.copy_(slice_for_shard(stored, parameter))
        self._updates = state["updates"]

    @torch.no_grad()
    def _set(self, values: Sequence[torch.Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.copy_(value)


def require_movable(policy: Policy, config: ReferenceConfig | None) -> None:
    """Raises ConfigError if the reference is to move and the policy keeps no weights."""
    if config is not None and not isinstance(policy, SupportsNamedWeights):
        raise ConfigError(
            f"update.reference: {type(policy).__name__} keeps no weights under names, so its reference stays"
        )


def move_reference(policy: Policy, config: ReferenceConfig | None, step: int, optimizer: GuardedOptimizer) -> None:
    """Moves the reference after a step, if that is due; right after a reset the divergence from it is 0.

    Every process does the same with the same weights.

    Args:
        policy: whose reference it is.
        config: the section ``update.reference``; None: nothing moves.
        step: steps done.
        optimizer: is reset too, if configured.
    """
    if config is None or not isinstance(policy, SupportsNamedWeights):
        return
    if config.reset_every is not None and step % config.reset_every == 0:
        policy.weights.store(REFERENCE)
        if config.reset_optimizer:
            optimizer.forget()
    elif config.ema is not None and step % config.ema.every == 0:
        policy.weights.store(REFERENCE, decay=config.ema.decay)


def ensure_reference(policy: Policy, algorithm: Algorithm) -> None:
    """Has a full fine-tune copy its weights before the first update, if a step may read the reference."""
    if reads_reference(algorithm):
        with policy.reference():
            pass
