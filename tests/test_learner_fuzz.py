"""Random objectives over random rows: the streamed gradient is that of a loss written from the formulas."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo.maths import surrogates
from mmgrpo.maths.aggregates import AGGREGATES, count
from mmgrpo.maths.objectives import Objective, OffPolicySurrogate
from mmgrpo.maths.selections import SELECTIONS
from mmgrpo.maths.terms import divergence_terms, weighted
from mmgrpo.maths.terms.view_terms import negative_logprob
from mmgrpo.methods.ratios.gmpo import pessimistic_bound
from mmgrpo.methods.selection.kl_cov import departure, kl_covariance
from mmgrpo.training.gradients import accumulate_gradient
from mmgrpo.types import Plan, Rollout, Source
from mmgrpo.values import OLD
from tests import full_graph
from tests.full_graph import Loss, Rows
from tests.policies import tiny_language, tiny_policies
from tests.policies.contract import move, relative_difference

Policy = LanguagePolicy | DenoisingPolicy
NUM_CASES, PER_COMMIT = 40, 3
WIDTH = {"language": 0.2, "denoising": 0.02}  # of bounds, by how far the ratios of these models move
TIE = 5e-6  # nats; rounding moves a log-probability by up to 1e-6
GROUPS, MEMBERS = 2, 3
B = GROUPS * MEMBERS

cases = [pytest.param(seed, marks=() if seed < PER_COMMIT else pytest.mark.nightly) for seed in range(NUM_CASES)]


@pytest.mark.first_case
@pytest.mark.parametrize("seed", cases)
def test_the_streamed_gradient_is_that_of_the_formulas(seed: int) -> None:
    of = random.Random(seed)
    kind = "language" if seed % 3 else "denoising"
    policy = _policy(of, kind)
    with policy.reference():  # a full fine-tune copies its weights here
        pass
    move(policy.trainable, scale=0.01, seed=1)
    rollout = _rollout(of, policy, kind)
    reference_BT = _reference(policy, rollout)
    loss = _loss(of, kind)
    rollout = _disturbed(of, policy, rollout, kind)
    advantage_BT = torch.tensor(
        [[of.choice([0.0, of.gauss(0, 1), of.gauss(0, 1)]) for _ in row] for row in rollout.mask_BT]
    )
    now, entropy = _plain(policy, rollout)
    rows = Rows(
        now=now,
        entropy=entropy,
        old=rollout.old_logprob_BT.tolist(),
        ref=reference_BT.tolist(),
        advantage=advantage_BT.tolist(),
        keep=rollout.mask_BT.tolist(),
        segment=rollout.segment_BT.tolist(),
        group=rollout.prompt_index_B.tolist(),
        source=[0] * B if rollout.source_B is None else rollout.source_B.tolist(),
        unchanged=rollout.unchanged_B.tolist(),
    )
    loss = _without_ties(loss, rows)
    expected_loss = full_graph.loss_of(loss, rows)
    expected = torch.autograd.grad(expected_loss, policy.trainable, allow_unused=True, materialize_grads=True)
    assert sum(float(gradient.norm()) for gradient in expected) > 0, loss
    parts = of.choice([[list(range(B))], [[0, 1, 2], [3, 4, 5]], [[5, 0], [3], [1, 4, 2]]])
    value, result = _streamed(policy, rollout, _objective(loss), advantage_BT, parts)
    assert relative_difference(result, expected) < 1e-4, (loss, parts)
    assert value == pytest.approx(expected_loss.item(), rel=1e-4, abs=2e-6), (loss, parts)


def _policy(of: random.Random, kind: str) -> Policy:
    lora = of.choice([None, {"rank": 2, "alpha": 2.0}])
    if kind == "language":
        settings = {"update_tokens": of.choice([1, 60, 4096]), "share_prefix": of.choice([True, False])}
        return tiny_language.policy_of("llama", temperature=of.choice([1.0, 4.0]), lora=lora, **settings)
    name = of.choice(["sd3", "sd15"])
    return tiny_policies.policy_of(name, batch=of.choice([1, 2, 8]), lora=lora or {"rank": 2, "alpha": 2.0})


def _rollout(of: random.Random, policy: Policy, kind: str) -> Rollout:
    if kind == "language":
        return policy.rollout(tiny_language.prompts_of("llama"), group_size=MEMBERS, seed=of.randrange(99))
    plan = Plan(same_initial_noise=of.choice([True, False]))
    return policy.rollout(tiny_policies.prompts_of("sd3"), group_size=MEMBERS, seed=of.randrange(99), plan=plan)


@torch.no_grad()
def _reference(policy: Policy, rollout: Rollout) -> Tensor:
    with policy.reference():
        matrix, _ = _plain(policy, rollout)
    return torch.tensor([[float(value) for value in row] for row in matrix])


def _disturbed(of: random.Random, policy: Policy, rollout: Rollout, kind: str) -> Rollout:
    """Other masks, segments and sources; weights that have moved, or not."""
    T = rollout.shape[1]
    mask_BT = rollout.mask_BT & torch.tensor([[of.random() < 0.75 for _ in range(T)] for _ in range(B)])
    mask_BT[of.randrange(B)] &= of.random() < 0.5  # a row of which nothing may be left
    mask_BT |= (torch.arange(T) == 0) & (torch.arange(B) % MEMBERS == 0)[:, None]
    segment_BT = torch.tensor([[of.randrange(3) for _ in range(T)] for _ in range(B)]).sort(1).values
    rollout = replace(rollout, mask_BT=mask_BT & rollout.mask_BT, segment_BT=segment_BT)
    if of.random() < 0.4:
        rollout = replace(
            rollout, source_B=torch.tensor([of.choice([Source.ON_POLICY, Source.REPLAY]) for _ in range(B)])
        )
    if of.random() < 0.75:
        move(policy.trainable, scale=0.01 if kind == "language" else 0.002, seed=2)
        return rollout.aged()
    return replace(rollout, recomputed_B=torch.ones(B, dtype=torch.bool))  # what is replayed was read by these weights


def _loss(of: random.Random, kind: str) -> Loss:
    width = WIDTH[kind]
    low, high = of.uniform(0.2, 1) * width, of.uniform(0.2, 1) * width
    named: list[tuple[str, dict[str, Any]]] = [
        ("clipped", {"low": low, "high": high}),
        ("dual_clipped", {"low": low, "high": high, "bound": 1 + 2 * width}),
        ("two_sided_clipped", {"low": low, "high": high, "delta": 1 + 1.5 * width}),
        ("policy_gradient", {}),
        ("cispo", {"low": of.choice([None, low]), "high": high}),
        ("sapo", {"positive_temperature": 1.0, "negative_temperature": 1.05}),
        ("unclipped", {}),
        ("spo", {"eps": width}),
    ]
    level = of.choice(["token", "token", "segment", "sequence", "trajectory"])
    if level == "trajectory":
        powers = {"positive_power": 2.0, "positive_decay": 3.0, "negative_power": 3.0, "negative_decay": 2.0}
        named.append(("vespo", powers))
    length = {"length": 5.0}
    aggregate = of.choice(["token_mean", "sequence_mean", "sample_sum", "constant_length", "group_sum"])
    selections: list[tuple[str, dict[str, float]] | None] = [
        None,
        None,
        ("near_policy", {"limit": of.uniform(-1, 1) * 0.1 * width}),
    ]
    if kind == "language":
        share = of.uniform(0.2, 0.8)
        selections += [("top_entropy", {"share": share}), ("sample_top_entropy", {"share": share})]
        selections += [("ratio_top_entropy", {"share": share})] if level != "token" else []
    divergence = (of.choice(["k1", "k2", "k3"]), of.uniform(0.05, 0.5), of.choice([None, None, "token", "sequence"]))
    terms = {name: of.uniform(0.1, 1) for name in ("departure", "negative_logprob", "k3_old") if of.random() < 0.3}
    return Loss(
        surrogate=of.choice(named),
        level=level,
        bound=of.choice([None, None, (low, high)]),
        aggregate=(aggregate, length if aggregate == "constant_length" else {}),
        divergence=of.choice([None, divergence]),
        entropy_bonus=of.choice([0.0, 0.3]) if kind == "language" else 0.0,
        terms=terms,
        selection=of.choice(selections),
        covariance=of.choice([None, None, 0.2]),
        replayed=of.choice([None, (*of.choice(named[:8]), of.choice(["token", "sequence"]), 0.5)]),
    )


def _without_ties(loss: Loss, rows: Rows) -> Loss:
    """The loss without jumps of its gradient within rounding.

    It has no ``departure`` if a log-ratio is nearly 0; the limit of ``near_policy`` is farther from each row's fall.
    """
    trained = [(b, t) for b, row in enumerate(rows.keep) for t, is_trained in enumerate(row) if is_trained]
    if any(abs(rows.now[b][t].item() - rows.old[b][t]) < TIE for b, t in trained if not rows.unchanged[b]):
        loss = replace(loss, terms={name: weight for name, weight in loss.terms.items() if name != "departure"})
    if loss.selection is None or loss.selection[0] != "near_policy":
        return loss
    limit, falls = loss.selection[1]["limit"], full_graph.mean_falls(rows).values()
    while any(abs(fall - limit) < TIE for fall in falls):
        limit += TIE
    return replace(loss, selection=("near_policy", {"limit": limit}))


def _objective(loss: Loss) -> Objective:
    """The same loss as the library has it."""

    def surrogate(name: str, numbers: Any) -> Any:
        return partial(surrogates.SURROGATES[name], **numbers)

    terms = {
        "departure": departure,
        "negative_logprob": negative_logprob,
        "k3_old": lambda: divergence_terms.divergence(form="k3", view=OLD),
    }
    form, beta, level = loss.divergence or (None, 0.0, None)
    off_policy = None
    if loss.replayed is not None:
        name, numbers, of_replayed, weight = loss.replayed
        off_policy = OffPolicySurrogate(surrogate=surrogate(name, numbers), ratio_level=of_replayed, weight=weight)
    return Objective(
        surrogate=surrogate(*loss.surrogate),
        aggregate=partial(AGGREGATES[loss.aggregate[0]], **loss.aggregate[1]),
        ratio_level=loss.level,
        bound=None if loss.bound is None else partial(pessimistic_bound, low=loss.bound[0], high=loss.bound[1]),
        selections=() if loss.selection is None else (SELECTIONS[loss.selection[0]](**loss.selection[1]),),
        divergence=form,
        kl_beta=beta,
        kl_ratio_level=level,
        entropy_bonus=loss.entropy_bonus,
        modulations=() if loss.covariance is None else (kl_covariance(share=loss.covariance),),
        further=tuple(weighted(terms[name](), weight) for name, weight in loss.terms.items()),
        off_policy=off_policy,
    )


def _streamed(
    policy: Policy, rollout: Rollout, objective: Objective, advantage_BT: Tensor, parts: Sequence[Sequence[int]]
) -> tuple[float, list[Tensor]]:
    """The update of as many processes as there are parts: its loss and its gradient."""
    totals = count(rollout.mask_BT, group_B=rollout.prompt_index_B)
    gradients: list[list[Tensor]] = []

    def update(rows: Sequence[int], gather: Any) -> float:
        result = accumulate_gradient(policy, rollout, advantage_BT, objective, rows=rows, totals=totals, gather=gather)
        return result.diagnostics.as_metrics()["policy/loss"]

    def giving(tensor: Tensor) -> list[Tensor]:
        gradients[-1].append(tensor)
        return [tensor]

    for rows in parts:  # what each process gives to the others, collective by collective
        gradients.append([])
        update(rows, giving)
    _gradient(policy)
    value = 0.0
    for rows in parts:
        turns = iter(zip(*gradients, strict=True))
        value += update(rows, lambda tensor, turns=turns: list(next(turns)))
    return value, _gradient(policy)


def _gradient(policy: Policy) -> list[Tensor]:
    result = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.trainable]
    for parameter in policy.trainable:
        parameter.grad = None
    return result


def _plain(policy: Policy, rollout: Rollout) -> tuple[list[list[Tensor]], list[list[Tensor]] | None]:
    """Log-probability, and entropy of tokens, of each decision: of tokens by calling the model itself, row by row."""
    if isinstance(policy, LanguagePolicy):
        return _of_tokens(policy, rollout)
    now = [[torch.zeros(()) for _ in range(rollout.shape[1])] for _ in range(B)]
    for evaluation in policy.evaluate(rollout):
        assert evaluation.rows is not None
        for i, row in enumerate(evaluation.rows.tolist()):
            for j, column in enumerate(evaluation.columns):
                now[row][column] = evaluation.logprob_BT[i, j]
    return now, None


def _of_tokens(policy: LanguagePolicy, rollout: Rollout) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    now, entropy = [], []
    model = policy.weights.active_copies.get("model", policy.model)
    for sample in rollout.samples:
        encoded, token_T = policy._encoder(sample.prompt), torch.tensor(list(sample.tokens or ()))
        ids_L = torch.cat([encoded.ids_P, token_T])
        logits_TV = model(input_ids=ids_L[None]).logits[0, encoded.length - 1 : -1] / policy.settings.temperature
        logits_TV = logits_TV.index_fill(1, policy._sampling.suppressed, -1e30)
        logprob_TV = logits_TV.log_softmax(-1)
        rest = [torch.zeros(())] * (rollout.shape[1] - len(token_T))
        now.append([*logprob_TV.gather(1, token_T[:, None])[:, 0], *rest])
        entropy.append([*(-(logprob_TV.exp() * logprob_TV).sum(1)), *rest])
    return now, entropy
