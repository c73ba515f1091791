"""The section ``views``: each view built once, and everything that reads one checked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig, ViewConfig
from mmgrpo.config.registry import suggestion
from mmgrpo.data.corruption import IMAGE_CONTEXTS
from mmgrpo.data.history import Context
from mmgrpo.errors import ConfigError
from mmgrpo.policy import Policy, SupportsNamedWeights
from mmgrpo.training.build import build_policy
from mmgrpo.training.ema import Average
from mmgrpo.training.views import View
from mmgrpo.types import Prompt
from mmgrpo.values import REFERENCE


def build_views(
    algorithm: Algorithm, policy: Policy, *, device: str | torch.device = "cpu", average: Average | None = None
) -> dict[str, View]:
    """The views of a run.

    Args:
        algorithm: of the run.
        policy: that is trained.
        device: where further policies are loaded.
        average: of the weights, if one is kept.

    Returns:
        Views by name.

    Raises:
        ConfigError: a view cannot be made, a view is read that is nowhere, or a gradient is to go through one that is
            not trained.
    """
    templates, config = algorithm.view_templates, algorithm.config
    views = {
        name: _view(name, view, templates.get(name), config, policy, device, average)
        for name, view in config.views.items()
    }
    for name, where in algorithm.views_read().items():
        if name not in views and not _has_weights(policy, name):
            raise ConfigError(
                f"{where} reads the view {name!r}, which is nowhere: describe it under views:"
                f"{suggestion(name, [*views, REFERENCE])}"
            )
    for name in sorted(algorithm.objective.through):
        if name not in views or not views[name].trained:
            raise ConfigError(
                f"views.{name} is not of the weights of now, so no gradient goes through it: leave out grad"
            )
    return views


def require_images(prompts: Sequence[Prompt], algorithm: Algorithm) -> None:
    """Checks that the contexts of images have some to change: without any they show nothing in the whole run.

    Args:
        prompts: what the run trains on.
        algorithm: of the run.

    Raises:
        ConfigError: a view or ``rollout.prompt_templates`` changes the images of prompts, and no prompt has one.
    """
    config = algorithm.config
    named = {f"views.{name}": view.context for name, view in config.views.items()}
    named |= {
        f"rollout.prompt_templates.{label}": context for label, context in config.rollout.prompt_templates.items()
    }
    of_images = {key: context.name for key, context in named.items() if context and context.name in IMAGE_CONTEXTS}
    if not of_images or any(len(prompt.images) for prompt in prompts):
        return
    readers = {f"views.{view}": f" and what reads it ({where})" for view, where in algorithm.views_read().items()}
    raise ConfigError(
        "; ".join(
            f"{key}: {context} changes the images of a prompt, and none of the {len(prompts)} prompts has one: train "
            f"on rows with images, or leave out {key}{readers.get(key, '')}"
            for key, context in of_images.items()
        )
    )


def _view(
    name: str,
    view: ViewConfig,
    context: Context | None,
    config: RunConfig,
    policy: Policy,
    device: str | torch.device,
    average: Average | None,
) -> View:
    if view.policy is not None:
        other = build_policy(config.model_copy(update={"policy": view.policy}), device)
        return View(name=name, policy=other, context=context)
    if view.weights == "now":
        return View(name=name, moves=True, trained=True, context=context)
    if view.weights == "old":
        return View(name=name, using=nullcontext, context=context)
    if view.weights == "average":
        if average is None:
            raise ConfigError(f"views.{name}: no average is kept: set update.ema, or take other weights")
        if average.is_sharded:
            raise ConfigError(
                f"views.{name}: the average of weights that lie in parts cannot be looked through; train "
                "adapters (policy.lora), or take the reference with reference.ema"
            )
        return View(name=name, using=average.applied, moves=True, context=context)
    if view.weights == REFERENCE:
        return View(name=name, using=policy.reference, context=context)
    if not isinstance(policy, SupportsNamedWeights) or not _has_weights(policy, view.weights):
        raise ConfigError(
            f"views.{name}: no weights are kept under {view.weights!r}"
            f"{suggestion(view.weights, ['now', 'old', 'average', REFERENCE])}"
        )
    weights = view.weights
    return View(name=name, using=lambda: policy.weights.using(weights), context=context)


def _has_weights(policy: Policy, name: str) -> bool:
    if not isinstance(policy, SupportsNamedWeights):
        return False
    try:
        with policy.weights.using(name):
            return True
    except ConfigError:
        return False
