"""The learner on views: other weights, other prompts, other policies, and gradients that go through them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo.data.history import PromptTemplate
from mmgrpo.data.prompt_templates import template
from mmgrpo.errors import ConfigError
from mmgrpo.maths.aggregates import count, token_mean
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.surrogates import clipped
from mmgrpo.maths.terms import Term, weighted
from mmgrpo.maths.terms.divergence_terms import divergence
from mmgrpo.maths.terms.view_terms import distillation, negative_logprob
from mmgrpo.training.gradients import accumulate_gradient, with_values
from mmgrpo.training.views import View, ViewRows, Views
from mmgrpo.types import Prompt, Rollout
from mmgrpo.values import Value, mask_of_view, of_view
from tests.policies.contract import move
from tests.policies.tiny_language import measured_policy_of, prompts_of
from tests.policies.tiny_policies import pipeline_of, settings_of

Built = LanguagePolicy | DenoisingPolicy
ALL = [0, 1, 2, 3, 4, 5]
ADVANTAGE_B = torch.tensor([1.0, -1.0, 0.5, -0.5, -0.75, 0.75])
OTHERS: PromptTemplate = template(text="in other words: {prompt}")


def odd_ones(prompt: Prompt, member: int, history: Any) -> Prompt | None:
    """A view that members of even numbers do not have."""
    return OTHERS(prompt, member, history) if member % 2 else None


def tokens() -> Built:
    return measured_policy_of("llama")


def steps() -> Built:
    return DenoisingPolicy(pipeline_of("sd3"), settings_of("sd3"))


def rollout_of(build: Callable[[], Built]) -> tuple[Built, Rollout]:
    policy = build()
    prompts = prompts_of("llama") if build is tokens else [Prompt("a red fox"), Prompt("two blue squares")]
    return policy, policy.rollout(prompts, group_size=3, seed=3)


def sights(policy: Built, rollout: Rollout, **views: View) -> Views:
    reward_B = torch.zeros(len(rollout.samples), dtype=torch.float64)
    scored_B = torch.ones(len(rollout.samples), dtype=torch.bool)
    return Views(views, policy, rollout, reward_B=reward_B, scored_B=scored_B, seed=0)


OTHER = View(name="other", prompt_template=OTHERS, moves=True, trained=True)


def objective_of(*terms: Term) -> Objective:
    return Objective(surrogate=partial(clipped, low=0.2, high=0.2), aggregate=token_mean, further=terms)


def gradient_of(policy: Built) -> Tensor:
    flat = [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten().clone() for p in policy.trainable]
    for parameter in policy.trainable:
        parameter.grad = None
    return torch.cat(flat)


def streamed(policy: Built, rollout: Rollout, objective: Objective, views: Any) -> Tensor:
    accumulate_gradient(
        policy,
        rollout,
        ADVANTAGE_B[:, None].expand(rollout.shape),
        objective,
        rows=ALL,
        totals=count(rollout.mask_BT),
        views=views,
    )
    return gradient_of(policy)


def matrix(policy: Built, rollout: Rollout) -> Tensor:
    """(B, T) log-probabilities with one graph."""
    result_BT = torch.zeros(rollout.shape)
    for part in policy.evaluate(rollout):
        assert part.rows is not None
        index = part.rows[:, None], torch.tensor(list(part.columns))[None]
        result_BT = result_BT.index_put(index, part.logprob_BT.float().cpu())
    return result_BT


def full_graph(
    policy: Built, rollout: Rollout, view_rows: ViewRows, *, perception: float, entropy: float, distillation: float
) -> Tensor:
    """Written down again: the surrogate, k3 of the view and its entropy with grad through both, distillation."""
    mask_BT = rollout.mask_BT
    now_BT, other_BT = matrix(policy, rollout), matrix(policy, view_rows.rollout)
    ratio_BT = (now_BT - rollout.old_logprob_BT).exp()
    advantage_BT = ADVANTAGE_B[:, None].expand(rollout.shape)
    surrogate_BT = -torch.minimum(ratio_BT * advantage_BT, ratio_BT.clamp(0.8, 1.2) * advantage_BT)
    keep_BT = mask_BT & view_rows.has_view_BT
    k3_BT = torch.exp(other_BT - now_BT) - (other_BT - now_BT) - 1
    teacher_BT = (now_BT - other_BT).detach() * now_BT
    further_BT = perception * k3_BT - entropy * other_BT + distillation * teacher_BT
    (surrogate_BT[mask_BT].sum() + further_BT[keep_BT].sum()).div(mask_BT.sum()).backward()
    return gradient_of(policy)


@pytest.mark.nightly
@pytest.mark.each_value
@pytest.mark.parametrize("moved", [False, True], ids=["on policy", "moved"])
@pytest.mark.parametrize("prompt_template", [OTHERS, odd_ones], ids=["all", "odd ones"])
@pytest.mark.parametrize("build", [tokens, steps])
def test_the_gradient_through_a_view_is_the_full_graphs(
    build: Callable[[], Built], prompt_template: PromptTemplate, moved: bool
) -> None:
    policy, rollout = rollout_of(build)
    views = sights(policy, rollout, other=replace(OTHER, prompt_template=prompt_template))
    if moved:
        move(policy.trainable)
        rollout = rollout.aged()
    objective = objective_of(
        weighted(divergence(form="k3", view="other", grad=True), -0.3),
        weighted(negative_logprob(view="other", grad=True), 0.2),
        weighted(distillation(view="other"), 0.5),
    )
    assert not objective.separable
    result = streamed(policy, rollout, objective, views)
    expected = full_graph(policy, rollout, views["other"], perception=-0.3, entropy=0.2, distillation=0.5)
    torch.testing.assert_close(result, expected, rtol=2e-4, atol=2e-4 * float(expected.abs().max()))
    without = full_graph(policy, rollout, views["other"], perception=0.0, entropy=0.0, distillation=0.0)
    assert (result - without).norm() > 0.01 * without.norm()


@pytest.mark.parametrize("build", [tokens, steps])
def test_without_grad_the_view_is_a_constant_and_slices_stay_separable(build: Callable[[], Built]) -> None:
    policy, rollout = rollout_of(build)
    move(policy.trainable)
    rollout = rollout.aged()
    views = sights(policy, rollout, other=OTHER)
    objective = objective_of(weighted(divergence(form="k3", view="other"), -0.3))
    assert objective.separable
    result = streamed(policy, rollout, objective, views)
    with torch.no_grad():
        other_BT = matrix(policy, views["other"].rollout)
    now_BT, mask_BT = matrix(policy, rollout), rollout.mask_BT
    ratio_BT = (now_BT - rollout.old_logprob_BT).exp()
    advantage_BT = ADVANTAGE_B[:, None].expand(rollout.shape)
    loss_BT = -torch.minimum(ratio_BT * advantage_BT, ratio_BT.clamp(0.8, 1.2) * advantage_BT)
    loss_BT = loss_BT - 0.3 * (torch.exp(other_BT - now_BT) - (other_BT - now_BT) - 1)
    loss_BT[mask_BT].sum().div(mask_BT.sum()).backward()
    expected = gradient_of(policy)
    torch.testing.assert_close(result, expected, rtol=2e-4, atol=2e-4 * float(expected.abs().max()))


@pytest.mark.nightly
@pytest.mark.parametrize("build", [tokens, steps])
def test_the_same_weights_and_prompt_give_equal_log_probabilities(build: Callable[[], Built]) -> None:
    """Log-probability differences and divergences are 0; a term of them leaves the gradient as it was."""
    policy, rollout = rollout_of(build)
    itself = View(name="itself", prompt_template=lambda prompt, member, history: prompt, moves=True, trained=True)
    views = sights(policy, rollout, itself=itself, plain=replace(itself, name="plain", prompt_template=None))
    for name in ("itself", "plain"):
        measured = with_values(policy, rollout, [of_view(name)], views)
        gap_BT = (measured.values[of_view(name)] - rollout.old_logprob_BT)[rollout.mask_BT]
        assert float(gap_BT.abs().max()) < 1e-5
        assert measured.values[mask_of_view(name)].eq(1).all()
        result = streamed(policy, rollout, objective_of(divergence(form="k3", view=name)), views)
        plain = streamed(policy, rollout, objective_of(), {})
        torch.testing.assert_close(result, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))


def test_at_weight_0_a_view_changes_no_bit_and_is_not_looked_at() -> None:
    policy, rollout = rollout_of(tokens)
    never = replace(OTHER, prompt_template=lambda prompt, member, history: pytest.fail("looked at"))
    objective = objective_of(weighted(divergence(form="k3", view="other", grad=True), 0.0))
    result = streamed(policy, rollout, objective, sights(policy, rollout, other=never))
    assert torch.equal(result, streamed(policy, rollout, objective_of(), {}))


def test_another_policy_is_a_teacher() -> None:
    """Its own log-probabilities of the student's tokens; it gets no gradient."""
    policy, rollout = rollout_of(tokens)
    teacher = tokens()
    move(teacher.trainable)
    views = sights(policy, rollout, teacher=View(name="teacher", policy=teacher))
    measured = with_values(policy, rollout, [of_view("teacher")], views)
    with torch.no_grad():
        expected_BT = matrix(teacher, rollout)
    assert torch.equal(measured.values[of_view("teacher")], expected_BT)
    assert measured.num_forwards == rollout.num_forwards + 6
    streamed(policy, measured, objective_of(distillation(view="teacher")), views)
    assert all(parameter.grad is None for parameter in teacher.trainable)


def test_a_view_that_does_not_move_is_known_once_and_one_that_does_is_looked_at_again() -> None:
    policy, rollout = rollout_of(tokens)
    views = sights(policy, rollout, other=OTHER, frozen=replace(OTHER, name="frozen", moves=False, trained=False))
    measured = with_values(policy, rollout, [of_view("other"), of_view("frozen")], views)
    assert measured.num_forwards == rollout.num_forwards + 12
    before = {name: measured.values[of_view(name)] for name in ("other", "frozen")}
    assert torch.equal(before["other"], before["frozen"])
    move(policy.trainable)
    total = count(rollout.mask_BT)

    def forwards(view: str, rollout: Rollout) -> float:
        arguments = {"rows": ALL, "totals": total, "views": views}
        advantage_BT = ADVANTAGE_B[:, None].expand(rollout.shape)
        objective = objective_of(divergence(form="k3", view=view))
        result = accumulate_gradient(policy, rollout, advantage_BT, objective, **arguments)
        gradient_of(policy)
        return result.num_forwards

    assert [forwards(name, measured) for name in ("other", "frozen")] == [6, 6]
    assert [forwards(name, measured.aged()) for name in ("other", "frozen")] == [12, 6]


def test_weights_of_a_view_are_taken_back() -> None:
    policy, rollout = rollout_of(tokens)
    assert isinstance(policy, LanguagePolicy)
    policy.weights.store("snapshot")
    move(policy.trainable)
    views = sights(policy, rollout, then=View(name="then", using=lambda: policy.weights.using("snapshot")))
    measured = with_values(policy, rollout, [of_view("then")], views)
    gap_BT = (measured.values[of_view("then")] - rollout.old_logprob_BT)[rollout.mask_BT]
    assert float(gap_BT.abs().max()) < 1e-5
    with torch.no_grad():
        assert not torch.allclose(matrix(policy, rollout), rollout.old_logprob_BT, atol=1e-3)


def test_unsupported_values_of_a_view_raise() -> None:
    policy, rollout = rollout_of(tokens)
    with pytest.raises(ConfigError, match="no gaussian@other"):
        with_values(policy, rollout, [Value("gaussian", "other")], sights(policy, rollout, other=OTHER))
    beginning = View(name="begun", prompt_template=lambda prompt, member, history: replace(prompt, prefix="so"))
    with pytest.raises(ConfigError, match="gives them no beginning"):
        sights(policy, rollout, begun=beginning)["begun"]
