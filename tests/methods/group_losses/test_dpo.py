"""DPO: by hand, the loss of TRL's ``DPOTrainer``, and runs on stored pairs.

Axes: B rows, T tokens.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from math import exp, log, log1p
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.config.loading import load_config
from mmgrpo.errors import DataError
from mmgrpo.methods.group_losses.dpo import chosen
from mmgrpo.training.build import build_rewards
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt, Sample
from mmgrpo.values import of_view
from tests.configs.method_steps import Step, assert_loss, config_of, loss_and_gradient
from tests.policies.tiny_language import measured_policy_of, prompts_of

PAIR = {"chosen": "a red fox", "rejected": "two blue squares"}
MESSAGES = {name: [{"role": "assistant", "content": text}] for name, text in PAIR.items()}


def test_loss_of_the_method() -> None:
    """Sums of log-ratios to the reference of 1 and -2, and of 0 and 1: margins of 3 and -1, times 0.1."""
    step = Step(
        reward=(1.0, 0.0, 1.0, 0.0),
        groups=(0, 0, 1, 1),
        old_logprob=((-1.0, -1.0),) * 4,
        values={of_view("reference"): [[-1.5, -1.5], [0.0, 0.0], [-1.0, -1.0], [-2.0, -1.0]]},
    )
    assert_loss("dpo", step, (log1p(exp(-0.3)) + log1p(exp(0.1))) / 2)


def trl_loss(logprob_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """Of pairs, the chosen answers in the first half of the rows."""
    from trl import DPOTrainer

    B, T = logprob_BT.shape
    outputs = SimpleNamespace(log_probs=logprob_BT, entropy=logprob_BT, mean_logits=logprob_BT, is_top1=logprob_BT > -1)
    model = SimpleNamespace(training=False)
    trainer = SimpleNamespace(
        model=model,
        accelerator=SimpleNamespace(device="cpu", gather=torch.clone, gather_for_metrics=torch.as_tensor),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        beta=0.1,
        use_weighting=False,
        label_smoothing=0.0,
        _total_train_tokens=0,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    completion_mask = torch.ones(B, T + 1, dtype=torch.long)
    completion_mask[:, 0] = 0  # a token of the prompt
    chosen_B, rejected_B = reference_BT.sum(1).chunk(2)
    inputs = {
        "input_ids": torch.zeros(B, T + 1, dtype=torch.long),
        "attention_mask": torch.ones(B, T + 1),
        "completion_mask": completion_mask,
        "ref_chosen_logps": chosen_B,
        "ref_rejected_logps": rejected_B,
    }
    return DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)  # pyrefly: ignore[bad-argument-type]


@pytest.mark.nightly
def test_value_and_gradient_are_those_of_trl() -> None:
    random = torch.Generator().manual_seed(0)
    logprob_BT, reference_BT = -3 * torch.rand(2, 6, 5, generator=random, dtype=torch.float64)
    theirs_BT = logprob_BT.clone().requires_grad_()
    expected = trl_loss(theirs_BT, reference_BT)
    expected.backward()
    step = Step(
        reward=(1.0,) * 3 + (0.0,) * 3,
        groups=(0, 1, 2) * 2,
        old_logprob=logprob_BT.tolist(),
        values={of_view("reference"): reference_BT.tolist()},
    )
    result = loss_and_gradient(config_of("dpo"), step)
    torch.testing.assert_close(result.value, expected.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(result.gradient_BT, theirs_BT.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("columns", [PAIR, MESSAGES])
def test_reward_is_the_label_of_the_pair(columns: dict[str, Any]) -> None:
    prompt = Prompt("what", columns=columns)
    texts = ("a red fox", "two blue squares", "sampled")
    assert chosen([Sample(prompt, 0, member, text=text) for member, text in enumerate(texts)]) == [1.0, 0.0, None]


def test_run_raises_chosen_above_rejected(tmp_path: Path) -> None:
    """At first both log-ratios are 0: a loss of log 2. No reward is stated, and nothing is sampled."""
    small = {"steps": 3, "rollout.prompts_per_step": 2, "update.optimizer.lr": 1e-2, "output": str(tmp_path)}
    prompts = [replace(p, columns=c) for p, c in zip(prompts_of("llama"), (PAIR, MESSAGES), strict=True)]
    config = load_config("methods/dpo", {**small, "policy": None})
    folder = Trainer(measured_policy_of("llama"), build_rewards(config.rewards), prompts, config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["policy/loss"] for line in lines]
    assert losses[0] == pytest.approx(log(2), abs=1e-6)
    assert losses[2] < losses[1] < losses[0] - 0.01
    assert [line["reward/chosen/mean"] for line in lines] == [0.5] * 3


def test_answer_of_several_messages_is_an_error(tmp_path: Path) -> None:
    columns = {**MESSAGES, "chosen": [*MESSAGES["chosen"], *MESSAGES["chosen"]]}
    config = load_config("methods/dpo", {"steps": 1, "rollout.prompts_per_step": 2, "output": str(tmp_path)})
    prompts = [replace(prompt, columns=columns) for prompt in prompts_of("llama")]
    with pytest.raises(DataError, match="column 'chosen' must have a text, or one message of the assistant"):
        Trainer(measured_policy_of("llama"), build_rewards(config.rewards), prompts, config).train()
