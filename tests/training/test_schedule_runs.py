"""Schedules during a run: the configuration of each step, its effect on training, and resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.algorithm import Algorithm, schedules_of
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import dump_config, validated
from mmgrpo.data.history import History
from mmgrpo.errors import ConfigError
from mmgrpo.explain.view_passes import reads_reference
from mmgrpo.memory import Memory
from mmgrpo.system.yamls import parse_yaml
from mmgrpo.training.build import build_rewards
from mmgrpo.training.components import StepRewards
from mmgrpo.types import Prompt, Sample
from tests.test_trainer import BASE, lines, run, weights

ASCENT = {"target": 0.8, "rate": 0.5}
KL_ASCENT = {"name": "dual_ascent", "metric": "policy/kl_mean", "target": 0.1, "rate": -1}
SHORT = {"name": "overlong", "label": "short", "max_length": 4, "margin": 1}
KL = {"objective.kl.beta": {"name": "linear", "start": 0, "end": 0.04, "steps": 100}}

CROSS_POLICY = {"name": "cross_policy", "weights": "reference"}
LATER = {"name": "step", "values": [0.0, 1.0], "at": [2]}
PREFERENCE = {
    "name": "preference",
    "weight": 0.0,
    "pairs": "extremes",
    "score_by": "sum_log_ratio",
    "against": "reference",
}


def fixed(value: Any) -> dict[str, Any]:
    """A schedule of one value."""
    return {"name": "step", "values": [value], "at": []}


def config_of(**changes: Any) -> RunConfig:
    return validated({"objective": {"kl": {"divergence": "k3"}}, **changes})


class TestConfigAt:
    def test_linear_kl(self) -> None:
        config = config_of(schedules=KL)
        values = [schedules_of(config).at(step, Memory()).config.objective.kl.beta for step in (0, 50, 100, 500)]
        assert values == [0.0, 0.02, 0.04, 0.04]
        assert schedules_of(config).at(50, Memory()).config.model_dump(exclude={"objective"}) == config.model_dump(
            exclude={"objective"}
        )

    def test_without_a_change_the_configuration_is_the_same_object(self) -> None:
        config = config_of()
        assert schedules_of(config).at(7, Memory()).config is config
        schedules = schedules_of(config_of(schedules=KL))
        assert schedules.at(200, Memory()) is schedules.at(300, Memory())

    def test_values_of_two_phases(self) -> None:
        phases = {"rollout.group_size": [4, 16], "objective.surrogate.low": [0.1, 0.2]}
        config = config_of(
            schedules={key: {"name": "step", "values": values, "at": [20]} for key, values in phases.items()}
        )
        early, late = (schedules_of(config).at(step, Memory()).config for step in (19, 20))
        assert (early.rollout.group_size, late.rollout.group_size) == (4, 16)
        assert early.objective.surrogate is not None
        assert early.objective.surrogate.settings == {"low": 0.1, "high": 0.2}
        assert late.objective.surrogate is not None
        assert late.objective.surrogate.settings == {"low": 0.2, "high": 0.2}

    def test_integers_stay_integers(self) -> None:
        growing = {"rollout.group_size": {"name": "linear", "start": 4, "end": 9, "steps": 10}}
        config = config_of(schedules=growing)
        assert [schedules_of(config).at(step, Memory()).config.rollout.group_size for step in (0, 3, 10)] == [4, 6, 9]

    def test_rewards_by_label_and_the_policys_drawing(self) -> None:
        rewards = [{"name": "overlong", "label": "short", "max_length": 40, "margin": 10, "weight": 0.5}]
        moving = {
            "rewards.short.max_length": {"name": "step", "values": [40, 80], "at": [10]},
            "rewards.short.weight": {"name": "linear", "start": 1, "end": 0, "steps": 10},
            "policy.temperature": {"name": "linear", "start": 1.2, "end": 1, "steps": 10},
            "policy.max_new_tokens": {"name": "step", "values": [16, 32], "at": [10]},
        }
        config = config_of(rewards=rewards, schedules=moving, policy={"name": "language", "model": "m"})
        moved = schedules_of(config).at(10, Memory())
        assert moved.config.rewards[0].weight == 0
        assert moved.config.rewards[0].settings == {"max_length": 80, "margin": 10}
        assert moved.sampling_settings == {"temperature": 1, "max_new_tokens": 32}
        assert moved.rewards == {"short": {"max_length": 80, "weight": 0}}
        assert moved.metrics["config/policy.max_new_tokens"] == 32
        call = {"policy.call.num_inference_steps": {"name": "step", "values": [4, 8], "at": [1]}}
        live = schedules_of(config_of(schedules=call)).at(1, Memory())
        assert live.sampling_settings == {"call": {"num_inference_steps": 8}}

    def test_survives_its_file(self) -> None:
        config = config_of(schedules={**KL, "objective.surrogate": fixed({"name": "clipped", "low": 0.1, "high": 0.3})})
        assert validated(parse_yaml(dump_config(config))) == config

    @pytest.mark.parametrize(
        ("sections", "message"),
        [
            (
                {"schedules": {"policy.model": {"name": "step", "values": ["a"], "at": []}}},
                "it defines the trained model",
            ),
            ({"schedules": {"policy.lora.rank": {"name": "linear"}}}, "it defines the trained model"),
            (
                {"schedules": {"update.optimizer.lr": {"name": "linear"}}},
                "keys that can begin with objective., advantage.",
            ),
            ({"schedules": {"seed": {"name": "linear"}}}, "seed cannot change"),
            ({"schedules": {"rollout.prompts_per_step": {"name": "linear"}}}, "the order of prompts"),
            ({"schedules": {"rewards.a.timeout_s": {"name": "linear"}}}, "rewards.LABEL.NUMBER"),
            ({"schedules": {"advantage.critic.warmup_steps": {"name": "linear"}}}, "it is trained throughout the run"),
            ({"schedules": {"rollout.task.weight": {"name": "linear"}}}, "combined before the run"),
        ],
    )
    def test_fixed_keys_raise_on_loading(self, sections: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            config_of(**sections)

    @pytest.mark.parametrize(
        ("sections", "message"),
        [
            ({"schedules": {"objective.kl.beta": {"name": "linaer"}}}, "did you mean linear"),
            ({"schedules": {"objective.kl.beta": {"name": "linear", "start": 1, "end": 2}}}, "needs steps"),
            ({"schedules": {"objective.kl.betas": {**KL["objective.kl.beta"]}}}, "did you mean beta"),
            ({"schedules": {"objective.bound.low": {**KL["objective.kl.beta"]}}}, "has no bound"),
            ({"schedules": {"objective.kl.beta": {**KL["objective.kl.beta"], "end": -1}}}, "with objective.kl.beta"),
            (
                {"schedules": {"rollout.group_size": {"name": "step", "values": [8, 1], "at": [5]}}},
                "rollout.group_size",
            ),
            (
                {"schedules": {"objective.views.hinted.weights": fixed("old")}},
                "views.*forward passes are planned before",
            ),
            (
                {"schedules": {"policy.rollout_batch": fixed(1), "policy.chat": fixed(True)}},
                "policy.chat cannot change",
            ),
            ({"schedules": {"policy.update_tokens": {**KL["objective.kl.beta"]}}}, "can: temperature, top_k, top_p"),
            ({"schedules": {"rewards.x.weight": fixed(1)}}, "no reward of that label, known are overlong"),
            ({"schedules": {"objective.kl.beta": {"name": "adaptive_kl", "target": 1}}}, "must begin above 0"),
            ({"schedules": {"objective.kl.beta": {"name": "dual_ascent", "target": 1, "rate": 1}}}, "needs metric"),
            ({"schedules": {"objective.kl.beta": {**KL_ASCENT}}}, "rest for ever at 0: begin above 0"),
            ({"schedules": {"objective.terms.near.weight": fixed(1)}}, "has no near"),
            ({"schedules": {"objective.auxiliary.supervised.weight": fixed(1)}}, "has no supervised"),
            (
                {"schedules": {"advantage.clamp": {"name": "dual_ascent", "metric": "x", "target": 1, "rate": 1}}},
                "set it",
            ),
        ],
    )
    def test_wrong_numbers(self, sections: dict[str, Any], message: str) -> None:
        rewards = [{"name": "overlong", "max_length": 40, "margin": 10}]
        with pytest.raises(ConfigError, match=message):
            schedules_of(config_of(policy={"name": "language", "model": "m"}, rewards=rewards, **sections))


class TestControllers:
    def test_dual_ascent_of_a_rewards_weight(self) -> None:
        follows = {"name": "dual_ascent", "metric": "reward/short/mean", **ASCENT}
        rewards = [{**SHORT, "weight": 0.0}]
        schedules = schedules_of(config_of(rewards=rewards, schedules={"rewards.short.weight": follows}))
        memory = schedules.updated(Memory(), {"reward/short/mean": 0.6})
        assert schedules.at(1, memory).config.rewards[0].weight == pytest.approx(0.1)
        memory = schedules.updated(memory, {"reward/short/mean": 0.9})
        assert schedules.at(2, memory).config.rewards[0].weight == pytest.approx(0.05)
        assert schedules.updated(memory, {}) is memory
        assert schedules.inactive({}) == {"schedules/rewards.short.weight/inactive": 1.0}

    def test_one_that_moves_every_other_step_follows_the_mean(self) -> None:
        follows = {"name": "dual_ascent", "metric": "reward/short/mean", "every": 2, **ASCENT}
        schedules = schedules_of(
            config_of(rewards=[{**SHORT, "weight": 0.0}], schedules={"rewards.short.weight": follows})
        )
        memory = schedules.updated(Memory(), {"reward/short/mean": 0.4})
        assert schedules.at(1, memory).config.rewards[0].weight == 0.0
        memory = schedules.updated(memory, {"reward/short/mean": 0.8})  # 0.5 (0.8 - 0.6)
        assert schedules.at(2, memory).config.rewards[0].weight == pytest.approx(0.1)

    @pytest.mark.parametrize(("name", "every"), [("dual_ascent", 0), ("against_trend", 1), ("against_trend", 1.5)])
    def test_one_that_would_never_move(self, name: str, every: float) -> None:
        follows = {"name": name, "metric": "reward/mean", "every": every, **(ASCENT if name == "dual_ascent" else {})}
        with pytest.raises(ConfigError, match="steps or more, got every"):
            schedules_of(config_of(schedules={"objective.kl.beta": follows}))

    def test_a_constraint_is_a_term_weighted_by_its_multiplier(self) -> None:
        """Held below: lambda' = max(lambda - 0.5 (0.02 - measured), 0.001)."""
        terms = [{"name": "departure"}, {"name": "divergence", "form": "k3", "label": "near", "weight": 0.1}]
        multiplier = {"metric": "policy/near_mean", "target": 0.02, "rate": -0.5, "low": 0.001}
        config = config_of(
            objective={"terms": terms},
            schedules={"objective.terms.near.weight": {"name": "dual_ascent", **multiplier}},
        )
        schedules = schedules_of(config)
        memory = schedules.updated(Memory(), {"policy/near_mean": 0.06})
        assert [term.weight for term in schedules.at(1, memory).config.objective.terms] == pytest.approx([1.0, 0.12])
        memory = schedules.updated(memory, {"policy/near_mean": 0.0})
        assert schedules.at(2, memory).config.objective.terms[1].weight == pytest.approx(0.11)
        assert [term.weight for term in config.objective.terms] == [1.0, 0.1]
        without_low = {"name": "dual_ascent", **multiplier, "low": 0.0}
        with pytest.raises(ConfigError, match="give dual_ascent a low above 0"):
            schedules_of(config_of(objective={"terms": terms}, schedules={"objective.terms.near.weight": without_low}))
        with pytest.raises(ConfigError, match="say which number of it"):
            schedules_of(config_of(objective={"terms": terms}, schedules={"objective.terms.near": fixed(1)}))

    def test_the_weight_of_an_auxiliary_loss_decreases(self) -> None:
        fades = {"name": "linear", "start": 1, "end": 0, "steps": 4}
        section = [{"name": "answers", "label": "expert", "column": "solution"}]
        config = config_of(objective={"auxiliary": section}, schedules={"objective.auxiliary.expert.weight": fades})
        values = [schedules_of(config).at(step, Memory()).config.objective.auxiliary[0].weight for step in (0, 1, 4)]
        assert values == [1.0, 0.75, 0.0]
        with pytest.raises(ConfigError, match=r"the weight can, as objective\.auxiliary\.LABEL\.weight"):
            config_of(objective={"auxiliary": section}, schedules={"objective.auxiliary.expert.column": fades})

    def test_adaptive_kl_is_kept_in_the_checkpoint(self) -> None:
        follows = {"objective.kl.beta": {"name": "adaptive_kl", "target": 0.01}}
        config = config_of(objective={"kl": {"divergence": "k3", "beta": 0.05}}, schedules=follows)
        memory = schedules_of(config).updated(Memory(), {"policy/kl_mean": 0.02})
        again = Memory().restored(memory.state_dict())
        assert schedules_of(config).at(1, again).config.objective.kl.beta == pytest.approx(0.05 * 1.02)


class TestStepRewards:
    def test_a_rewards_own_numbers(self) -> None:
        rewards = [
            {"name": "overlong", "label": "short", "max_length": 4, "margin": 2},
            {"name": "repetition", "size": 2},
        ]
        moves = {
            "rewards.short.max_length": {"name": "step", "values": [4, 8], "at": [2]},
            "rewards.repetition.weight": {"name": "linear", "start": 1, "end": 0, "steps": 4},
        }
        config = config_of(rewards=rewards, schedules=moves)
        algorithm = Algorithm.of(config)
        now = StepRewards(build_rewards(config.rewards), algorithm)
        samples = [Sample(Prompt("a"), 0, 0, text="w x y z u", tokens=[1, 2, 3, 4, 5])]
        now.apply_schedules(algorithm.at(0, Memory()))
        early, functions = now.scorer(samples), [reward.function for reward in now.rewards]
        now.apply_schedules(algorithm.at(1, Memory()))
        assert [reward.function for reward in now.rewards] == functions  # only a weight has moved
        assert [reward.weight for reward in now.rewards] == [1.0, 0.75]
        now.apply_schedules(algorithm.at(2, Memory()))
        late = now.scorer(samples)
        assert now.rewards[1].function is functions[1]
        # five tokens: beyond 4 is -1; within 8 - 2 is 0
        assert (float(early.value_BR[0, 0]), float(late.value_BR[0, 0])) == (-1.0, 0.0)

    def test_a_contexts_own_numbers(self) -> None:
        begun = {"name": "solution_prefix", "share": 1.0}
        moves = {"rollout.prompt_templates.begun.share": {"name": "linear", "start": 1, "end": 0, "steps": 2}}
        config = config_of(rollout={"prompt_templates": {"begun": begun}}, rewards=[SHORT], schedules=moves)
        algorithm = Algorithm.of(config)
        prompt, values = Prompt("a", columns={"solution": "b c"}), []
        for step in range(3):
            templated = algorithm.at(step, Memory()).prompt_templates["begun"](prompt, 0, History())
            assert templated is not None
            values.append(templated.prefix)
        assert values == ["b c ", "b ", None]

    def test_labels_that_are_no_rewards(self) -> None:
        config = config_of(schedules={"rewards.other.weight": fixed(1)})
        with pytest.raises(ConfigError, match="no reward 'other', known are short"):
            StepRewards(build_rewards(config_of(rewards=[SHORT]).rewards), Algorithm.of(config))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"schedules": KL}, True),
        ({"schedules": {"rollout.strategy": {"name": "step", "values": ["fixed", CROSS_POLICY], "at": [2]}}}, True),
        ({"schedules": {"rollout.strategy": {"name": "step", "values": ["fixed", "refill"], "at": [2]}}}, False),
        ({"objective": {"terms": [PREFERENCE]}, "schedules": {"objective.terms.preference.weight": LATER}}, True),
        ({"schedules": {"objective.terms": {"name": "step", "values": [[], [PREFERENCE]], "at": [2]}}}, True),
    ],
)
def test_a_reference_that_a_later_step_reads_is_copied_at_the_start(changes: dict[str, Any], expected: bool) -> None:
    assert reads_reference(Algorithm.of(config_of(**changes))) == expected


@pytest.mark.nightly
def test_a_run_trains_with_the_numbers_of_the_step_and_resumes(tmp_path: Path) -> None:
    values = {
        "objective": {**BASE["objective"], "kl": {**BASE["objective"]["kl"], "beta": 0.0}},
        "schedules": {
            "objective.kl.beta": {"name": "linear", "start": 0, "end": 0.4, "steps": 4},
            "advantage.clamp": {"name": "dual_ascent", "metric": "reward/mean", "target": 0, "rate": 1e-3, "low": 0.5},
            "update.optimizer.max_grad_norm": {"name": "step", "values": [1.0, 1e-3], "at": [2]},
            "rollout.group_size": {"name": "step", "values": [3, BASE["rollout"]["group_size"]], "at": [2]},
        },
        "advantage": {"clamp": 2.0},
    }
    uninterrupted = run(tmp_path / "whole", checkpoint={"every": 2}, **values)
    result = lines(uninterrupted)[::2]
    assert [row["config/objective.kl.beta"] for row in result] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert [row["config/update.optimizer.max_grad_norm"] for row in result] == [1.0, 1.0, 1e-3, 1e-3]
    assert [row.get("config/rollout.group_size") for row in result] == [3, 3, *[BASE["rollout"]["group_size"]] * 2]
    assert "policy/kl_mean" not in result[0]  # no reference pass yet
    # the reference is the weights before the first step, though it was first asked for at the second
    assert result[1]["policy/kl_mean"] > 0
    clamps = [row["config/advantage.clamp"] for row in result]
    assert clamps[0] == 2.0
    for row, before, after in zip(lines(uninterrupted)[1::2], clamps, clamps[1:], strict=False):
        assert after == pytest.approx(max(before - 1e-3 * row["reward/mean"], 0.5))
    resumed = run(
        tmp_path / "whole",
        resume=uninterrupted.folder.path / "checkpoints" / "step-000002",
        checkpoint={"every": 2},
        **values,
    )
    assert torch.equal(weights(resumed), weights(uninterrupted))
    plain = [{k: v for k, v in row.items() if not k.startswith("time")} for row in lines(resumed)]
    assert [row["config/advantage.clamp"] for row in plain[::2]] == clamps


@pytest.mark.nightly
def test_a_multiplier_follows_the_term_that_it_weighs(tmp_path: Path) -> None:
    """Held below 0, which no divergence is: lambda' = lambda + 1e3 measured."""
    near = {"name": "divergence", "form": "gaussian", "label": "near", "weight": 0.1}
    ascent = {"name": "dual_ascent", "metric": "policy/near_mean", "target": 0, "rate": -1e3, "low": 0.01}
    objective = {"surrogate": BASE["objective"]["surrogate"], "terms": [near]}
    trainer = run(tmp_path, steps=3, objective=objective, schedules={"objective.terms.near.weight": ascent})
    values = lines(trainer)
    multipliers = [row["config/objective.terms.near.weight"] for row in values[::2]]
    assert multipliers[0] == 0.1
    for row, before, after in zip(values[1::2], multipliers, multipliers[1:], strict=False):
        assert row["policy/near_mean"] > 0
        assert row["policy/loss/near"] == pytest.approx(before * row["policy/near_mean"])
        assert after == pytest.approx(before + 1e3 * row["policy/near_mean"])


@pytest.mark.nightly
def test_a_constant_schedule_equals_the_run_without_it(tmp_path: Path) -> None:
    still = {"objective.kl.beta": {"name": "linear", "start": 0.1, "end": 0.1, "steps": 4}}
    assert torch.equal(
        weights(run(tmp_path / "plain", steps=2)), weights(run(tmp_path / "still", steps=2, schedules=still))
    )


def test_an_algorithm_binds_only_the_sections_that_changed() -> None:
    values = {"name": "step", "values": [0.1, 0.2], "at": [2]}
    algorithm = Algorithm.of(config_of(schedules={"objective.kl.beta": values}))
    first, second, third = (algorithm.at(step, Memory()) for step in (0, 1, 2))
    assert first is second
    assert (second.objective.kl_beta, third.objective.kl_beta) == (0.1, 0.2)
    assert third.advantages is algorithm.advantages
    assert third.strategy is algorithm.strategy
    fixed = Algorithm.of(config_of())
    assert fixed.at(5, Memory()) is fixed


def follows_reward(value: float, measured: float) -> float:
    """The number so far, plus the metric."""
    return value + measured


def test_custom_function_of_a_metric_needs_the_metric() -> None:
    named = {"name": "python:tests.training.test_schedule_runs:follows_reward"}
    with pytest.raises(
        ConfigError, match=r"schedules\.advantage\.clamp: .*name the metric, for example metric: reward/mean"
    ):
        schedules_of(config_of(advantage={"clamp": 1.0}, schedules={"advantage.clamp": named}))
    schedules = schedules_of(
        config_of(advantage={"clamp": 1.0}, schedules={"advantage.clamp": {**named, "metric": "reward/mean"}})
    )
    memory = schedules.updated(Memory(), {"reward/mean": 0.5})
    assert schedules.at(1, memory).config.advantage.clamp == 1.5
