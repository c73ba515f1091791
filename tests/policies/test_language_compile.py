"""Compiled decoder layers: one graph for all layers, the same log-probabilities in scoring and in updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.transformer import Transformer
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import GPT2Config, GPT2LMHeadModel

from mmgrpo.types import Rollout
from tests.policies.contract import largest_difference
from tests.policies.tiny_language import policy_of, prompts_of

SEED = 3


def updated(policy: LanguagePolicy, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Log-probabilities under grad (B, T), and the gradient of their sum."""
    logprob_BT = torch.zeros_like(rollout.old_logprob_BT)
    for evaluation in policy.evaluate(rollout):
        assert evaluation.rows is not None
        rows = torch.tensor(list(evaluation.rows))
        logprob_BT[rows[:, None], torch.tensor(list(evaluation.columns))] = evaluation.logprob_BT.detach()
        (evaluation.logprob_BT * rollout.mask_BT[rows][:, list(evaluation.columns)]).sum().backward()
    return logprob_BT, torch.cat([p.grad.flatten() for p in policy.trainable if p.grad is not None])


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl"])
def test_scoring_and_update_agree_and_equal_the_uncompiled_policy(name: str, checkpointing: bool) -> None:
    torch.compiler.reset()
    counters.clear()
    settings: dict[str, Any] = {"gradient_checkpointing": checkpointing, "rescore": True}
    plain, compiled = policy_of(name, **settings), policy_of(name, compile=True, **settings)
    assert "prompts once per group" in str(compiled.path)
    rollout = compiled.rollout(prompts_of(name), group_size=3, seed=SEED)
    (expected_BT, expected_gradient), (actual_BT, gradient) = updated(plain, rollout), updated(compiled, rollout)
    assert counters["stats"]["unique_graphs"] <= 6  # a prompt's and an answer's layer, with and without grad; decoding
    assert largest_difference(actual_BT, rollout.old_logprob_BT, rollout.mask_BT) == 0
    assert largest_difference(actual_BT, expected_BT, rollout.mask_BT) < 2e-6
    assert float((gradient - expected_gradient).norm() / expected_gradient.norm()) < 1e-5


def test_layers_are_compiled_under_any_name_in_the_decoder() -> None:
    """Those of GPT-2 are ``h``."""
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=300, bos_token_id=1, eos_token_id=1)
    model = GPT2LMHeadModel(config).eval()
    assert Transformer(model, autocast=None, compiled=True).compiles
    assert all(getattr(layer.forward, "is_compiled", False) for layer in model.transformer.h)
