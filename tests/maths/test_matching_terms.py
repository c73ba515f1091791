"""DiffusionNFT and DGPO on prediction errors: golden numbers, signs of gradients, groups."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.matching import matching_errors
from mmgrpo.maths.terms.group_losses import group_weight, optimality
from mmgrpo.methods.group_losses.dgpo import dgpo
from mmgrpo.methods.sampling.diffusion_nft import diffusion_nft, negative_error, positive_error
from mmgrpo.values import Value
from tests.maths.decision_rows import decisions_at

# t 0.6, x0 (0.5, -0.5), eps (1, 0): x_t (0.8, -0.2); v_old (0.4, 0.6), v (0.5, 0.45)
X0 = torch.tensor([[0.5, -0.5]], dtype=torch.float64)
NOISED = torch.tensor([[0.8, -0.2]], dtype=torch.float64)
LEVEL = torch.tensor([0.6], dtype=torch.float64)
OLD = torch.tensor([[0.4, 0.6]], dtype=torch.float64)
NOW = torch.tensor([[0.5, 0.45]], dtype=torch.float64)


def decisions_of(
    logprob_BT: Tensor,
    advantage_BT: Tensor,
    *,
    groups: list[int] | None = None,
    old_BT: Tensor | None = None,
    mask_BT: Tensor | None = None,
    values: dict[Value, Tensor] | None = None,
) -> Decisions:
    shape = logprob_BT.shape
    mask_BT = torch.ones(shape, dtype=torch.bool) if mask_BT is None else mask_BT
    return decisions_at(
        logprob_BT,
        old_logprob_BT=logprob_BT.detach() if old_BT is None else old_BT,
        advantage_BT=advantage_BT,
        mask_BT=mask_BT,
        weight_BT=mask_BT.double() / mask_BT.sum(),
        group_BT=None if groups is None else torch.tensor(groups)[:, None].expand(shape),
        values=values or {},
    )


def nft(velocity: Tensor, *, strength: float, advantage: float) -> Tensor:
    errors = matching_errors(X0, NOISED, LEVEL, velocity, OLD, strength=strength)
    values = {
        positive_error(strength): errors.positive[:, None],
        negative_error(strength): errors.negative[:, None],
    }
    unit_BT = torch.ones(1, 1, dtype=torch.float64)
    term = diffusion_nft(strength=strength)
    assert set(term.values) == set(values)
    return term.loss(decisions_of(0 * unit_BT, advantage * unit_BT, values=values)).value


def test_errors_of_the_implied_policies():
    # b 1: x+ = x_t - 0.6 v = (0.5, -0.47), x- = (0.62, -0.65): mean squares 0.00045, 0.01845, mean sizes 0.015, 0.135
    errors = matching_errors(X0, NOISED, LEVEL, NOW, OLD, strength=1.0)
    assert errors.positive.item() == pytest.approx(0.00045 / 0.015)
    assert errors.negative.item() == pytest.approx(0.01845 / 0.135)
    with pytest.raises(ConfigError, match="above 0"):
        matching_errors(X0, NOISED, LEVEL, NOW, OLD, strength=0.0)


@pytest.mark.parametrize(("strength", "expected"), [(1.0, 0.31), (0.1, 2.852)])
def test_diffusion_nft_golden(strength: float, expected: float):
    # A 2: r = 0.7
    assert nft(NOW, strength=strength, advantage=2.0).item() == pytest.approx(expected, abs=5e-4)


def test_diffusion_nft_at_the_old_weights_moves_by_twice_the_optimality_less_one():
    # A 2.5: r 0.75, factor 0.5; A 5 and more: 1; A 0: nothing; and the sign turns with A
    def slope(advantage: float) -> Tensor:
        velocity = OLD.clone().requires_grad_()
        return torch.autograd.grad(nft(velocity, strength=1.0, advantage=advantage), velocity)[0]

    full = slope(5.0)
    assert full.abs().sum() > 0
    torch.testing.assert_close(slope(2.5), 0.5 * full)
    torch.testing.assert_close(slope(-5.0), -full)
    torch.testing.assert_close(slope(9.0), full)
    torch.testing.assert_close(slope(0.0), torch.zeros_like(full))
    # its value does not tell: it is one for any advantage
    values = [nft(OLD, strength=1.0, advantage=advantage).item() for advantage in (-5.0, 0.0, 2.5)]
    assert values == pytest.approx([values[0]] * 3)


def test_optimality_is_a_share():
    advantage_BT = torch.tensor([[-9.0, -5.0, 0.0, 2.5, 5.0, 9.0]])
    assert optimality(advantage_BT, limit=5.0).tolist() == [[0.0, 0.0, 0.5, 0.75, 1.0, 1.0]]


REFERENCE = Value("logprob", "reference")


def dgpo_of(
    errors: list[list[float]],
    reference: list[list[float]],
    advantages: list[float],
    groups: list[int],
    *,
    beta: float = 1.0,
    clip: float | None = None,
    old: list[list[float]] | None = None,
) -> tuple[Tensor, Tensor]:
    logprob_BT = (-torch.tensor(errors, dtype=torch.float64)).requires_grad_()
    advantage_BT = torch.tensor(advantages, dtype=torch.float64)[:, None].expand_as(logprob_BT)
    decisions = decisions_of(
        logprob_BT,
        advantage_BT,
        groups=groups,
        old_BT=None if old is None else -torch.tensor(old, dtype=torch.float64),
        values={REFERENCE: -torch.tensor(reference, dtype=torch.float64)},
    )
    loss = dgpo(beta=beta, clip=clip).loss(decisions).value
    return loss, torch.autograd.grad(loss, logprob_BT)[0]


def test_groups_at_the_reference_weigh_one_half():
    # errors 0.2, 0.4, A 1, -1: 0.5 (0.2 - 0.4) / 2; an error's slope is 0.5 A / 2
    loss, grad_BT = dgpo_of([[0.2], [0.4]], [[0.2], [0.4]], [1.0, -1.0], [0, 0])
    assert loss.item() == pytest.approx(-0.05)
    torch.testing.assert_close(grad_BT, torch.tensor([[-0.25], [0.25]], dtype=torch.float64))


def test_groups_below_their_preference_weigh_more():
    # sum A beta (e - e_ref) / G = 0.5: sigmoid 0.622459; each level and group separately
    errors, reference = [[0.7, 0.2], [0.2, 0.2], [0.1, 0.1]], [[0.2, 0.2], [0.7, 0.2], [0.1, 0.1]]
    loss, grad_BT = dgpo_of(errors, reference, [1.0, -1.0, 1.0], [4, 4, 2])
    expected = torch.tensor([[-0.622459, -0.5], [0.622459, 0.5], [-0.5, -0.5]], dtype=torch.float64) / 6
    torch.testing.assert_close(grad_BT, expected, atol=1e-6, rtol=0)
    assert loss.item() == pytest.approx(float(-(expected * torch.tensor(errors)).sum()), abs=1e-6)
    order = [2, 0, 1]
    _, mixed_BT = dgpo_of(
        [errors[row] for row in order], [reference[row] for row in order], [1.0, 1.0, -1.0], [2, 4, 4]
    )
    torch.testing.assert_close(mixed_BT, grad_BT[order])


def test_gains_beyond_the_clip_have_no_gradient():
    # A 1 and ratio exp(e_old - e) = 1.3 at clip 0.2: none; a fall to 0.7 keeps it, and so does A -1 at 1.3
    far, near = 0.2623642644674911, -0.35667494393873245
    old = [[0.5 + far], [0.5 + near], [0.5 + far], [0.5 + near]]
    _, grad_BT = dgpo_of([[0.5]] * 4, [[0.5]] * 4, [1.0, 1.0, -1.0, -1.0], [0] * 4, clip=0.2, old=old)
    assert (grad_BT != 0).flatten().tolist() == [False, True, True, False]


def test_masked_members_are_in_no_group():
    gain_BT = torch.tensor([[1.0], [5.0], [-1.0]])
    mask_BT = torch.tensor([[True], [False], [True]])
    group_BT = torch.zeros(3, 1, dtype=torch.long)
    assert group_weight(gain_BT, mask_BT, group_BT, beta=1.0)[[0, 2]].tolist() == [[0.5], [0.5]]
    with pytest.raises(ConfigError, match="group_BT"):
        group_weight(gain_BT, mask_BT, None, beta=1.0)


def test_values_carry_their_strength():
    assert str(positive_error(0.1)) == "positive_error(0.1)@old"
    assert positive_error(0.1) != positive_error(1.0)
    assert str(Value("k3", "reference")) == "k3@reference"


def test_levels_are_those_of_the_rows_of_images():
    """Of a latent of 0 and a velocity of 1 the error is the level itself: l^2 over |l|."""
    zero, unit = torch.zeros(3, 1, 2, 2), torch.ones(3, 1, 2, 2)
    level = torch.tensor([0.25, 0.5, 1.0])
    errors = matching_errors(zero, zero, level, unit, unit, strength=1.0)
    assert errors.positive.tolist() == pytest.approx([0.25, 0.5, 1.0])
