"""Compiled denoisers: which parts are compiled, and equal results."""

from __future__ import annotations

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor, nn
from torch._dynamo.utils import counters

from mmgrpo.types import Rollout
from tests.policies.tiny_policies import pipeline_of, policy_of, prompts_of


def compiled(denoiser: nn.Module) -> set[str]:
    """Classes of the modules that are compiled by themselves."""
    return {type(module).__name__ for module in denoiser.modules() if module._compiled_call_impl is not None}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flux", {"FluxTransformerBlock", "FluxSingleTransformerBlock"}),
        ("sd3", {"SD3Transformer2DModel"}),  # diffusers declares no blocks of these
        ("sana", {"SanaTransformer2DModel"}),
    ],
)
def test_declared_repeated_blocks_are_compiled_else_the_complete_denoiser(name: str, expected: set[str]):
    assert compiled(policy_of(name, compile=True).pipeline.transformer) == expected
    assert compiled(policy_of(name).pipeline.transformer) == set()


def updated(policy: DenoisingPolicy, rollout: Rollout) -> tuple[float, Tensor]:
    """The on-policy gap, and the gradient of the sum of the log-probabilities."""
    gap = 0.0
    for evaluation in policy.evaluate(rollout):
        assert evaluation.rows is not None
        old_BT = rollout.old_logprob_BT[evaluation.rows][:, list(evaluation.columns)]
        gap = max(gap, float((evaluation.logprob_BT.detach() - old_BT).abs().max()))
        evaluation.logprob_BT.sum().backward()
    return gap, torch.cat([p.grad.flatten() for p in policy.trainable if p.grad is not None])


@pytest.mark.slow
def test_compiled_sd3_equals_uncompiled() -> None:
    actual, num_graphs = {}, []
    torch._dynamo.reset()
    for on in (False, True):
        policy = policy_of("sd3", pipeline_of("sd3"), compile=on, call={"num_inference_steps": 2})
        generator = torch.Generator().manual_seed(0)
        for parameter in policy.trainable:  # a second factor of 0 would let nothing of the first be seen
            parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=1)
        num_graphs.append(counters["stats"]["unique_graphs"])
        actual[on] = (rollout.old_logprob_BT, *updated(policy, rollout))
    (logprob_BT, gap, gradient), (compiled_BT, compiled_gap, compiled_gradient) = actual[False], actual[True]
    torch.testing.assert_close(compiled_BT, logprob_BT, rtol=0, atol=1e-5)
    assert gap == compiled_gap == 0
    assert counters["stats"]["unique_graphs"] == num_graphs[-1]  # updates run the graph of the rollout
    assert float((compiled_gradient - gradient).norm() / gradient.norm()) < 1e-4
