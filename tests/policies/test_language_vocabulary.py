"""Values of the distribution of a token: by hand, in chunks, with gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import log

import pytest
import torch
from mmgrpo.policies.distribution import LOGIT_VALUES
from mmgrpo.policies.language.token_values import token_value
from mmgrpo.policies.sampling import SamplingDistribution, Support, token_logprobs
from torch import Tensor

from mmgrpo.training.gradients import with_values
from mmgrpo.training.views import View, ViewRows
from mmgrpo.values import ENTROPY, LOGPROB_MEAN, OF_DISTRIBUTION, RANK, Value, nucleus_entropy, top_logprob
from tests.policies.tiny_language import measured_policy_of, prompts_of

PLAIN = SamplingDistribution(
    temperature=1.0, top_k=None, top_p=None, min_p=None, suppressed=torch.tensor([], dtype=torch.long)
)
HALVES = torch.tensor([0.125, 0.5, 0.25, 0.125, 0.0]).log()
BY_HAND = {
    # (3 log 2 + log 2 + 2 log 2 + 3 log 2) / 4: the last token is never written
    LOGPROB_MEAN: -9 / 4 * log(2),
    top_logprob(1): -log(2),
    top_logprob(2): -1.5 * log(2),
    top_logprob(9): -9 / 4 * log(2),
    # within 0.8 are a half and a quarter, 2/3 and 1/3 of the nucleus
    nucleus_entropy(0.8): 2 / 3 * log(1.5) + 1 / 3 * log(3),
    nucleus_entropy(0.4): 0.0,
    nucleus_entropy(1.0): 1.75 * log(2),
    ENTROPY: 1.75 * log(2),
    RANK: 1.0,
}


def values_of_vocabulary(
    value: Value, logits_MV: Tensor, token_M: Tensor, *, chunk: int = 64, support: Support | None = None
) -> Tensor:
    extra_values = [partial(token_value, value)]
    _, (value_M,) = token_logprobs(
        logits_MV, token_M, lambda x: x, PLAIN, chunk=chunk, support=support, extra_values=extra_values
    )
    return value_M


@pytest.mark.parametrize("value", BY_HAND, ids=str)
def test_values_by_hand(value: Value) -> None:
    assert values_of_vocabulary(value, HALVES[None], torch.tensor([2])).item() == pytest.approx(
        BY_HAND[value], abs=1e-6
    )
    assert set(LOGIT_VALUES) == OF_DISTRIBUTION == {measured.name for measured in BY_HAND}


def test_values_exclude_tokens_that_cannot_be_sampled() -> None:
    only = Support(torch.tensor([0, 2], dtype=torch.int32), (2,))  # 1/3 and 2/3
    expected = {
        top_logprob(3): (log(1 / 3) + log(2 / 3)) / 2,
        LOGPROB_MEAN: (log(1 / 3) + log(2 / 3)) / 2,
        nucleus_entropy(0.7): 0.0,
        RANK: 1.0,
    }
    for value, number in expected.items():
        logits_MV = HALVES[None].clone().requires_grad_()
        value_M = values_of_vocabulary(value, logits_MV, torch.tensor([0]), support=only)
        assert value_M.item() == pytest.approx(number, abs=1e-6)
        if value_M.requires_grad:
            (grad_MV,) = torch.autograd.grad(value_M.sum(), logits_MV)
            assert grad_MV.isfinite().all()


@pytest.mark.parametrize("value", BY_HAND, ids=str)
def test_chunked_values_and_gradients_equal_the_unchunked_ones(value: Value) -> None:
    generator = torch.Generator().manual_seed(3)
    logits_MV = (3 * torch.randn(41, 29, generator=generator)).requires_grad_()
    token_M = torch.randint(29, (41,), generator=generator)
    parted_M, complete_M = (values_of_vocabulary(value, logits_MV, token_M, chunk=chunk) for chunk in (16, 64))
    torch.testing.assert_close(parted_M, complete_M, atol=1e-6, rtol=0)
    if value != RANK:
        weight_M = torch.randn(41, generator=generator)
        parted_MV, complete_MV = (
            torch.autograd.grad((each_M * weight_M).sum(), logits_MV)[0] for each_M in (parted_M, complete_M)
        )
        torch.testing.assert_close(parted_MV, complete_MV, atol=1e-6, rtol=0)


def test_the_gradient_of_the_nucleus_stays_within_it() -> None:
    logits_MV = HALVES[None].clone().requires_grad_()
    (grad_MV,) = torch.autograd.grad(
        values_of_vocabulary(nucleus_entropy(0.8), logits_MV, torch.tensor([0])).sum(), logits_MV
    )
    # dH/dl = -p (log p + H) of p = 2/3 and 1/3: of opposite signs, nothing elsewhere
    entropy = BY_HAND[nucleus_entropy(0.8)]
    slope = -2 / 3 * (log(2 / 3) + entropy)
    assert grad_MV[0].tolist() == pytest.approx([0.0, slope, -slope, 0.0, 0.0], abs=1e-6)


def test_requested_values_change_no_log_probability_and_match_in_a_view() -> None:
    policy = measured_policy_of("llama", temperature=0.05)  # so that the likeliest tokens are sampled
    rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=3)
    values = (LOGPROB_MEAN, top_logprob(3), nucleus_entropy(0.8), RANK)
    measured = with_values(policy, rollout, values)
    plain, extra_values = (next(iter(policy.evaluate(rollout, values=each))) for each in ((), values))
    assert torch.equal(plain.logprob_BT, extra_values.logprob_BT)
    likeliest_BT = with_values(policy, rollout, (top_logprob(1),)).values[top_logprob(1)]
    first_BT = rollout.mask_BT & (measured.values[RANK] == 0)
    assert first_BT.any()
    torch.testing.assert_close(likeliest_BT[first_BT], rollout.old_logprob_BT[first_BT], atol=1e-5, rtol=0)
    every_BT = torch.ones(rollout.shape).bool()
    views = {"before": ViewRows(view=View(name="before"), policy=policy, rollout=rollout, has_view_BT=every_BT)}
    in_view = replace(LOGPROB_MEAN, view="before")
    looked = with_values(policy, rollout, (in_view,), views)
    torch.testing.assert_close(looked.values[in_view], measured.values[LOGPROB_MEAN], atol=1e-6, rtol=0)
    still = with_values(policy, looked, (in_view,), views)  # what is known is not looked at again
    assert still.num_forwards == looked.num_forwards
