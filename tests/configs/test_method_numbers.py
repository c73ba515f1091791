"""Each shipped method as numbers: its loss and its advantages on a step small enough to work out by hand.

The step has D = 4 elements, s = 0.8, h = 0.25, so std = s sqrt(h) = 0.4. The policy that sampled had the mean
(0.1, -0.2, 0.3, 0) and drew the noise (0.5, -1, 0.25, 0.75); the policy of now has the mean moved by
(0.01, 0.02, -0.01, 0). Two samples took this step, one with advantage 1 and one with advantage -1.
"""

from __future__ import annotations

import pytest
import torch

from mmgrpo.algorithm import objective_of
from mmgrpo.config import AdvantageConfig, ObjectiveConfig
from mmgrpo.config.loading import CONFIGS, find_config, read_layers
from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.divergences import GAUSSIAN_DIVERGENCES, Moments
from mmgrpo.maths.gaussian import DENSITIES, REDUCTIONS
from mmgrpo.maths.objectives import Decisions
from mmgrpo.types import Noise, Scores
from mmgrpo.values import DRIFT, REFERENCE, from_reference
from tests.uniform import credit_of

STD, STEP = 0.4, 0.25
OLD_MEAN = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)
SAMPLE = OLD_MEAN + STD * torch.tensor([0.5, -1.0, 0.25, 0.75], dtype=torch.float64)
MEAN = OLD_MEAN + torch.tensor([0.01, 0.02, -0.01, 0.0], dtype=torch.float64)

# With A = 1 no bound acts on a ratio below 1: l = -r. With A = -1 one does: l = 1 - low. The loss is their mean.
LOSSES = {
    # log r = -0.01140625, r = 0.9886585546: (-r + 0.9999) / 2 = 0.0056207227; KL without dt 1.171875e-4, times 0.04
    "flow-grpo": 0.0056207227 + 4.6875e-6,
    # -mean (x - mean)^2 goes from -0.075 to -0.07865: log r = -0.00365, r = 0.9963566532: (-r + 0.99999) / 2
    "flow-grpo-fast": 0.0018166734,
    "dance-grpo": 0.0056207227,
    "mix-grpo": 0.0056207227,
    "mix-grpo-flash": 0.0056207227,
    # log r = (-0.01140625 + 4.6875e-4) * 0.4, r = 0.9956345564: (-r + 0.999998) / 2, times 1 / h = 4
    "grpo-guard": 0.0087268872,
    # the divergence is 4.6875e-4, above 1e-5: with A = 1 the ratio returns, -r; with A = -1 it would move on, 0
    "flow-dppo": -0.9886585546 / 2,
    # times 2.25 * 0.4 = 0.9; KL 4.6875e-4, times 0.004
    "tempflow-grpo": 0.9 * 0.0056207227 + 1.875e-6,
    "g2rpo": 0.0056207227,
    # of one step the median is its own: weight 1; KL 4.6875e-4, times 1e-5
    "sage-grpo": 0.0056207227 + 4.6875e-9,
    "chunk-grpo": 0.0056207227,
}

REWARDS = [[1.0, 2.0, 3.0, 6.0], [0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 1.0, 1.0]]
DEAD = [0.0, 0.0, 0.0, 0.0]
OVER_BATCH = [[-1.192498, -0.596249, 0.0, 1.788748], DEAD, [-0.149062, -0.149062, 0.149062, 0.149062]]
OWN_STD = [[-0.92582, -0.46291, 0.0, 1.38873], DEAD, [-0.866025, -0.866025, 0.866025, 0.866025]]
OWN_STD_EPS = [[-0.925777, -0.462889, 0.0, 1.388666], DEAD, [-0.865725, -0.865725, 0.865725, 0.865725]]
POPULATION = [[-1.068988, -0.534494, 0.0, 1.603482], DEAD, [-0.9996, -0.9996, 0.9996, 0.9996]]
ADVANTAGES = {
    "flow-grpo": OVER_BATCH,
    "flow-grpo-fast": OVER_BATCH,
    "grpo-guard": POPULATION,
    "tempflow-grpo": POPULATION,
    "dance-grpo": OWN_STD,
    "mix-grpo": OWN_STD,
    "mix-grpo-flash": OWN_STD,
    "g2rpo": OWN_STD,
    "sage-grpo": OWN_STD_EPS,
    "chunk-grpo": OWN_STD_EPS,
    # mean 1.25, squares 52.5 - 12 * 1.5625 = 33.75, over 11: deviation 1.751623
    "flow-dppo": [[-1.141798, -0.570899, 0.0, 1.712697], DEAD, [-0.142725, -0.142725, 0.142725, 0.142725]],
}


def test_every_drawing_method_has_its_numbers() -> None:
    names = {path.stem for path in (CONFIGS / "methods").rglob("*.yaml")}
    assert set(LOSSES) <= names
    assert set(ADVANTAGES) == set(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    values = read_layers(find_config(f"methods/{name}"))
    config = ObjectiveConfig.model_validate(values["objective"])
    objective = objective_of(config)
    density, reduce = DENSITIES[values["policy"]["density"]], REDUCTIONS[values["policy"]["reduction"]]
    old_logprob, logprob = (reduce(density(SAMPLE, mean, STD).sum(0, keepdim=True), 4) for mean in (OLD_MEAN, MEAN))
    now, then = (Moments(mean=mean, velocity=mean, std=STD, step=STEP) for mean in (MEAN, OLD_MEAN))
    mask_BT = torch.ones(2, 1, dtype=torch.bool)
    totals = Totals(num_samples=2, num_decisions=2)
    std_BT = torch.full((2, 1), STD, dtype=torch.float64)
    noise = Noise(std_BT=std_BT, step_BT=torch.full_like(std_BT, STEP), level_BT=torch.ones_like(std_BT))
    known = {DRIFT: GAUSSIAN_DIVERGENCES["gaussian"](now, then).mean().expand(2, 1)}
    if REFERENCE in objective.views:  # the reference is the policy that sampled
        divergence = config.kl.divergence or ""
        known[from_reference(divergence)] = GAUSSIAN_DIVERGENCES[divergence](now, then).mean().expand(2, 1)
    decisions = objective.modulated(
        Decisions(
            logprob_BT=logprob.expand(2, 1),
            old_logprob_BT=old_logprob.expand(2, 1),
            advantage_BT=torch.tensor([[1.0], [-1.0]], dtype=torch.float64),
            mask_BT=mask_BT,
            weight_BT=objective.weights(mask_BT, totals, noise),
            segment_BT=torch.zeros(2, 1, dtype=torch.long),
            mean_weight_BT=objective.mean_weights(mask_BT, totals),
            std_BT=std_BT,
            values=known,
        ),
        {},
    )
    loss = objective(decisions)
    assert float(loss.value) == pytest.approx(LOSSES[name], rel=1e-6)
    num_held = 0 if name == "flow-dppo" else 1
    assert (int(loss.diagnostics.clip_low_count), int(loss.diagnostics.clip_high_count)) == (num_held, 0)


def test_chunks_have_one_ratio_and_weigh_alike() -> None:
    """Log-ratios 3e-4 and 1e-4 of one chunk: r = exp(2e-4), held at 1.0001; 5e-5 of another: 1.00005000125."""
    values = read_layers(find_config("methods/chunk-grpo"))
    objective = objective_of(ObjectiveConfig.model_validate(values["objective"]))
    mask_BT, zero_BT = torch.ones(1, 3, dtype=torch.bool), torch.zeros(1, 3, dtype=torch.float64)
    decisions = Decisions(
        logprob_BT=torch.tensor([[3e-4, 1e-4, 5e-5]], dtype=torch.float64),
        old_logprob_BT=zero_BT,
        advantage_BT=zero_BT + 1,
        mask_BT=mask_BT,
        weight_BT=objective.weights(mask_BT, Totals(num_samples=1, num_decisions=3)).double(),
        segment_BT=torch.tensor([[0, 0, 1]]),
    )
    found = float(objective(objective.modulated(decisions, {})).value)
    assert found == pytest.approx(-(1.0001 + 1.00005000125) / 2, abs=1e-7)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages(name: str) -> None:
    config = AdvantageConfig.model_validate(read_layers(find_config(f"methods/{name}"))["advantage"])
    reward_BR = torch.tensor(REWARDS).reshape(12, 1)
    scores = Scores(
        names=("reward",), weight_R=torch.ones(1), value_BR=reward_BR, valid_BR=torch.ones_like(reward_BR).bool()
    )
    credit = credit_of(scores, 4, config)
    torch.testing.assert_close(credit.advantage_B.reshape(3, 4), torch.tensor(ADVANTAGES[name]), rtol=0, atol=2e-6)
    assert credit.zero_std_frac == pytest.approx(1 / 3)


def test_rewards_of_mix_grpo_are_normalised_and_added_without_another_scale() -> None:
    config = AdvantageConfig.model_validate(read_layers(find_config("methods/mix-grpo"))["advantage"])
    # of the group (0, 0, 1, 1) the second reward says (6, 4, 4, 6), at half the weight: sample std 0.57735 and 1.154701
    value_BR = torch.tensor([[0.0, 6.0], [0.0, 4.0], [1.0, 4.0], [1.0, 6.0]])
    scores = Scores(
        names=("a", "b"), weight_R=torch.tensor([1.0, 0.5]), value_BR=value_BR, valid_BR=value_BR.bool() | True
    )
    one, half = 0.8660254, 0.4330127
    expected_B = torch.tensor([-one + half, -one - half, one - half, one + half])
    torch.testing.assert_close(credit_of(scores, 4, config).advantage_B, expected_B)


@pytest.mark.parametrize("name", [name for name in ADVANTAGES if name != "flow-dppo"])
def test_advantages_are_held_within_five(name: str) -> None:
    config = AdvantageConfig.model_validate(read_layers(find_config(f"methods/{name}"))["advantage"])
    reward_BR = torch.zeros(64, 1)
    reward_BR[0] = 1.0  # over the group's spread: 63 / 64 / 0.125, about 7.9
    scores = Scores(
        names=("reward",), weight_R=torch.ones(1), value_BR=reward_BR, valid_BR=torch.ones_like(reward_BR).bool()
    )
    assert float(credit_of(scores, 64, config).advantage_B.max()) == 5.0


FORK_BOUNDS = {"spo": 10.0, "intuitor": 3.0, "tempo": 3.0, "ttrv": 3.0, "depo": 3.0, "coba-rl": 3.0}
"""``clip_ratio_c`` of the authors' forks of verl, as their scripts leave or set it."""


@pytest.mark.parametrize("name", FORK_BOUNDS)
def test_losses_of_negative_advantages_are_bounded_as_in_the_fork(name: str) -> None:
    surrogate = read_layers(find_config(f"methods/{name}"))["objective"]["surrogate"]
    assert (surrogate["name"], surrogate["bound"]) == ("dual_clipped", FORK_BOUNDS[name])
