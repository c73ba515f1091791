"""Ties of decisions in one state: rounding errors do not choose among them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import ADVANTAGE, LOGPROB
from mmgrpo.methods.selection.high_entropy_tokens import top_entropy
from mmgrpo.methods.selection.kl_cov import kl_covariance
from mmgrpo.training.gradients import shared
from mmgrpo.types import Prompt, Rollout, Sample
from mmgrpo.values import ENTROPY, Value

VIEWED = Value("entropy", "other")


def rollout_of() -> Rollout:
    """Four rows of two decisions: one first state, where three sample the token 5, and three states after it."""
    return Rollout(
        samples=[Sample(Prompt("p"), 0, member, tokens=[token, 7]) for member, token in enumerate((5, 5, 6, 5))],
        prompt_index_B=torch.zeros(4, dtype=torch.long),
        old_logprob_BT=torch.zeros(4, 2),
        mask_BT=torch.tensor([[True, True], [True, True], [True, True], [True, False]]),
        state_BT=torch.tensor([[0, 1], [0, 1], [0, 2], [0, 3]]),
        segment_BT=torch.zeros(4, 2, dtype=torch.long),
        trace=None,
        token_BT=torch.tensor([[5, 7], [5, 7], [6, 7], [5, -1]]),
    )


def decisions_of(rollout: Rollout, logprob_BT: Tensor, entropy_BT: Tensor) -> Decisions:
    return Decisions(
        logprob_BT=logprob_BT,
        old_logprob_BT=torch.zeros(4, 2),
        advantage_BT=torch.tensor([[1.0], [1.0], [-1.0], [1.0]]).expand(4, 2),
        mask_BT=rollout.mask_BT,
        weight_BT=torch.ones(4, 2),
        segment_BT=rollout.segment_BT,
        values={ENTROPY: entropy_BT, VIEWED: entropy_BT},
    )


def test_rounding_does_not_choose_among_decisions_of_one_state() -> None:
    rollout, nan = rollout_of(), float("nan")
    # in exact arithmetic: 2 in the first state, 1 after it; log-probabilities -1 of the tokens 5 and 6
    entropy_BT = torch.tensor([[2.0, 1.0], [2.0000002, 1.0000001], [1.9999998, 1.0], [2.0, nan]])
    logprob_BT = torch.tensor([[-1.0, -2.0], [-1.0000002, -2.0], [-1.0, -1.0], [-0.9999999, nan]])
    rounded = decisions_of(rollout, logprob_BT, entropy_BT)
    exact = shared(rounded, rollout)
    assert exact[ENTROPY][rollout.mask_BT].tolist() == [2, 1, 2, 1, 2, 1, 2]
    assert exact.logprob_BT[rollout.mask_BT].tolist() == [-1, -2, -1, -2, -1, -1, -1]
    assert torch.equal(exact[VIEWED][rollout.mask_BT], entropy_BT[rollout.mask_BT])  # a view has its own prompts
    first_BT = torch.tensor([[True, False]]).expand(4, 2)
    for decisions, num_trained in ((rounded, 1), (exact, 4)):
        keep_BT = top_entropy(share=1 / 70).keep(decisions, decisions[ENTROPY][rollout.mask_BT])
        assert int(keep_BT.sum()) == num_trained
    assert torch.equal(keep_BT, first_BT)
    # the covariances of the three that sampled 5 tie at the top
    for decisions, num_taken in ((rounded, 1), (exact, 3)):
        job = {LOGPROB: decisions.logprob_BT[rollout.mask_BT], ADVANTAGE: decisions.advantage_BT[rollout.mask_BT]}
        factor_BT = kl_covariance(share=1 / 7).of(decisions, job).divergence_BT
        assert factor_BT is not None
        assert int(factor_BT.sum()) == num_taken
    assert factor_BT.tolist() == [[1, 0], [1, 0], [0, 0], [1, 0]]


def test_rows_of_other_sampling_settings_share_no_state() -> None:
    records = [{"settings": {"temperature": heat}} for heat in (1.0, 1.0, 2.0, 2.0)]
    rollout = replace(rollout_of(), record_B=records)
    entropy_BT = torch.tensor([[2.0, 1.0], [2.0000002, 1.0], [3.0, 1.5], [3.0000002, 1.5]])
    result = shared(decisions_of(rollout, torch.zeros(4, 2), entropy_BT), rollout)
    assert result[ENTROPY][:, 0].tolist() == [2, 2, 3, 3]
