"""``policy.cache: {name: DBCache}``: cache-dit on the denoiser alone, at steps of a rollout that are not trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion.policy import DenoisingPolicy

from mmgrpo.errors import ConfigError
from mmgrpo.types import Plan
from tests.policies.approximated_runs import require_separate_calls
from tests.policies.contract import gradients, relative_difference, sample_difference, values
from tests.policies.tiny_policies import policy_of, prompts_of, settings_of

pytest.importorskip("cache_dit", reason="the extra cache-dit is not installed")

SEED, STEPS, WINDOW = 3, 8, (2, 3)
CACHE = {"name": "DBCache", "Fn_compute_blocks": 1, "max_warmup_steps": 1, "residual_diff_threshold": 100.0}


def caching_policy(cache: dict[str, Any] | None, family: str = "sd3", **call: Any) -> DenoisingPolicy:
    call = {**settings_of(family)["call"], "num_inference_steps": STEPS, **call}
    return policy_of(family, call=call, cache=cache)


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["sd3", "qwen-image"])
def test_a_rollout_with_the_cache_is_scored_as_it_was_sampled(family: str) -> None:
    """Step 0 fills the cache and step 1 uses it; 2 and 3 are trained; 4 fills it again, and 5 to 7 use it."""
    plain, policy = caching_policy(None, family), caching_policy(CACHE, family)
    transformer = policy.pipeline.transformer
    names = [name for name, _ in transformer.named_parameters()]
    plan = Plan(stochastic=WINDOW)
    rollout, expected = (
        each.rollout(prompts_of(family), group_size=2, seed=SEED, plan=plan) for each in (policy, plain)
    )
    assert sample_difference(rollout.samples, expected.samples) > 1
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert torch.equal(values(plain, rollout), rollout.old_logprob_BT)  # by a policy without a cache
    assert relative_difference(gradients(policy, rollout), gradients(plain, rollout)) == 0
    assert [name for name, _ in transformer.named_parameters()] == names
    assert set(vars(transformer)) == set(vars(plain.pipeline.transformer))
    skipped = sum(parameter.numel() for parameter in transformer.transformer_blocks[1:].parameters())
    share = 1 - skipped / sum(parameter.numel() for parameter in transformer.parameters())
    assert rollout.num_forwards == pytest.approx(len(rollout.samples) * (4 + 4 * share), rel=1e-9)


@pytest.mark.nightly
def test_each_stretch_and_each_call_of_a_step_begin_empty() -> None:
    require_separate_calls([caching_policy(cache, "wan", guidance_scale=3.0) for cache in (CACHE, None)], STEPS)


@pytest.mark.nightly
def test_evaluations_do_not_use_the_cache() -> None:
    evaluated, expected = (
        each.rollout(prompts_of("sd3"), group_size=1, seed=SEED, plan=Plan(stochastic=()))
        for each in (caching_policy(CACHE), caching_policy(None))
    )
    assert sample_difference(evaluated.samples, expected.samples) == 0


@pytest.mark.parametrize(
    ("family", "changes", "error"),
    [
        ("sd3", {"num_inference_steps": 8}, "DBCache has no num_inference_steps; it has Fn_compute_blocks"),
        ("flux", {}, "DBCache does not support FluxPipeline: cache-dit replaces code of its blocks"),
        ("sd15", {}, "DBCache does not support StableDiffusionPipeline: cache-dit does not know its blocks"),
        ("sd3", {"max_warmup_steps": 8}, "it fills 8 steps after each trained one"),
    ],
)
def test_a_cache_that_cannot_work_is_an_error(family: str, changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=f"policy.cache: .*{error}"):
        caching_policy({**CACHE, **changes}, family).rollout(
            prompts_of(family), group_size=1, seed=SEED, plan=Plan(stochastic=WINDOW)
        )
