"""Losses of groups: published numbers, closed-form gradients, ragged groups, permutation and padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.sequence_scores import SCORES, score
from mmgrpo.maths.terms import TERMS, Term, group_losses
from mmgrpo.values import Value
from tests.maths.decision_rows import decisions_at

OF_GROUPS = ("centered_regression", "preference", "gvpo", "real", "disco", "pacs", "equivalents")

BUILT: dict[str, Callable[[], Term]] = {
    **{name: make for name, make in {name: TERMS[name] for name in OF_GROUPS}.items() if name != "kl_hinge"},
    "kl_hinge": lambda: group_losses.kl_hinge(delta=0.001, beta=10.0),
    "balanced_pacs": lambda: TERMS["pacs"](balanced=True),
    "plain_disco": lambda: TERMS["disco"](tau=None),
    "all_preferences": lambda: group_losses.preference(pairs="all", score_by="mean_log_ratio", against="old"),
}


def decisions_of(
    change: Sequence[Sequence[float]],
    rewards: Sequence[float],
    groups: Sequence[int] | None = None,
    *,
    mask: Sequence[Sequence[int]] | None = None,
    num_groups: int | None = None,
    advantages: Sequence[float] | None = None,
) -> Decisions:
    """Log-ratios of decisions to the policy that sampled, whose log-probabilities are -1; the reference's are -1.5."""
    logprob_BT = (torch.tensor(change, dtype=torch.float64) - 1).requires_grad_()
    groups = groups or [0] * len(rewards)
    shape = logprob_BT.shape

    def expanded(each: Sequence[float]) -> Tensor:
        return torch.tensor(each)[:, None].expand(shape)

    return decisions_at(
        logprob_BT,
        old_logprob_BT=torch.full(shape, -1.0, dtype=torch.float64),
        advantage_BT=expanded(advantages or rewards).double(),
        mask_BT=torch.ones(shape, dtype=torch.bool) if mask is None else torch.tensor(mask).bool(),
        reward_BT=expanded(rewards).double(),
        group_BT=expanded(groups),
        num_groups=num_groups or len(set(groups)),
        values={Value("logprob", "reference"): torch.full(shape, -1.5, dtype=torch.float64)},
    )


def loss_and_gradient(term: Term, decisions: Decisions) -> tuple[float, Tensor]:
    loss = term.loss(decisions)
    (grad_BT,) = torch.autograd.grad(loss.value, decisions.logprob_BT)
    assert float(loss.diagnostics.loss_sums[term.name]) == pytest.approx(loss.value.item())
    return loss.value.item(), grad_BT


def test_gvpo_on_and_off_policy():
    # on policy, r 1, 0, 0, 0, beta 0.1: 0.75 / 6; gradient -beta (r - mean) / 3
    value, grad_BT = loss_and_gradient(TERMS["gvpo"](beta=0.1), decisions_of([[0.0]] * 4, [1, 0, 0, 0]))
    assert value == pytest.approx(0.125)
    torch.testing.assert_close(grad_BT[:, 0], torch.tensor([-0.025, 1 / 120, 1 / 120, 1 / 120]).double())
    # d 0.5, -0.2, 0.1, 0, here as sums over two decisions: beta (d - mean) = 0.04, -0.03, 0, -0.01 less the rewards
    changes = [[0.3, 0.2], [-0.1, -0.1], [0.1, 0.0], [0.0, 0.0]]
    value, grad_BT = loss_and_gradient(TERMS["gvpo"](beta=0.1), decisions_of(changes, [1, 0, 0, 0]))
    assert value == pytest.approx(0.1121)
    torch.testing.assert_close(grad_BT[:, 0], torch.tensor([-0.71, 0.22, 0.25, 0.24]).double() * 0.1 / 3)
    assert torch.equal(grad_BT[:, 0], grad_BT[:, 1])


def test_centered_regression_of_advantages():
    # d 0.4, 0, beta 2: 2 * 0.2 - 0.5 and its negative: 0.01; gradient 2 / 2 * 2 * -0.1
    decisions = decisions_of([[0.4], [0.0]], [9, 7], advantages=[0.5, -0.5])
    value, grad_BT = loss_and_gradient(group_losses.centered_regression(beta=2.0), decisions)
    assert value == pytest.approx(0.01)
    torch.testing.assert_close(grad_BT[:, 0], torch.tensor([-0.2, 0.2]).double())
    # standard deviation 0.2, and 0.05 to it: 2 * 0.2 / 0.25 - 0.5 = 1.1; gradient 2 / 2 * 2 / 0.25 * 1.1
    value, grad_BT = loss_and_gradient(group_losses.centered_regression(beta=2.0, eps=0.05), decisions)
    assert value == pytest.approx(1.21)
    torch.testing.assert_close(grad_BT[:, 0], torch.tensor([8.8, -8.8]).double())


def test_pacs_on_and_off_policy():
    value, grad_BT = loss_and_gradient(TERMS["pacs"](), decisions_of([[0.0]] * 4, [1, 0, 0, 0]))
    assert value == pytest.approx(math.log(2))
    torch.testing.assert_close(grad_BT[:, 0], torch.tensor([-0.25, 1 / 12, 1 / 12, 1 / 12]).double())
    value, _ = loss_and_gradient(TERMS["pacs"](), decisions_of([[0.5], [-0.2], [0.1], [0.0]], [1, 0, 0, 0]))
    assert value == pytest.approx(0.574122, abs=1e-6)
    # balanced: weights 4 / 2 and 4 / 6: the two kinds pull alike, (2 * log 2 + 3 * 2/3 * log 2) / 4
    value, grad_BT = loss_and_gradient(TERMS["pacs"](balanced=True), decisions_of([[0.0]] * 4, [1, 0, 0, 0]))
    assert value == pytest.approx(math.log(2))
    # sigma - R times weight: -1, 1/3 x 3, mean 0; times 4/3 / 4
    torch.testing.assert_close(grad_BT[:, 0], torch.tensor([-1 / 3, 1 / 9, 1 / 9, 1 / 9]).double())


def test_real_on_and_off_policy():
    value, grad_BT = loss_and_gradient(TERMS["real"](tau=0.5), decisions_of([[0.0]] * 4, [1, 0, 0, 0]))
    assert value == pytest.approx(2.079442, abs=1e-6)
    torch.testing.assert_close(grad_BT[:, 0], torch.tensor([-1.0, 0.5, 0.5, 0.5]).double())
    changes = [[0.1], [-0.2], [0.3], [0.0]]
    value, grad_BT = loss_and_gradient(TERMS["real"](tau=0.5), decisions_of(changes, [1, 0, 0, 1]))
    assert value == pytest.approx(2.286887, abs=1e-6)
    expected = torch.tensor([-0.580922, 0.383869, 1.043465, -0.709539]).double()
    torch.testing.assert_close(grad_BT[:, 0], expected, atol=1e-6, rtol=0)


def test_real_gives_the_numbers_of_its_code_and_leaves_groups_of_one_kind():
    # two groups, the second all right, through compute_policy_loss_real of Red-RL/REAL, tau 0.5
    changes = [[0.1, 0.3], [-0.2, 0.0], [0.3, -0.1], [0.0, 0.2], [0.4, 0.4], [-0.3, 0.1]]
    decisions = decisions_of(changes, [1, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1])
    value, grad_BT = loss_and_gradient(TERMS["real"](tau=0.5), decisions)
    assert value == pytest.approx(0.8124583425, abs=1e-9)
    expected = torch.tensor([-0.200656169943774, 0.13465374958886892, 0.20087978926667768, 0.0, 0.0, 0.0]).double()
    torch.testing.assert_close(grad_BT[:, 0], expected, atol=1e-8, rtol=0)


def test_disco_weighs_the_highest_wrong_most():
    # ratios 1.1 | 0.9, 1.0, 1.2: -0.058781, weights of the wrong 0.289433, 0.319873, 0.390694 (DisCO)
    ratios = torch.tensor([1.1, 0.9, 1.0, 1.2]).double()
    decisions = decisions_of(ratios.log()[:, None].tolist(), [1, 0, 0, 0])
    value, grad_BT = loss_and_gradient(TERMS["disco"](), decisions)
    assert value == pytest.approx(-0.058781, abs=1e-6)
    expected = torch.tensor([-1, 0.289433, 0.319873, 0.390694]).double() * ratios
    torch.testing.assert_close(grad_BT[:, 0], expected, atol=1e-6, rtol=0)
    # without tau the wrong weigh alike: 1.1 - 3.1 / 3
    value, _ = loss_and_gradient(TERMS["disco"](tau=None), decisions)
    assert value == pytest.approx(3.1 / 3 - 1.1)
    # scores of log-probabilities
    value, _ = loss_and_gradient(TERMS["disco"](tau=None, score_by="mean_logprob"), decisions)
    assert value == pytest.approx(float(ratios[1:].log().mean() - ratios[0].log()))


def test_preferences_of_extremes_and_of_all_pairs():
    # against the reference every score is 0.5 nats a decision higher, which no difference sees
    changes = [[0.2, 0.1], [0.0, 0.0], [-0.1, -0.3]]
    decisions = decisions_of(changes, [2, 1, 0])
    value, grad_BT = loss_and_gradient(group_losses.preference(beta=0.5), decisions)
    # margin 0.5 * (0.3 + 0.4)
    pull = 1 / (1 + math.exp(0.35))
    assert value == pytest.approx(math.log(1 + math.exp(-0.35)))
    torch.testing.assert_close(grad_BT[:, 0], torch.tensor([-0.5 * pull, 0.0, 0.5 * pull]).double())
    # pairs (0, 1), (0, 2), (1, 2) of mean log-ratios 0.15, 0, -0.2
    term = group_losses.preference(beta=2.0, pairs="all", score_by="mean_log_ratio", against="old")
    value, _ = loss_and_gradient(term, decisions)
    assert value == pytest.approx(sum(math.log(1 + math.exp(-2 * m)) for m in (0.15, 0.35, 0.2)) / 3)
    # of equal best and worst the first: pair (0, 2) alone
    tied = decisions_of(changes, [1, 1, 0])
    value, grad_BT = loss_and_gradient(group_losses.preference(beta=0.5), tied)
    assert value == pytest.approx(math.log(1 + math.exp(-0.35)))
    assert not grad_BT[1].any()
    with pytest.raises(ConfigError, match="extremes or all"):
        group_losses.preference(pairs="some")


def test_equivalent_answers_score_alike_above_the_others():
    # sums against the reference, 0.5 more a decision: 1, 3, and -1, -3; times 0.1
    decisions = decisions_of([[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0], [-2.0, -2.0]], [1, 1, 0, 0])
    value, grad_BT = loss_and_gradient(TERMS["equivalents"](), decisions)
    assert value == pytest.approx(math.log(1 + math.exp(-0.4)) + 0.01)
    # -0.1 s(-0.4) / 2 of a right one, and 2 (0.1 - 0.2) 0.1 / 2 of the variance
    pull = 0.05 / (1 + math.exp(0.4))
    torch.testing.assert_close(grad_BT[:, 0], torch.tensor([-pull - 0.01, -pull + 0.01, pull, pull]).double())
    value, _ = loss_and_gradient(TERMS["equivalents"](variance=0.0), decisions_of([[0.0]] * 3, [1, 1, 1]))
    assert value == 0.0
    # a reward of ``right`` is not above it
    value, _ = loss_and_gradient(TERMS["equivalents"](right=1.0), decisions_of([[0.0]] * 3, [1, 1, 0]))
    assert value == 0.0


def test_the_hinge_opens_beyond_its_limit():
    # x 0.1 of two decisions: KL = e^0.1 - 1.1 = 0.005171
    kl = math.exp(0.1) - 1.1
    decisions = decisions_of([[0.1, 0.1], [0.1, 0.1]], [1, 0])
    value, grad_BT = loss_and_gradient(group_losses.kl_hinge(delta=0.001, beta=10.0), decisions)
    assert value == pytest.approx(10 * (kl - 0.001) * kl)
    torch.testing.assert_close(grad_BT, torch.full((2, 2), 10 * (kl - 0.001) * (math.exp(0.1) - 1) / 4).double())
    value, grad_BT = loss_and_gradient(group_losses.kl_hinge(delta=0.01, beta=10.0), decisions)
    assert value == 0
    assert not grad_BT.any()
    # two groups, the second at 0: the mean over groups is half
    decisions = decisions_of([[0.1, 0.1], [0.1, 0.1], [0.0, 0.0]], [1, 0, 1], [0, 0, 1], num_groups=2)
    value, _ = loss_and_gradient(group_losses.kl_hinge(delta=0.001, beta=10.0), decisions)
    assert value == pytest.approx(10 * (kl - 0.001) * kl / 2)


@pytest.mark.parametrize(
    "name", ["gvpo", "disco", "plain_disco", "preference", "all_preferences", "centered_regression"]
)
@pytest.mark.parametrize("rewards", [[1, 1, 1], [0, 0, 0]])
def test_groups_of_equal_rewards_have_no_gradient_on_policy(name: str, rewards: list[int]):
    value, grad_BT = loss_and_gradient(BUILT[name](), decisions_of([[0.0]] * 3, rewards))
    assert value == 0
    assert grad_BT.tolist() == [[0.0]] * 3


@pytest.mark.parametrize("name", ["gvpo", "disco", "pacs", "preference", "centered_regression"])
def test_a_group_of_one_has_no_loss(name: str):
    value, grad_BT = loss_and_gradient(BUILT[name](), decisions_of([[0.3]], [1]))
    assert value == 0
    assert grad_BT.tolist() == [[0.0]]


CHANGES = [[0.1, -0.2, 0.3], [0.0, 0.2, 0.1], [-0.3, 0.1, 0.0], [0.2, 0.0, -0.1], [0.05, 0.1, 0.4], [0.3, -0.1, 0.2]]
REWARDS = [1.0, 0.0, 0.25, 0.0, 1.0, 0.75]
GROUPS = [0, 0, 0, 1, 1, 0]
MASK = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("name", BUILT)
def test_groups_add_up_for_any_size_and_order(name: str):
    term = BUILT[name]()
    value, grad_BT = loss_and_gradient(term, decisions_of(CHANGES, REWARDS, GROUPS, mask=MASK))
    # each group separately, at half the weight
    parts = 0.0
    for group in (0, 1):
        rows = [row for row, other in enumerate(GROUPS) if other == group]
        alone = decisions_of(
            [CHANGES[row] for row in rows],
            [REWARDS[row] for row in rows],
            mask=[MASK[row] for row in rows],
            num_groups=2,
        )
        part, part_BT = loss_and_gradient(term, alone)
        parts += part
        torch.testing.assert_close(part_BT, grad_BT[rows])
    assert value == pytest.approx(parts)
    # in another order, padded by a column that may hold anything, and with a row that is in no group of this update
    order = [5, 3, 0, 4, 2, 1]
    mixed = decisions_of(
        [[math.nan, *CHANGES[row]] for row in order] + [[math.nan] * 4],
        [REWARDS[row] for row in order] + [1.0],
        [GROUPS[row] for row in order] + [0],
        mask=[[0, *MASK[row]] for row in order] + [[0] * 4],
    )
    result, result_BT = loss_and_gradient(term, mixed)
    assert result == pytest.approx(value)
    torch.testing.assert_close(result_BT[:6, 1:], grad_BT[order])
    assert not result_BT[:, 0].any()
    assert not result_BT[6].any()


@pytest.mark.parametrize("name", BUILT)
def test_gradients_match_finite_differences(name: str):
    if name == "kl_hinge":
        pytest.skip("its pull is a constant to its gradient; the closed form is tested above")
    decisions, term = decisions_of(CHANGES, REWARDS, GROUPS), BUILT[name]()

    def value(logprob_BT: Tensor) -> Tensor:
        return term.loss(replace(decisions, logprob_BT=logprob_BT)).value

    assert torch.autograd.gradcheck(value, decisions.logprob_BT)


@pytest.mark.parametrize("name", [name for name in BUILT if name != "kl_hinge"])
def test_a_member_without_a_reward_is_none(name: str):
    term = BUILT[name]()
    with_it = decisions_of(CHANGES[:3], [1.0, 0.0, math.nan])
    value, grad_BT = loss_and_gradient(term, with_it)
    without, without_BT = loss_and_gradient(term, decisions_of(CHANGES[:2], [1.0, 0.0]))
    assert value == pytest.approx(without)
    torch.testing.assert_close(grad_BT[:2], without_BT)
    assert not grad_BT[2].any()
    assert not term.active(with_it)[2].any()


def test_a_loss_of_groups_in_an_objective_couples_it():
    objective = Objective(surrogate=None, aggregate=lambda mask_BT, totals: mask_BT / 1, further=(TERMS["gvpo"](),))
    assert not objective.separable
    decisions = decisions_of([[0.0]] * 4, [1, 0, 0, 0])
    assert objective(decisions).value.item() == pytest.approx(0.125)
    assert objective.contributing(decisions).all()
    with pytest.raises(ConfigError, match="reward_BT"):
        objective(replace(decisions, reward_BT=None))
    with pytest.raises(ConfigError, match="group_BT"):
        objective(replace(decisions, group_BT=None))


def test_scores_by_hand():
    # logprobs -0.9, -1.2; old -1; reference -1.5; the third decision is no part
    decisions = decisions_of([[0.1, -0.2, math.nan], [math.nan] * 3], [1, 0], mask=[[1, 1, 0], [0, 0, 0]])
    expected = {
        "mean_log_ratio": -0.05,
        "sum_log_ratio": -0.1,
        "mean_ratio": (math.exp(0.1) + math.exp(-0.2)) / 2,
        "mean_logprob": -1.05,
        "sum_logprob": -2.1,
    }
    assert SCORES.keys() == expected.keys()
    for name, value in expected.items():
        assert score(name).of(decisions).tolist() == pytest.approx([value, 0.0])
    reference = score("sum_log_ratio", against="reference")
    assert reference.values == (Value("logprob", "reference"),)
    assert reference.of(decisions).tolist() == pytest.approx([0.9, 0.0])
    assert score("sum_logprob", against="reference").values == ()
    with pytest.raises(UnknownNameError, match="unknown score 'mean'"):
        score("mean")
