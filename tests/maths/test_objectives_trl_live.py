"""TRL itself as the oracle: a seeded random grid of its options, each as a configuration of ours."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from random import Random
from typing import Any

import pytest
import torch

from mmgrpo.algorithm import objective_of
from mmgrpo.config import ObjectiveConfig
from mmgrpo.trl import GRPOConfig
from mmgrpo.trl.arguments import ARGUMENTS
from mmgrpo.trl.run_values import objective_values
from tests.maths.trl_oracle import Batch, our_outcome, totals_as_trl, trl_outcome

pytest.importorskip("trl")

NUM_COMBINATIONS = 400
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo", "gmpo", "rloo")
TOKEN_MEANS = ("bnpo", "dapo", "cispo", "vespo")
LEVELS = ("token", "sequence")


def draw_options(random: Random) -> dict[str, Any]:
    """One combination of TRL's options, of those that its losses read."""
    loss_type = random.choice(LOSS_TYPES)
    options: dict[str, Any] = {"epsilon": random.choice([0.05, 0.2, 0.4])}
    if loss_type == "cispo":  # there the absolute cap
        options["epsilon_high"] = random.choice([1.1, 1.5, 5.0])
    elif random.random() < 0.5:
        options["epsilon_high"] = random.choice([0.1, 0.28, 0.5])
    if loss_type in ("gmpo", "rloo"):
        options["trainer"] = loss_type
    else:
        options["loss_type"] = loss_type
        options["importance_sampling_level"] = random.choice(LEVELS)
        options["use_bias_correction_kl"] = random.random() < 0.5
        if random.random() < 0.4:
            options["off_policy_mask_threshold"] = random.choice([-0.2, 0.0, 0.1, 0.3])
    if loss_type != "rloo" and random.random() < 0.4:
        options["top_entropy_quantile"] = random.choice(
            [0.107, 0.231, 0.507, 0.893]
        )  # no quantile on a value, where rounding decides
    if loss_type != "rloo" and random.random() < 0.5:
        options["beta"] = random.choice([0.001, 0.04, 0.5])
    if loss_type in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo") and random.random() < 0.4:
        options["delta"] = random.choice([1.02, 1.3, 1.8, 4.0])
    if loss_type == "sapo":
        options |= {"sapo_temperature_pos": random.uniform(0.5, 2), "sapo_temperature_neg": random.uniform(0.5, 2)}
    if loss_type == "vespo":
        options |= {f"vespo_{name}": random.uniform(1, 4) for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")}
    if loss_type != "rloo" and random.random() < 0.3:
        options["gradient_accumulation_steps"] = random.choice([2, 4])
        options["steps_per_generation"] = random.choice([2, 8])
    # TRL's bonus is a mean over the decisions that the entropy mask keeps, whatever the loss; ours is over all of them
    plain = "top_entropy_quantile" not in options and "gradient_accumulation_steps" not in options
    if loss_type in TOKEN_MEANS and plain and random.random() < 0.5:
        options["entropy_coef"] = random.choice([0.01, -0.1])
    return options


def with_effect(options: dict[str, Any]) -> dict[str, Any]:
    """Without the options that ``mmgrpo.trl`` takes only together with others; TRL, which has all, must ignore them."""
    defaults = {field.name: field.default for field in fields(GRPOConfig)}
    values = defaults | options

    def has_effect(name: str) -> bool:
        if name == "importance_sampling_level" and values["loss_type"] == "vespo":
            return bool(values["beta"] and values["use_bias_correction_kl"])
        other, *effective = getattr(ARGUMENTS[name], "needs", ()) or (name, values[name])
        return values[other] in effective if effective else values[other] != defaults[other]

    return {name: value for name, value in options.items() if has_effect(name)}


def ours(options: dict[str, Any]) -> ObjectiveConfig:
    """The same as a configuration of ours: as ``mmgrpo.trl`` makes it, or by hand for TRL's other trainers."""
    if "trainer" not in options:
        values = objective_values(GRPOConfig(max_completion_length=8, **with_effect(options)))
        section = {key.removeprefix("objective."): value for key, value in values.items()}
        return ObjectiveConfig.model_validate({**section, "entropy_bonus": options.get("entropy_coef", 0.0)})
    low, high, beta = options["epsilon"], options.get("epsilon_high", options["epsilon"]), options.get("beta", 0.0)
    is_gmpo, share = options["trainer"] == "gmpo", options.get("top_entropy_quantile")
    return ObjectiveConfig.model_validate(
        {
            "surrogate": "unclipped" if is_gmpo else {"name": "clipped", "low": low, "high": high},
            "aggregate": "sequence_mean",
            "ratio_level": "sequence" if is_gmpo else "trajectory",
            "bound": {"name": "pessimistic", "low": low, "high": high} if is_gmpo else None,
            "selections": [] if share is None else [{"name": "ratio_top_entropy", "share": share}],
            "kl": {"divergence": "k3", "beta": beta} if beta else {},
        }
    )


def draw_batch(random: Random, options: dict[str, Any]) -> Batch:
    """Random matrices of random size; rows of every length, and empty ones where TRL counts those as zeros."""
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    B, T = random.randint(1, 6), random.randint(1, 9)
    trainer = options.get("trainer")
    length_B1 = torch.randint(1 if trainer else 0, T + 1, (B, 1), generator=generator)
    mask_BT = torch.arange(T).expand(B, T) < length_B1
    if random.random() < 0.3:  # holes, as those of tool outputs
        holes_BT = torch.rand(B, T, generator=generator) < 0.3
        mask_BT = mask_BT & ~holes_BT if not trainer else mask_BT
    old_BT, gap_BT, ref_BT, engine_BT = torch.randn(4, B, T, generator=generator, dtype=torch.float64)
    advantage_B = torch.randn(B, generator=generator, dtype=torch.float64)
    advantage_B[torch.rand(B, generator=generator) < 0.2] = 0
    logprob_BT = -2 + 0.5 * old_BT
    ratio_BT = None
    # TRL's vespo has that weight within its ratio, but not in its other ones
    other = "off_policy_mask_threshold" in options or (options.get("beta") and options.get("use_bias_correction_kl"))
    if trainer is None and random.random() < 0.3 and not (options["loss_type"] == "vespo" and other):
        ratio_BT = (0.3 * engine_BT).exp().clamp(max=1.2).where(mask_BT, 1.0)
    return Batch(
        logprob_BT=logprob_BT,
        old_logprob_BT=logprob_BT - random.choice([0.0, 0.1, 0.4]) * gap_BT,
        ref_logprob_BT=logprob_BT + 0.3 * ref_BT,
        entropy_BT=torch.rand(B, T, generator=generator).double(),
        mask_BT=mask_BT,
        advantage_B=advantage_B,
        engine_BT=ratio_BT,
        num_items=int(mask_BT.sum()) * random.choice([8, 24]) if "entropy_coef" not in options else None,
    )


def test_every_combination_equals_trl():
    random = Random(20260)
    worst, moved, counts = 0.0, 0, Counter()
    for _ in range(NUM_COMBINATIONS):
        options = draw_options(random)
        batch = draw_batch(random, options)
        expected = trl_outcome(batch, options)
        outcome = our_outcome(batch, objective_of(ours(options)), totals_as_trl(batch, options))
        worst = max(worst, outcome.distance(expected))
        moved += bool(expected.logprob_grad_BT.norm() > 1e-3)
        counts.update([options.get("trainer") or options["loss_type"], *options])
        counts.update(["engine"] if batch.engine_BT is not None else [])
    assert worst <= 1e-6
    assert moved > 0.7 * NUM_COMBINATIONS  # the comparison is not one of zeros
    assert {name: counts[name] for name in LOSS_TYPES if counts[name] < 30} == {}
    rarest = ("delta", "top_entropy_quantile", "off_policy_mask_threshold", "entropy_coef", "engine", "beta")
    assert {name: counts[name] for name in rarest if counts[name] < 30} == {}
