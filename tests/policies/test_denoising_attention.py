"""Attention back ends of diffusers: passed through, and an error where they would do nothing or lose gradients."""

# diffusers exports lazily.

from __future__ import annotations

import pytest
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry, dispatch_attention_fn

from mmgrpo.errors import ConfigError
from tests.policies.contract import gradients, relative_difference, values
from tests.policies.tiny_policies import policy_of, prompts_of

SEED = 3


@pytest.mark.nightly
def test_a_back_end_is_selected_for_the_denoiser_alone() -> None:
    active = _AttentionBackendRegistry.get_active_backend()[0]
    policy, plain = policy_of("flux", attention="_native_math"), policy_of("flux")
    for each, expected in ((policy, AttentionBackendName._NATIVE_MATH), (plain, None)):
        processors = each.pipeline.transformer.attn_processors.values()
        assert {processor._attention_backend for processor in processors} == {expected}
    assert _AttentionBackendRegistry.get_active_backend()[0] is active
    rollout = policy.rollout(prompts_of("flux"), group_size=2, seed=SEED)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert relative_difference(gradients(policy, rollout), gradients(plain, rollout)) < 1e-4


@pytest.mark.parametrize(
    ("family", "attention", "error"),
    [
        ("flux", "sage", "sage cannot train FluxTransformer2DModel here: .*sageattention"),
        ("flux", "flash2", "must be one of the following: .*flash_hub"),
        ("sd3", "native", "SD3Transformer2DModel has only the attention of torch"),
        ("sd15", "native", "UNet2DConditionModel has only the attention of torch"),
    ],
)
def test_a_back_end_that_does_not_work_is_an_error(family: str, attention: str, error: str) -> None:
    with pytest.raises(ConfigError, match=f"policy.attention: .*{error}"):
        policy_of(family, attention=attention)


def test_a_back_end_without_a_backward_pass_is_an_error() -> None:
    """Flexible attention on a CPU, with newer versions of torch."""
    states = torch.zeros(1, 16, 2, 64, requires_grad=True)
    try:
        dispatch_attention_fn(states, states, states, backend=AttentionBackendName.FLEX).sum().backward()
    except (RuntimeError, NotImplementedError):
        with pytest.raises(ConfigError, match=r"flex cannot train FluxTransformer2DModel here: .*backward"):
            policy_of("flux", attention="flex")
    else:
        assert policy_of("flux", attention="flex").settings.attention == "flex"
