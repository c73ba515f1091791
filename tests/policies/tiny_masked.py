"""Policies on the tiny masked models: prompts of two lengths, a fresh model for every test."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from mmgrpo.policies.masked import MaskedPolicy
from torch import nn

from mmgrpo.policy import Policy
from mmgrpo.types import Prompt
from tests.tiny.masked_models import TINY, make

TEXTS = ("a red circle", "what colour is the large house on the left")


@cache
def _construct(name: str) -> tuple[Any, ...]:
    return make(name)


def parts_of(name: str) -> tuple[Any, ...]:
    """The parts of a new policy; all those of a name are equal."""
    return copy.deepcopy(_construct(name))


def policy_of(name: str, *, batch: int = 8, **settings: Any) -> MaskedPolicy:
    """A new policy; the adapters' first factors are the same each time."""
    options = {**TINY[name].settings, "rollout_batch": batch, "update_batch": batch, **settings}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MaskedPolicy(*parts_of(name), settings=options)


def prompts_of() -> list[Prompt]:
    """Two, of different lengths."""
    return [Prompt(text) for text in TEXTS]


def parameters_of(policy: Policy) -> list[nn.Parameter]:
    """Every parameter, trained or not."""
    assert isinstance(policy, MaskedPolicy)
    modules = [*policy.predictor.spec.modules.values(), *policy.predictor.spec.frozen]
    return [parameter for module in modules for parameter in module.parameters()]
