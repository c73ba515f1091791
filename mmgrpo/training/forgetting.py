"""Weights that have unlearned the samples of a step so far, stored under a name for its further rounds.

Axes: B rows, T decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmgrpo.differentiating import backward
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.maths.forgetting import FORGETTING, Forgetting, forgetting_loss
from mmgrpo.policy import Policy, SupportsNamedWeights
from mmgrpo.training.streaming import cells, evaluations
from mmgrpo.types import Rollout
from mmgrpo.values import ENTROPY


def keep_forgetting(policy: Policy, rollouts: Sequence[Rollout], config: Forgetting, job: Job) -> int:
    """Keeps ``FORGETTING``; the weights that are trained stay as they are.

    The loss is a mean over the rows of all processes of the mean over a row's kept decisions. A collective.

    Args:
        policy: the policy that sampled the rows, with unchanged weights.
        rollouts: this process's rows of the step so far.
        config: the step.
        job: the processes.

    Returns:
        Forwards that this process took.

    Raises:
        ConfigError: the policy keeps no weights.
    """
    if not isinstance(policy, SupportsNamedWeights):
        raise ConfigError(f"the strategy samples with named weights, but {type(policy).__name__} does not support them")
    num_rows = sum(job.gather(sum(int(rollout.mask_BT.any(1).sum()) for rollout in rollouts)))
    entropy, count, num_forwards = _backward(policy, rollouts, config, num_rows)
    job.sum_gradients(policy.trainable)  # all have met, and none takes turns while the weights are elsewhere
    entropies, counts = zip(*job.gather((entropy, count)), strict=True)
    rate = config.rate if sum(entropies) < config.below * sum(counts) else 0.0
    before = [parameter.detach().clone() for parameter in policy.trainable]
    with torch.no_grad():
        for parameter in policy.trainable:
            if parameter.grad is not None and rate:
                parameter -= rate * parameter.grad
            parameter.grad = None
        policy.weights.store(FORGETTING)
        for parameter, original in zip(policy.trainable, before, strict=True):
            parameter.copy_(original)
    return num_forwards


def _backward(policy: Policy, rollouts: Sequence[Rollout], config: Forgetting, num_rows: int) -> tuple[float, int, int]:
    """Adds the loss's gradient; gives the sum of the entropies, how many, and the forwards that it took."""
    entropy, count, num_forwards = 0.0, 0, 0
    for rollout in rollouts:
        for part in evaluations(policy, rollout, (ENTROPY,)):
            keep_BT = cells(rollout.mask_BT, part).to(part.logprob_BT.device)
            rows = slice(None) if part.rows is None else part.rows
            length_B1 = rollout.mask_BT[rows].sum(1, keepdim=True).to(part.logprob_BT.device)
            loss_BT = forgetting_loss(part.logprob_BT, keep_BT, limit=config.limit) / length_B1.clamp(min=1)
            backward(loss_BT.sum() / num_rows)
            entropy += float(part.values[ENTROPY].detach().where(keep_BT, 0.0).sum())
            count += int(keep_BT.sum())
            num_forwards += part.num_forwards
    return entropy, count, num_forwards
