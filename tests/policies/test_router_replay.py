"""Router replay: updates take the experts of the first scoring, in values, gradients and recomputed layers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from pydantic import ValidationError
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from mmgrpo.config.loading import validated
from mmgrpo.errors import ConfigError
from mmgrpo.explain.process_scale import plan_processes
from mmgrpo.scoring import NamedReward
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt, Rollout
from tests.policies.families import daily
from tests.policies.tiny_language import policy_of
from tests.tiny.causal_models import HEAD_WIDTH, text
from tests.tiny.language_models import make

EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
PROMPTS = [Prompt("what number is this"), Prompt("how many red squares do you see")]


def qwen3_moe(tokenizer: Any) -> Any:
    sizes: dict[str, Any] = EXPERTS | {"num_experts": 8, "head_dim": HEAD_WIDTH, "norm_topk_prob": True}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**text(tokenizer), **sizes))


def mixtral(tokenizer: Any) -> Any:
    return MixtralForCausalLM(MixtralConfig(**text(tokenizer), num_local_experts=8, num_experts_per_tok=2))


def gpt_oss(tokenizer: Any) -> Any:
    sizes: dict[str, Any] = {
        "head_dim": HEAD_WIDTH,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 64,
    }
    return GptOssForCausalLM(GptOssConfig(**text(tokenizer), **sizes))


def deepseek_v3(tokenizer: Any) -> Any:
    sizes = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0, "q_lora_rank": 16}
    heads = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_shared_experts": 1}
    every: dict[str, Any] = text(tokenizer) | EXPERTS | sizes | heads | {"num_key_value_heads": 4}
    return DeepseekV3ForCausalLM(DeepseekV3Config(**every))


MODELS: dict[str, Callable[[Any], Any]] = {
    model.__name__: model for model in (qwen3_moe, mixtral, gpt_oss, deepseek_v3)
}


def moe_policy(name: str, **settings: Any) -> LanguagePolicy:
    """A new policy; all those of a name have the same weights, whose routers are certain of nothing."""
    _, tokenizer = make("llama")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MODELS[name](tokenizer).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(std=0.2)
    settings = {"max_new_tokens": 7, "temperature": 2.0, "router_replay": True, **settings}
    return LanguagePolicy(model, tokenizer, settings)


def move(policy: LanguagePolicy, scale: float = 0.05) -> None:
    """Other weights, with which routers choose other experts."""
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.trainable:
        parameter.data += scale * torch.randn(parameter.shape, generator=generator)


def gates_of(policy: LanguagePolicy) -> list[Any]:
    return [module for name, module in policy.model.named_modules() if name.endswith(("mlp.gate", "mlp.router"))]


def choices(policy: LanguagePolicy, ids_L: Tensor) -> list[Tensor]:
    """The experts of each token in the model's plain call, by layer."""
    found: list[Tensor] = []
    handles = [gate.register_forward_hook(lambda _, __, output: found.append(output[2])) for gate in gates_of(policy)]
    with torch.no_grad():
        policy.model(input_ids=ids_L[None], use_cache=False)
    for handle in handles:
        handle.remove()
    return found


def forced_logprobs(policy: LanguagePolicy, ids_L: Tensor, experts: Sequence[Tensor], start: int) -> Tensor:
    """Log-probabilities of the tokens from a position, with given experts of Qwen3-MoE, by its formula."""
    handles = []
    for gate, chosen in zip(gates_of(policy), experts, strict=True):

        def replace(_: Any, __: Any, output: Any, chosen: Tensor = chosen) -> Any:
            taken = output[0].float().softmax(-1).gather(-1, chosen)
            return output[0], taken / taken.sum(-1, keepdim=True), chosen

        handles.append(gate.register_forward_hook(replace))
    logits_LV = policy.model(input_ids=ids_L[None], use_cache=False).logits[0]
    for handle in handles:
        handle.remove()
    logprob_LV = policy._sampling.tempered(logits_LV.float()).log_softmax(-1)
    return logprob_LV[start - 1 : -1].gather(-1, ids_L[start:, None])[:, 0]


def row_ids(rollout: Rollout, row: int) -> tuple[Tensor, int]:
    trace = rollout.trace
    prompt = trace.prompts[trace.prompt_of_B[row]]
    return torch.cat([prompt.ids_P, trace.completions[row].token_T]), prompt.length


def logprobs(policy: LanguagePolicy, rollout: Rollout) -> Tensor:
    """(B, T) of the rollout under the policy, with grad."""
    logprob_BT = torch.zeros(rollout.shape)
    for part in policy.evaluate(rollout):
        assert part.rows is not None
        index = part.rows[:, None], torch.tensor(part.columns)[None]
        logprob_BT = logprob_BT.index_put(index, part.logprob_BT)
    return logprob_BT.where(rollout.mask_BT, 0.0)


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("checkpointing", [False, True])
def test_values_and_gradients_are_those_of_the_first_experts(checkpointing: bool) -> None:
    policy = moe_policy("qwen3_moe", gradient_checkpointing=checkpointing)
    rollout = policy.rollout(PROMPTS, group_size=2, seed=0)
    rows = [row_ids(rollout, row) for row in range(4)]
    before = [choices(policy, ids_L) for ids_L, _ in rows]
    torch.testing.assert_close(logprobs(policy, rollout).detach(), rollout.old_logprob_BT)  # the same weights
    move(policy)
    after = [choices(policy, ids_L) for ids_L, _ in rows]
    pairs = [pair for row in range(4) for pair in zip(before[row], after[row], strict=True)]
    assert max(float((a.sort(-1).values != b.sort(-1).values).float().mean()) for a, b in pairs) > 0.05
    replayed_BT = logprobs(policy, rollout)
    replayed = torch.autograd.grad(replayed_BT.sum(), policy.trainable, allow_unused=True)
    total = torch.zeros(())
    for row, ((ids_L, start), experts) in enumerate(zip(rows, before, strict=True)):
        logprob_T = forced_logprobs(policy, ids_L, experts, start)
        torch.testing.assert_close(replayed_BT[row, : len(logprob_T)], logprob_T, rtol=1e-4, atol=1e-4)
        total = total + logprob_T.sum()
    expected = torch.autograd.grad(total, policy.trainable, allow_unused=True)
    for ours, theirs in zip(replayed, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    plain = moe_policy("qwen3_moe", router_replay=False, share_prefix=False)
    move(plain)
    assert float((logprobs(plain, rollout) - replayed_BT).abs().max()) > 1e-2  # the experts matter


@pytest.mark.parametrize("name", daily(list(MODELS), "qwen3_moe"))
def test_rows_in_any_batch_take_their_experts(name: str) -> None:
    policy = moe_policy(name)
    rollout = policy.rollout(PROMPTS, group_size=2, seed=0)
    assert len(policy.path.routes.routes_of) == 4  # pyrefly: ignore[missing-attribute]
    move(policy)
    together = logprobs(policy, rollout).detach()
    for row in range(4):
        (part,) = policy.evaluate(rollout, [row])
        logprob_1T = part.logprob_BT.detach().where(rollout.mask_BT[[row], : part.logprob_BT.shape[1]], 0.0)
        torch.testing.assert_close(logprob_1T, together[[row], : logprob_1T.shape[1]], rtol=1e-4, atol=1e-4)


def test_other_weights_choose_their_experts() -> None:
    """A reference reads the row with the experts that it chooses, and stores none."""
    policy = moe_policy("qwen3_moe", lora={"rank": 2, "alpha": 64, "targets": ["q_proj", "v_proj"]})
    move(policy, 0.3)
    rollout = policy.rollout(PROMPTS[:1], group_size=1, seed=0)
    plain = moe_policy("qwen3_moe", router_replay=False, share_prefix=False)
    with policy.reference():
        reference_BT = logprobs(policy, rollout).detach()
    torch.testing.assert_close(reference_BT, logprobs(plain, rollout).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
def test_training(tmp_path: Path) -> None:
    update = {"minibatches": 2, "optimizer": {"lr": 1e-3}}
    rollout = {"group_size": 4, "prompts_per_step": 2}
    config = validated({"rollout": rollout, "update": update, "steps": 2, "output": str(tmp_path)})
    reward = NamedReward("letters", _letters)
    folder = Trainer(moe_policy("qwen3_moe", gradient_checkpointing=True), [reward], PROMPTS, config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["policy/on_policy_gap"] < 1e-5 for line in lines)


def _letters(samples: Sequence[Any]) -> list[float]:
    return [float(len(set(sample.text))) for sample in samples]


def test_models_without_experts_and_other_paths_are_errors() -> None:
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no experts"):
        policy_of("llama", router_replay=True)
    for settings in ({"compile": True}, {"share_prefix": True}):
        with pytest.raises(ValidationError, match=r"remove policy\.compile and policy\.share_prefix"):
            policy_of("llama", router_replay=True, **settings)


def test_the_plain_path_is_an_error() -> None:
    """It has no rows whose experts could be replayed."""
    policy = moe_policy("qwen3_moe")
    policy._selector._candidates = []
    with pytest.raises(ConfigError, match=r"policy\.router_replay: Qwen3MoeForCausalLM needs the plain path"):
        policy.rollout(PROMPTS, group_size=2, seed=0)


@pytest.mark.nightly
def test_rows_run_in_full_in_predictions(tmp_path: Path) -> None:
    """As with share_prefix: false."""
    model, tokenizer = moe_policy("qwen3_moe").model, make("llama")[1]
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    plans = [
        plan_processes(
            validated({"policy": {"name": "language", "model": str(tmp_path), "max_new_tokens": 8, **settings}}),
            prompt_tokens=32,
        ).passes.update
        for settings in ({"router_replay": True}, {"share_prefix": False}, {})
    ]
    assert plans[0] == plans[1] != plans[2]
