"""The divergence between the members of a group: by hand, and by the complete model."""

from __future__ import annotations

from math import cosh, log

import pytest
import torch
from mmgrpo.policies.language.group_divergence import member_divergence

from mmgrpo.types import OffPolicySample, Sample
from mmgrpo.values import PEERS
from tests.policies.tiny_language import policy_of, prompts_of


def test_two_members_are_half_their_log_ratio_from_their_mean() -> None:
    logprob_GcV = torch.tensor([[[0.5, 0.5]], [[0.25, 0.75]]]).log()
    # d is half of log 1/2 and of log 3/2, once with either sign: (e^d + e^-d) / 2 - 1
    expected = cosh(log(0.5) / 2) + cosh(log(1.5) / 2) - 2
    assert member_divergence(logprob_GcV).tolist() == pytest.approx([expected])
    assert expected == pytest.approx(0.0812815, abs=1e-6)
    certain_GcV = torch.tensor([[[0.0, -60.0]], [[-60.0, 0.0]]])
    assert member_divergence(certain_GcV).tolist() == pytest.approx([2 * (cosh(11) - 1)])


@pytest.mark.parametrize("head_bytes", [1 << 20, 1])
def test_a_policy_reports_the_divergence_within_groups(head_bytes: int) -> None:
    policy = policy_of("llama", lora=None, update_tokens=32, head_bytes=head_bytes)
    long, short = prompts_of("llama")
    rows = [(long, "one two three"), (long, "one"), (short, "two"), (short, "two one")]
    answers = [Sample(prompt, n // 2, n % 2, text=text, finished=True) for n, (prompt, text) in enumerate(rows)]
    rollout = policy.read([OffPolicySample(sample=answer) for answer in answers], seed=0)
    result_BT = torch.zeros(rollout.shape)
    for part in policy.evaluate(rollout, [0, 3], values=(PEERS,)):
        assert part.rows is not None
        result_BT[part.rows[:, None], torch.tensor(part.columns)] = part.values[PEERS]
    trace, vocabulary = rollout.trace, policy.path.vocabulary
    for row, other in ((0, 1), (3, 2)):
        width = len(trace.completions[row].token_T)
        logprob_GcV = torch.full((2, width, vocabulary), -log(vocabulary))
        for member, each in enumerate((row, other)):
            token_T = trace.completions[each].token_T
            prompt = trace.prompts[trace.prompt_of_B[each]]
            ids = torch.cat([prompt.ids_P, token_T])[None]
            with torch.no_grad():
                logits_TV = policy.model(input_ids=ids).logits[0, prompt.length - 1 : -1]
            logprob_GcV[member, : len(token_T)] = logits_TV.float().log_softmax(-1)
        expected_T = member_divergence(logprob_GcV)
        torch.testing.assert_close(result_BT[row, :width], expected_T, rtol=1e-4, atol=1e-5)
        assert float(expected_T.std()) > 1e-3
