"""Runs that read internal values of the network: compared with the plain model, and over two steps."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo import Trainer, load_config
from mmgrpo.errors import ConfigError
from mmgrpo.maths.internals import attention_distance as distances
from mmgrpo.maths.internals import attention_influence as influences
from mmgrpo.maths.internals import effective_rank, gradient_curvature, gradient_square
from mmgrpo.maths.internals import rank_velocity as velocity
from mmgrpo.training.gradients import with_values
from mmgrpo.types import Sample
from mmgrpo.values import (
    ENTROPY,
    GRADIENT_CURVATURE,
    GRADIENT_SQUARE,
    RANK_OF_STATES,
    Value,
    attention_distance,
    attention_influence,
    rank_velocity,
)
from tests.configs.method_steps import Step, advantages_of, config_of
from tests.policies.test_language_ways import t5
from tests.policies.tiny_language import TEMPERATURE, measured_policy_of, policy_of, prompts_of

SMALL = {"steps": 2, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "update.optimizer.lr": 1e-3}


def test_values_are_those_of_the_plain_model() -> None:
    policy = measured_policy_of("llama", max_new_tokens=6)
    rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=1)
    requested = (RANK_OF_STATES, ENTROPY, rank_velocity(2), GRADIENT_SQUARE, GRADIENT_CURVATURE)
    values = with_values(policy, rollout, requested).values
    for row, sample in enumerate(rollout.samples):
        prompt_P = rollout.trace.prompts[rollout.trace.prompt_of_B[row]].ids_P
        token_T = torch.tensor(list(sample.tokens or ()))
        with torch.no_grad():
            output = policy.model(torch.cat([prompt_P, token_T])[None], output_hidden_states=True)
        here = slice(len(prompt_P) - 1, -1)
        state_TD, logits_TV = output.hidden_states[-1][0, here], output.logits[0, here] / TEMPERATURE
        expected = {
            RANK_OF_STATES: effective_rank(state_TD).expand(len(token_T)),
            rank_velocity(2): velocity(state_TD, 2).expand(len(token_T)),
            GRADIENT_SQUARE: gradient_square(state_TD, logits_TV, token_T),
            GRADIENT_CURVATURE: gradient_curvature(state_TD, logits_TV, token_T),
        }
        for value, expected_T in expected.items():
            torch.testing.assert_close(values[value][row, : len(token_T)], expected_T, rtol=1e-3, atol=1e-4)


def test_attention_is_that_of_the_plain_model() -> None:
    policy = measured_policy_of("llama", max_new_tokens=6)
    rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=1)
    requested = (attention_distance(2), attention_influence(1, 3))
    values = with_values(policy, rollout, requested).values
    assert policy.model.config._attn_implementation != "eager"
    policy.model.set_attn_implementation("eager")
    for row, sample in enumerate(rollout.samples):
        prompt_P = rollout.trace.prompts[rollout.trace.prompt_of_B[row]].ids_P
        token_T = torch.tensor(list(sample.tokens or ()))
        with torch.no_grad():
            output = policy.model(torch.cat([prompt_P, token_T])[None], output_attentions=True)
        middle = output.attentions[len(output.attentions) // 3 : 2 * len(output.attentions) // 3 + 1]
        weight_hTL = torch.cat([weight[0, :, -len(token_T) :] for weight in middle])
        order_h = distances(weight_hTL, inf).mean(1).argsort()
        num = round(0.3 * len(order_h))
        expected = {
            requested[0]: distances(weight_hTL[order_h[:num]], 2).mean(0),
            requested[1]: influences(weight_hTL[order_h[-num:]], 1, 3).mean(0),
        }
        for value, expected_T in expected.items():
            torch.testing.assert_close(values[value][row, : len(token_T)], expected_T, rtol=1e-4, atol=1e-5)


def test_attention_is_the_decoder_s_however_the_model_is_loaded() -> None:
    policy = policy_of("qwen2.5-vl", max_new_tokens=4)
    rollout = policy.rollout(prompts_of("qwen2.5-vl"), group_size=1, seed=1)
    requested = (attention_distance(2), attention_influence(1, 3))
    values = with_values(policy, rollout, requested).values
    policy.model.set_attn_implementation("eager")  # of the vision tower too
    again = with_values(policy, rollout, requested).values
    for value in requested:
        assert values[value].abs().sum() > 0
        torch.testing.assert_close(again[value], values[value], rtol=1e-5, atol=1e-6)


def test_a_model_without_states_or_attention_raises() -> None:
    policy = t5(max_new_tokens=3)
    rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=0)
    with pytest.raises(ConfigError, match=r"effective_rank: T5ForConditionalGeneration needs the plain path"):
        with_values(policy, rollout, (RANK_OF_STATES,))
    policy = measured_policy_of("llama", max_new_tokens=3)
    for layer in policy.model.model.layers:
        layer.self_attn.config = copy.deepcopy(layer.self_attn.config)  # so that nothing sets it to eager
    rollout = policy.rollout(prompts_of("llama"), group_size=1, seed=0)
    with pytest.raises(ConfigError, match=r"attention_distance\(2\): the layers of LlamaForCausalLM hand out no"):
        with_values(policy, rollout, (attention_distance(2),))


def lines_of(name: str, output: Path, **changes: Any) -> list[dict[str, Any]]:
    """What a run of two steps logs, in which every other member is right."""

    def right(samples: Sequence[Sample]) -> list[float]:
        return [float(sample.member) for sample in samples]

    config = load_config(f"methods/{name}", {**SMALL, "output": str(output), **changes})
    folder = Trainer(
        measured_policy_of("llama", max_new_tokens=6), {"right": right}, prompts_of("llama"), config
    ).train()
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_usual_numbers_follow_the_run(tmp_path: Path) -> None:
    bonus = {"name": "rank_bonus", "rank": 0.0, "velocity": 0.0, "acceleration": 0.0, "stride": 2}
    first, second = lines_of("verl", tmp_path, **{"advantage.estimators": [bonus], "update.minibatches": 1})
    for number, metric in (("rank", "effective_rank"), ("velocity", "rank_velocity")):
        key = f"config/advantage.estimators.rank_bonus.{number}"
        assert first[key] == 0.0
        assert first[f"decisions/{metric}_mean"] > 0
        assert second[key] == pytest.approx(0.3 * first[f"decisions/{metric}_mean"])
    assert second["optimizer/grad_norm"] > 0


def test_the_bonus_of_the_file() -> None:
    """The usual numbers are 10, 2 and -1; z is 1, 0, 0 of the right row and -1, 0, 0 of the wrong one: tanh 1 / 2."""
    (bonus,) = (named.model_dump() for named in config_of("verl").advantage.estimators)
    usual = {"rank": 10.0, "velocity": 2.0, "acceleration": -1.0}
    config = config_of("verl", {"advantage.estimators": [{**bonus, **usual}]})
    values: dict[Value, Sequence[Sequence[float]]] = {
        RANK_OF_STATES: [[20.0] * 2, [0.0] * 2],
        rank_velocity(40): [[2.0] * 2] * 2,
        Value("rank_acceleration", numbers=(40,)): [[-1.0] * 2] * 2,
    }
    result = advantages_of(config, Step(reward=(1.0, 0.0), values=values)).advantage_BT
    size = 0.5 / 0.7071078
    expected = torch.tensor([[size, size + min(0.3807971, size / 2)], [-size, -size]], dtype=torch.float64)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)


@pytest.mark.nightly
def test_tokens_that_would_move_much_are_left_out(tmp_path: Path) -> None:
    """|A| is 0.5 / 0.7072 of two members, so the shift is lr A^2 a, of which the mean parts the tokens."""
    zero = {"steps": 1, "advantage.filtered_samples": "mask", "update.optimizer.lr": 1.5e-5}
    wide = {"name": "within_curvature", "shift": 0.01, "divergence": 1e-4}
    (line,) = lines_of("capo", tmp_path / "all", **zero, **{"advantage.filters": [wide]})
    assert line["policy/trained_frac"] == 1.0
    middle = 1.5e-5 * (0.5 / 0.7072068) ** 2 * line["decisions/gradient_square_mean"]
    near = {"name": "within_curvature", "shift": middle, "divergence": 1.0}
    (line,) = lines_of("capo", tmp_path / "some", **zero, **{"advantage.filters": [near]})
    assert 0.1 < line["policy/trained_frac"] < 0.9
    assert line["optimizer/grad_norm"] > 0
    (slow,) = lines_of(
        "capo", tmp_path / "slow", **zero | {"update.optimizer.lr": 1e-9}, **{"advantage.filters": [near]}
    )
    assert slow["policy/trained_frac"] == 1.0  # the step that is predicted is that of the update
    other = [near | {"lr": 1e-3}]
    with pytest.raises(
        ConfigError, match=r"within_curvature.lr is 0.001 and update.optimizer.lr 1.5e-05.*: leave out its lr"
    ):
        lines_of("capo", tmp_path, **zero, **{"advantage.filters": other})


def test_attended_tokens_count_more(tmp_path: Path) -> None:
    near = {"name": "anchors", "near": 1, "far": 3}
    for line in lines_of("preplan-and-anchor-credit", tmp_path, **{"advantage.estimators": [near], "steps": 1}):
        assert line["decisions/attention_distance_mean"] > 0
        assert line["decisions/attention_influence_mean"] > 0
        assert line["policy/on_policy_gap"] < 1e-5
        assert line["optimizer/grad_norm"] > 0
