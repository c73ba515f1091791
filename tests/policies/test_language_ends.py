"""The probabilities after the end of a text, compared with the complete model."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.types import OffPolicySample, Sample
from mmgrpo.values import end_logprob
from tests.policies.tiny_language import policy_of, prompts_of

TOKEN = 3


@pytest.mark.parametrize("share_prefix", [True, False])
def test_the_end_token_is_scored_after_finished_texts(share_prefix: bool) -> None:
    policy = policy_of("llama", lora=None, share_prefix=share_prefix, update_tokens=64)
    long, short = prompts_of("llama")
    rows = [(long, "one two three", True), (long, "one", True), (short, "two", True), (short, "one two three", False)]
    answers = [Sample(prompt, n // 2, n % 2, text=text, finished=ends) for n, (prompt, text, ends) in enumerate(rows)]
    rollout = policy.read([OffPolicySample(sample=answer) for answer in answers], seed=0)
    value = end_logprob(TOKEN)
    result_BT = torch.zeros(rollout.shape)
    for part in policy.evaluate(rollout, values=(value,)):
        assert part.rows is not None
        assert part.values[value].requires_grad == bool((part.values[value] != 0).any())
        result_BT[part.rows[:, None], torch.tensor(part.columns)] = part.values[value].detach()
    ended = 0
    for row, completion in enumerate(rollout.trace.completions):
        last = len(completion.token_T) - 1
        assert bool((result_BT[row, :last] == 0).all())
        if not completion.finished:
            assert float(result_BT[row, last]) == 0.0
            continue
        prompt = rollout.trace.prompts[rollout.trace.prompt_of_B[row]]
        ids = torch.cat([prompt.ids_P, completion.token_T])[None]
        with torch.no_grad():
            expected = policy.model(input_ids=ids).logits[0, -1].float().log_softmax(0)[TOKEN]
        torch.testing.assert_close(result_BT[row, last], expected, rtol=0, atol=1e-5)
        ended += 1
    assert ended == 3
    with pytest.raises(ConfigError, match="there is no token 100000: the vocabulary has the numbers 0 to"):
        next(policy.evaluate(rollout, values=(end_logprob(100_000),)))
