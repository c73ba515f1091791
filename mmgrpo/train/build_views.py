"""The section ``views``: each view built once, and everything that reads one checked."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from mmgrpo.config import RunConfig, ViewConfig
from mmgrpo.config.binding import bound, build_objective, views_read
from mmgrpo.config.registry import suggestion
from mmgrpo.data.contexts import CONTEXTS
from mmgrpo.data.history import Context
from mmgrpo.errors import ConfigError
from mmgrpo.policy import Keeping, Policy
from mmgrpo.train.build import build_policy
from mmgrpo.train.ema import Average
from mmgrpo.train.views import View
from mmgrpo.values import REFERENCE


def build_views(
    config: RunConfig, policy: Policy, *, device: str | torch.device = "cpu", average: Average | None = None
) -> dict[str, View]:
    """The views of a run.

    Args:
        config: the run.
        policy: that is trained.
        device: where further policies are loaded.
        average: of the weights, if one is kept.

    Returns:
        Views by name.

    Raises:
        ConfigError: a view cannot be made, a view is read that is nowhere, or a gradient is to go through one that is
            not trained.
    """
    views = {name: _view(name, one, config, policy, device, average) for name, one in config.views.items()}
    for name, where in views_read(config).items():
        if name not in views and not _is_kept(policy, name):
            raise ConfigError(
                f"{where} reads the view {name!r}, which is nowhere: describe it under views:"
                f"{suggestion(name, [*views, REFERENCE])}"
            )
    for name in sorted(build_objective(config.objective).through):
        if name not in views or not views[name].trained:
            raise ConfigError(
                f"views.{name} is not of the weights of now, so no gradient goes through it: leave out grad"
            )
    return views


def _view(
    name: str, one: ViewConfig, config: RunConfig, policy: Policy, device: str | torch.device, average: Average | None
) -> View:
    context: Context | None = None
    if one.context is not None:
        context = bound(f"views.{name}.context", CONTEXTS, one.context)()
    if one.policy is not None:
        other = build_policy(config.model_copy(update={"policy": one.policy}), device)
        return View(name=name, policy=other, context=context)
    if one.weights == "now":
        return View(name=name, moves=True, trained=True, context=context)
    if one.weights == "old":
        return View(name=name, using=nullcontext, context=context)
    if one.weights == "average":
        if average is None:
            raise ConfigError(f"views.{name}: no average is kept: set update.ema, or take other weights")
        if average.in_parts:
            raise ConfigError(
                f"views.{name}: the average of weights that lie in parts cannot be looked through; train "
                "adapters (policy.lora), or take the reference with reference.ema"
            )
        return View(name=name, using=average.applied, moves=True, context=context)
    if one.weights == REFERENCE:
        return View(name=name, using=policy.reference, context=context)
    if not isinstance(policy, Keeping) or not _is_kept(policy, one.weights):
        raise ConfigError(
            f"views.{name}: no weights are kept under {one.weights!r}"
            f"{suggestion(one.weights, ['now', 'old', 'average', REFERENCE])}"
        )
    weights = one.weights
    return View(name=name, using=lambda: policy.using(weights), context=context)


def _is_kept(policy: Policy, name: str) -> bool:
    if not isinstance(policy, Keeping):
        return False
    try:
        with policy.using(name):
            return True
    except ConfigError:
        return False
