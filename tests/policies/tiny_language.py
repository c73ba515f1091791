"""Policies on the tiny language models: prompts of mixed lengths and images, a fresh model for every test."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from mmgrpo.policies.language import LanguagePolicy
from PIL import Image
from torch import nn

from mmgrpo.policy import Policy
from mmgrpo.types import Prompt
from tests.policies.tiny_policies import measurement_key
from tests.tiny.language_models import TINY, make

TEXTS = ("what number is this", "how many red squares do you see in the picture on the left")
TEMPERATURE = 4.0  # logits of a few units, as of a trained model; a float32 rounds in proportion to its size


@cache
def _construct(name: str) -> tuple[Any, Any]:
    return make(name)


def policy_of(name: str, *, batch: int = 8, **settings: Any) -> LanguagePolicy:
    """A new policy; all those of a name have the same weights."""
    model, processor = _construct(name)
    options = {"max_new_tokens": 7, "temperature": TEMPERATURE, "rollout_batch": batch, **settings}
    if batch == 1:
        options["update_tokens"] = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of fresh adapters
        return LanguagePolicy(copy.deepcopy(model), processor, options)


_prompts_of_kind: dict[bytes, Mapping[Any, Sequence[Any]]] = {}


def measured_policy_of(name: str, **settings: Any) -> LanguagePolicy:
    """``policy_of``, with the rows on which an equal policy has compared its forward paths, once per process.

    That takes most of the time of a small run. A policy that selects any but its first path compares them itself.
    """
    of_paths = {key: value for key, value in settings.items() if key != "max_new_tokens"}  # no path depends on it
    key = measurement_key(policy_of, prompts_of(name), {"name": name, **of_paths})
    if key not in _prompts_of_kind:
        selector = (equal := policy_of(name, **settings))._selector
        first = selector.path
        selector.see([equal._encoder(prompt) for prompt in prompts_of(name)])
        _prompts_of_kind[key] = selector._prompts_of_kind if selector.path is first else {}
    policy = policy_of(name, **settings)
    policy._selector._prompts_of_kind = {kind: list(prompts) for kind, prompts in _prompts_of_kind[key].items()}
    return policy


def build_llama() -> tuple[Any, Any]:
    """For a configuration that names a Python function."""
    return copy.deepcopy(_construct("llama"))


def picture(width: int = 16, height: int = 16, seed: int = 0) -> Image.Image:
    """Noise, the same for a seed."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def prompts_of(name: str) -> list[Prompt]:
    """Two prompts of different lengths: one with an image, one with several where the model takes them."""
    tiny = TINY[name]
    first = [picture()] if tiny.images else []
    second = [picture(24, 16, seed=1), picture(seed=2)] if tiny.several else [picture(24, 16, seed=1)] * len(first)
    return [Prompt(TEXTS[0], images=first), Prompt(TEXTS[1], images=second)]


def parameters_of(policy: Policy) -> list[nn.Parameter]:
    """Every parameter of the model, trained or not."""
    assert isinstance(policy, LanguagePolicy)
    return list(policy.model.parameters())
