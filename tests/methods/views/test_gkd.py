"""GKD (generalized knowledge distillation): the numbers of TRL's ``GKDTrainer``, by hand, and complete updates.

Axes: B rows, T tokens, M tokens of all rows, V vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import load_config
from mmgrpo.errors import ConfigError
from mmgrpo.maths.aggregates import count
from mmgrpo.maths.divergences import generalized_jsd
from mmgrpo.maths.strategies import STRATEGIES, Setting
from mmgrpo.scoring import NamedReward
from mmgrpo.training.build import build_views
from mmgrpo.training.gradients import accumulate_gradient
from mmgrpo.training.trainer import Trainer
from mmgrpo.training.views import Views
from mmgrpo.types import Prompt, Rollout
from mmgrpo.values import generalized_jsd as jsd_value
from mmgrpo.values import mask_of_view
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss
from tests.policies.contract import move
from tests.policies.tiny_language import measured_policy_of, prompts_of

HERE = "tests.methods.views.test_gkd"
BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)


def teacher() -> tuple[Any, Any]:
    """Another language model with the tokenizer of ``llama``."""
    policy = measured_policy_of("llama")
    move(policy.trainable)
    return policy.model, policy.processor


def logits_of(seed: int, M: int = 7, V: int = 11) -> Tensor:
    return 2 * torch.randn(M, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def views_of(config: Any, policy: LanguagePolicy, rollout: Rollout) -> Views:
    B = len(rollout.samples)
    views = build_views(Algorithm.of(config), policy)
    return Views(views, policy, rollout, reward_B=torch.zeros(B), scored_B=torch.ones(B).bool(), seed=0)


def update_of(policy: LanguagePolicy, rollout: Rollout, config: Any, views: Any) -> tuple[float, list[Tensor]]:
    """The loss and the gradient of one update on all rows."""
    for parameter in policy.trainable:
        parameter.grad = None
    gradient = accumulate_gradient(
        policy,
        rollout,
        torch.zeros(rollout.shape),
        Algorithm.of(config).objective,
        rows=range(len(rollout.samples)),
        totals=count(rollout.mask_BT),
        views=views,
    )
    assert gradient.num_forwards == 2 * len(rollout.samples)
    (loss,) = (float(value) for value in gradient.diagnostics.loss_sums.values())
    return loss, [parameter.grad.clone() for parameter in policy.trainable if parameter.grad is not None]


def plain_logits(model: Any, policy: LanguagePolicy, rollout: Rollout, row: int) -> Tensor:
    """(T, V) logits of the model's own call at the tokens of a row, at the policy's temperature."""
    trace = rollout.trace
    prompt, token_T = trace.prompts[trace.prompt_of_B[row]], trace.completions[row].token_T
    ids_1L = torch.cat([prompt.ids_P, token_T])[None]
    logits_TV = model(input_ids=ids_1L, use_cache=False).logits[0, len(prompt.ids_P) - 1 : -1]
    return policy._sampling.tempered(logits_TV)


def test_by_hand() -> None:
    """p (1/2, 1/2), q (3/4, 1/4), beta 1/2: m (5/8, 3/8)."""
    p_1V, q_1V = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.75, 0.25]]).log()
    of_q, of_p = 0.75 * math.log(6 / 5) + 0.25 * math.log(2 / 3), 0.5 * math.log(4 / 5) + 0.5 * math.log(4 / 3)
    assert float(generalized_jsd(p_1V, q_1V, 0.5)) == pytest.approx((of_q + of_p) / 2, abs=1e-6)
    assert float(generalized_jsd(p_1V, q_1V, 0.0)) == pytest.approx(
        0.75 * math.log(1.5) + 0.25 * math.log(0.5), abs=1e-6
    )
    assert float(generalized_jsd(p_1V, q_1V, 1.0)) == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2), abs=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("beta", BETAS)
def test_value_and_gradient_are_those_of_trl(beta: float) -> None:
    from trl.experimental.gkd import GKDTrainer

    ours_MV, theirs_MV, teacher_MV = logits_of(0).requires_grad_(), logits_of(0).requires_grad_(), logits_of(1)
    labels_1M = torch.zeros(1, 7).masked_fill(torch.arange(7) == 3, -100)
    expected = GKDTrainer.generalized_jsd_loss(theirs_MV[None] / 0.9, teacher_MV[None] / 0.9, labels_1M, beta)
    divergence = generalized_jsd(ours_MV / 0.9, teacher_MV / 0.9, beta)[labels_1M[0] == 0].mean()
    torch.testing.assert_close(divergence, expected)
    expected.backward()
    divergence.backward()
    torch.testing.assert_close(ours_MV.grad, theirs_MV.grad)


def test_impossible_tokens_add_nothing() -> None:
    """Tokens at minus infinity in both add neither a value nor NaN to the gradient."""
    p_MV, q_MV = logits_of(0), logits_of(1)
    wide_MV = torch.cat([p_MV, torch.full((7, 2), -torch.inf)], dim=1).requires_grad_()
    other_MV = torch.cat([q_MV, torch.full((7, 2), -torch.inf)], dim=1)
    for beta in BETAS:
        torch.testing.assert_close(generalized_jsd(wide_MV, other_MV, beta), generalized_jsd(p_MV, q_MV, beta))
        (gradient_MV,) = torch.autograd.grad(generalized_jsd(wide_MV, other_MV, beta).sum(), wide_MV)
        assert bool(gradient_MV.isfinite().all())


def test_loss_of_the_method() -> None:
    """The mean over the three tokens of 0.2, 0.4 and 0.9."""
    values = {jsd_value("teacher", 0.5): [[0.2, 0.4], [0.9, 0.0]], mask_of_view("teacher"): [[1.0, 1.0], [1.0, 1.0]]}
    assert_loss("gkd", Step(reward=ONE_OF_TWO, lengths=[2, 1], values=values), 0.5)


def gkd(beta: float = 0.5, **changes: Any) -> Any:
    policy = {"name": "language", "model": f"python:{HERE}:teacher", "dtype": "float32"}
    views = {"objective.views.teacher.policy": policy, "objective.terms": [jsd_term(beta=beta)]}
    return load_config("methods/gkd", {**views, **changes})


def jsd_term(view: str = "teacher", **numbers: Any) -> dict[str, Any]:
    return {"name": "generalized_jsd", "view": view, **numbers}


@pytest.mark.parametrize("beta", [pytest.param(0.0, marks=pytest.mark.nightly), 0.5])
def test_update_is_that_of_full_logits(beta: float) -> None:
    """Two models, rows of unequal lengths and prompts; a few rows of logits at once give the same gradient."""
    policy = measured_policy_of("llama", max_new_tokens=20)
    rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=1)
    config = gkd(beta)
    views = views_of(config, policy, rollout)
    loss, gradient = update_of(policy, rollout, config, views)
    small = replace_settings(policy, head_bytes=1)
    loss_of_parts, gradient_of_parts = update_of(small, rollout, config, views)
    other, _ = teacher()
    total = torch.zeros(())
    for row in range(4):
        student_TV = plain_logits(policy.model, policy, rollout, row)
        with torch.no_grad():
            teacher_TV = plain_logits(other, policy, rollout, row)
        total = total + generalized_jsd(student_TV, teacher_TV, beta).sum() / int(rollout.mask_BT.sum())
    expected = torch.autograd.grad(total, policy.trainable)
    assert float(total.detach()) > 1e-4
    assert loss == pytest.approx(float(total.detach()), rel=1e-5)
    assert loss_of_parts == pytest.approx(loss, rel=1e-5)
    for ours, parts, theirs in zip(gradient, gradient_of_parts, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(parts, ours, rtol=1e-4, atol=1e-7)


def replace_settings(policy: LanguagePolicy, **settings: Any) -> LanguagePolicy:
    policy.settings = policy.settings.model_copy(update=settings)
    return policy


def test_few_logits_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither model makes the logits of more tokens at once than ``head_bytes`` holds, half of it each."""
    policy = measured_policy_of("llama", max_new_tokens=20)
    rollout = policy.rollout(prompts_of("llama"), group_size=4, seed=1)
    assert int(rollout.mask_BT.sum()) > 50
    config = gkd()
    views, sizes = views_of(config, policy, rollout), []
    V = policy.path.vocabulary
    policy = replace_settings(policy, head_bytes=2 * 4 * V * 18)
    path_type = type(policy.path)
    logits = path_type.logits

    def counted(self: Any, states: Tensor) -> Tensor:
        sizes.append(states.shape[0])
        return logits(self, states)

    monkeypatch.setattr(path_type, "logits", counted)
    update_of(policy, rollout, config, views)
    assert max(sizes) == 18
    assert sizes.count(18) >= 4


@pytest.mark.nightly
def test_reference_with_adapters_is_a_teacher() -> None:
    """Adapters that are switched off and on within a pass give the gradient of two separate models."""
    policy = measured_policy_of("llama", lora={"rank": 2, "alpha": 4}, max_new_tokens=20)
    move(policy.trainable)
    rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=1)
    config = load_config("methods/gkd", {"objective.terms": [jsd_term("reference", beta=0.5)]})
    loss, gradient = update_of(replace_settings(policy, head_bytes=1), rollout, config, {})
    total = torch.zeros(())
    for row in range(4):
        with torch.no_grad(), policy.reference():
            teacher_TV = plain_logits(policy.model, policy, rollout, row)
        student_TV = plain_logits(policy.model, policy, rollout, row)
        total = total + generalized_jsd(student_TV, teacher_TV, 0.5).sum() / int(rollout.mask_BT.sum())
    assert loss == pytest.approx(float(total.detach()), rel=1e-4)
    for ours, theirs in zip(gradient, torch.autograd.grad(total, policy.trainable), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_old_weights_are_an_error() -> None:
    config = gkd(**{"objective.views.teacher": {"weights": "old"}})
    with pytest.raises(ConfigError, match="weights: reference"):
        build_views(Algorithm.of(config), measured_policy_of("llama"))


def test_wrong_beta_is_an_error() -> None:
    with pytest.raises(ConfigError, match="beta of generalized_jsd is 0 to 1"):
        Algorithm.of(gkd(1.5))


def test_strategy_chooses_per_step() -> None:
    """As many steps sample as the fraction says, to 3 standard deviations of 200 steps; the others read answers."""
    strategy = STRATEGIES["student_or_answer"](fraction=0.25, column="answer")
    requests = [strategy.ask([], Setting(step=n, num_prompts=2, group_size=3, seed=n)) for n in range(200)]
    sampled = [not any(request.off_policy_rows for request in step) for step in requests]
    assert abs(sum(sampled) / 200 - 0.25) < 3 * (0.25 * 0.75 / 200) ** 0.5
    for step, is_sampled in zip(requests, sampled, strict=True):
        assert [request.members for request in step] == [(0, 1, 2) if is_sampled else (0,)] * 2


@pytest.mark.parametrize("fraction", [None, pytest.param(0.0, marks=pytest.mark.nightly)])
def test_student_nears_its_teacher(fraction: float | None, tmp_path: Path) -> None:
    """On samples, and on the answers of rows."""
    strategy = {} if fraction is None else {"rollout.strategy": {"name": "student_or_answer", "fraction": fraction}}
    small = {"steps": 3, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "update.optimizer.lr": 1e-2}
    config = gkd(**{**strategy, **small, "output": str(tmp_path)})  # pyrefly: ignore[bad-argument-type]
    prompts = [Prompt(prompt.text, columns={"solution": "a red fox"}) for prompt in prompts_of("llama")]
    reward = NamedReward("none", _nothing, weight=0.0)
    folder = Trainer(measured_policy_of("llama", max_new_tokens=8), [reward], prompts, config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    means = [line["policy/generalized_jsd@teacher_mean"] for line in lines]
    assert means[-1] < 0.9 * means[0]
    assert all(line["policy/on_policy_gap"] < 1e-5 for line in lines if line["policy/on_policy_gap"] is not None)


def _nothing(samples: Sequence[Any]) -> list[float]:
    return [0.0] * len(samples)
