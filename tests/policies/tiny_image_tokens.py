"""Policies on the tiny models that draw out of tokens: prompts of mixed lengths, a fresh model for every test."""

from __future__ import annotations

import copy
from typing import Any

import torch
from mmgrpo.policies.image_tokens import ImageTokensPolicy
from torch import nn

from mmgrpo.policy import Policy
from mmgrpo.types import Prompt
from tests.tiny.image_tokens import BEGIN, GRID, make

TEXTS = ("a red fox", "two blue squares on the table")
DRAWING: dict[str, Any] = {"guidance_scale": 3.0, "temperature": 3.0}
SETTINGS: dict[str, dict[str, Any]] = {"llamagen": {"grid": GRID, "begin": BEGIN}}


def policy_of(name: str, *, batch: int = 8, **settings: Any) -> ImageTokensPolicy:
    """A new policy; all those of a name have the same weights."""
    model, processor, autoencoder = make(name)
    options = {**DRAWING, **SETTINGS.get(name, {}), "rollout_batch": batch, **settings}
    if batch == 1:
        options["update_tokens"] = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of fresh adapters
        return ImageTokensPolicy(
            copy.deepcopy(model), copy.deepcopy(processor), options, autoencoder=copy.deepcopy(autoencoder)
        )


def prompts_of() -> list[Prompt]:
    """Two prompts of different lengths."""
    return [Prompt(text) for text in TEXTS]


def parameters_of(policy: Policy) -> list[nn.Parameter]:
    """Every parameter of the model, trained or not."""
    assert isinstance(policy, ImageTokensPolicy)
    return list(policy.model.parameters())
