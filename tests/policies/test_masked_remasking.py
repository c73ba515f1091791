"""Remasked answers: keyed maskings, scores by hand, and the bound over all masks."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from typing import Any

import pytest
import torch
from mmgrpo.policies.masked.masked_trace import MaskedPass, MaskedTrace
from mmgrpo.policies.masked.unmasking_schedule import bound_maskings, share_maskings

from mmgrpo import Trainer
from mmgrpo.errors import ConfigError
from mmgrpo.types import Example, OffPolicySample, Plan, Prompt, Rollout, Sample, Source
from tests.policies.contract import gradients, move, relative_difference, values
from tests.policies.tiny_masked import TEXTS, policy_of, prompts_of
from tests.tiny.masked_models import MASK, tokenizer

SEED = 5
READINGS: dict[str, dict[str, Any]] = {
    "whole": {"estimate": "whole", "num_levels": 2, "prompt_share": 0.3},
    "shares": {"estimate": "shares", "num_levels": 3, "places": "later"},
    "bound": {"estimate": "bound", "num_levels": 3},
}
MODELS = [(name, of) for name in READINGS for of in ("eurobert", "amused") if (name, of) != ("whole", "amused")]


def off_policy_samples_of(policy: Any, seed: int = SEED) -> list[OffPolicySample]:
    rollout = policy.rollout(prompts_of(), group_size=2, seed=seed)
    return [OffPolicySample(sample=sample, source=Source.ON_POLICY) for sample in rollout.samples]


@pytest.mark.first_case
@pytest.mark.parametrize(("name", "of"), MODELS)
def test_current_and_behavior_policy_use_the_same_masks(name: str, of: str) -> None:
    policy, again = (policy_of(of, reading=READINGS[name], num_steps=2) for _ in range(2))
    samples = off_policy_samples_of(policy)
    rollout = policy.read(samples, seed=SEED)
    assert rollout.on_policy
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT * rollout.mask_BT)  # a ratio of exactly 1
    turned = again.read(samples[::-1], seed=SEED)
    for look, original in zip(turned.trace.passes, rollout.trace.passes, strict=True):
        assert torch.equal(look.masked_BL.flip(0), original.masked_BL)
    assert torch.allclose(turned.old_logprob_BT.flip(0), rollout.old_logprob_BT, atol=1e-5)
    if name != "whole":
        hidden = [look.masked_BL for look in rollout.trace.passes]
        other = [look.masked_BL for look in policy.read(samples, seed=SEED + 1).trace.passes]
        assert any(not torch.equal(mask, two) for mask, two in zip(hidden, other, strict=True))
        assert any(not torch.equal(mask[0], mask[1]) for mask in hidden)
    move(policy.trainable)
    assert not torch.allclose(values(policy, rollout), rollout.old_logprob_BT, atol=1e-3)
    single = policy_of(of, reading=READINGS[name], num_steps=2, batch=1)
    move(single.trainable)
    assert relative_difference(gradients(single, rollout), gradients(policy, rollout)) < 1e-4


@torch.no_grad()
def test_a_fully_masked_answer_supports_a_partly_masked_prompt() -> None:
    policy = policy_of("eurobert", reading=READINGS["whole"])
    sample = Sample(Prompt(TEXTS[1]), 4, 1, text="a red circle")
    rollout = policy.read([OffPolicySample(sample=sample)], seed=SEED)
    words, model = tokenizer(), policy.predictor.spec.modules["model"]
    mask = words.get_vocab()[MASK]
    answer = policy.predictor.target(Example(sample.prompt, text=sample.text))
    end = answer.tolist().index(words.eos_token_id)
    assert rollout.mask_BT.tolist() == [[position <= end for position in range(6)] * 2]
    assert rollout.segment_BT.tolist() == [[0] * 6 + [1] * 6]
    holes = []
    for number in (0, 1):
        condition = rollout.trace.conditions[int(rollout.trace.passes[number].condition_B[0])]
        ids = condition.inputs["input_ids"]
        holes.append((ids == mask).sum().item())
        logits = model(input_ids=torch.cat([ids, torch.full((1, 6), mask)], dim=1)).logits[0, -6:]
        logits[:, mask] = -torch.inf
        expected = logits.log_softmax(-1).gather(1, answer[:, None])[: end + 1, 0]
        assert torch.allclose(rollout.old_logprob_BT[0, 6 * number : 6 * number + end + 1], expected, atol=1e-4)
    assert min(holes) > 0
    assert max(holes) < ids.shape[1]


def test_masked_fractions_increase_and_later_positions_are_masked_more() -> None:
    # low + (high - low) (k + 1) / K
    alike = share_maskings(8, 4, low=0.5, high=0.9, later=False)
    assert [float(level.probability_L.mean()) for level in alike] == pytest.approx([0.6, 0.7, 0.8, 0.9])
    (later,) = share_maskings(5, 1, low=0.5, high=0.75, later=True)
    # shown with probability 0.25 (1, 0.75, 0.5, 0.25, 0) / 0.5
    assert later.probability_L.tolist() == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0])


def test_levels_and_weights_match_gauss_legendre() -> None:
    actual = bound_maskings(2, 3)
    # nodes 1/2 -+ sqrt(3/5)/2 and 1/2, weights 5/18, 8/18, 5/18
    levels = [float(level.probability_L[0]) for level in actual]
    assert levels == pytest.approx([0.5 - 0.15**0.5, 0.5, 0.5 + 0.15**0.5])
    weights = [mask.weight * level for mask, level in zip(actual, levels, strict=True)]
    assert weights == pytest.approx([5 / 18, 8 / 18, 5 / 18])


@torch.no_grad()
@pytest.mark.parametrize("num_levels", [2, 3])
def test_the_bound_equals_the_mean_over_all_orders(num_levels: int) -> None:
    """Of three places all masks can be listed, and all orders; two levels are exact for degree 3."""
    policy = policy_of("eurobert", length=3, num_steps=3)
    sample = policy.rollout([Prompt(TEXTS[0])], group_size=1, seed=SEED).samples[0]
    token_L = torch.tensor(list(sample.tokens or ()))
    masks = torch.tensor(list(product([False, True], repeat=3)))
    total_of = dict(zip(map(tuple, masks.tolist()), _sums(policy, sample, masks), strict=True))
    bound = 0.0
    for masking in bound_maskings(3, num_levels):
        level = float(masking.probability_L[0])
        for mask, total in total_of.items():
            bound += masking.weight * level ** sum(mask) * (1 - level) ** (3 - sum(mask)) * total
    chains = []
    for order in permutations(range(3)):
        hidden, chain = torch.ones(3, dtype=torch.bool), 0.0
        for position in order:
            chain += float(_logprobs(policy, sample, hidden[None])[0, position])
            hidden[position] = False
        chains.append(chain)
    assert bound == pytest.approx(sum(chains) / 6, rel=1e-4)
    assert len(token_L) == 3


def _logprobs(policy: Any, sample: Sample, hidden_BL: torch.Tensor) -> torch.Tensor:
    """Of each hidden place, under each of these masks."""
    B, L = hidden_BL.shape
    rollout = policy.read([OffPolicySample(sample=replace(sample, member=member)) for member in range(B)], seed=0)
    trace: MaskedTrace = rollout.trace
    everywhere_BL = torch.arange(L).expand(B, L)
    look = MaskedPass(
        condition_B=trace.passes[0].condition_B, masked_BL=hidden_BL, position_Bn=everywhere_BL, scored_Bn=hidden_BL
    )
    rollout_of_masks = Rollout(
        samples=rollout.samples,
        prompt_index_B=rollout.prompt_index_B,
        old_logprob_BT=torch.zeros(B, L),
        mask_BT=hidden_BL,
        state_BT=everywhere_BL,
        segment_BT=everywhere_BL,
        trace=replace(trace, passes=[look], pooled=None),
    )
    return values(policy, rollout_of_masks)


def _sums(policy: Any, sample: Sample, masks: torch.Tensor) -> list[float]:
    return _logprobs(policy, sample, masks).sum(1).tolist()


def test_a_level_of_the_bound_is_one_decision() -> None:
    policy = policy_of("eurobert", reading=READINGS["bound"])
    samples = off_policy_samples_of(policy)
    rollout = policy.read(samples, seed=SEED)
    assert rollout.shape == (4, 3)
    for number, masking in enumerate(bound_maskings(6, 3)):
        look = rollout.trace.passes[number]
        for row, sample in enumerate(samples):
            logprob_L = _logprobs(policy, sample.sample, look.masked_BL[row : row + 1])[0]
            total = float(logprob_L[look.scored_Bn[row]].sum())
            assert float(rollout.old_logprob_BT[row, number]) == pytest.approx(masking.weight * total, rel=1e-4)
        assert rollout.mask_BT[:, number].tolist() == look.scored_Bn.any(1).tolist()


def test_provided_log_probabilities_are_kept_and_captions_are_not_masked() -> None:
    policy = policy_of("eurobert", reading={"estimate": "bound", "num_levels": 2})
    sample = off_policy_samples_of(policy)[0].sample
    old_T = torch.tensor([-3.0, -4.0])
    rollout = policy.read([OffPolicySample(sample=sample, old_logprob_T=old_T)], seed=SEED)
    assert torch.equal(rollout.old_logprob_BT[0], old_T)
    assert not rollout.on_policy
    pictures = policy_of("amused", reading=READINGS["whole"])
    with pytest.raises(ConfigError, match=r"policy\.reading\.prompt_share does not support captions"):
        pictures.read(off_policy_samples_of(pictures), seed=SEED)
    holes = policy_of("eurobert", reading=READINGS["whole"])
    with pytest.raises(ConfigError, match=r"set policy.reading.prompt_share to 0"):
        holes.override_prompts(holes.read(off_policy_samples_of(holes), seed=SEED), prompts_of() * 2)


@pytest.mark.first_case
@pytest.mark.parametrize("name", READINGS)
def test_a_run_trains_on_its_remasked_samples(name: str) -> None:
    """Samples are random; at the first update every ratio is 1, and each pass has a separate masking."""
    policy = policy_of("eurobert", reading=READINGS[name], num_steps=2)
    before = [parameter.detach().clone() for parameter in policy.trainable]
    config = {
        "steps": 2,
        "rollout": {"training_states": "renoised", "prompts_per_step": 2, "group_size": 3},
        "update": {"epochs": READINGS[name]["num_levels"], "cycle_masks": True, "optimizer": {"lr": 1e-3}},
    }
    texts: list[str] = []

    def longer(samples: Any) -> list[float]:
        texts.extend(sample.text for sample in samples)
        return [float(len(sample.text)) for sample in samples]

    Trainer(policy, [longer], prompts_of(), config).train()
    assert len(set(texts)) > 6
    assert any(not torch.equal(old, new) for old, new in zip(before, policy.trainable, strict=True))


def test_a_rescoring_plan_samples_at_random() -> None:
    policy = policy_of("eurobert")
    plain = policy.rollout(prompts_of(), group_size=2, seed=SEED)
    rollout = policy.rollout(prompts_of(), group_size=2, seed=SEED, plan=Plan(stochastic=(), for_rescoring=True))
    assert [sample.tokens for sample in plain.samples] == [sample.tokens for sample in rollout.samples]
    assert not rollout.mask_BT.any()
