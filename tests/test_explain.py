"""The explanation of a run, and that the run takes the forwards that it states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config, validated
from mmgrpo.errors import ConfigError
from mmgrpo.explain.explanation import evaluation_notes, explanation, formula_of
from mmgrpo.explain.forward_counts import SampleForwards, forwards_per_sample
from mmgrpo.explain.lines import LABEL
from mmgrpo.maths.advantages import ADVANTAGES
from mmgrpo.maths.aggregates import AGGREGATES
from mmgrpo.maths.ratios import BOUNDS
from mmgrpo.maths.selections import SELECTIONS
from mmgrpo.maths.surrogates import SURROGATES
from mmgrpo.methods.advantages.gdpo import gdpo_advantage

DIGITS: dict[str, Any] = {
    "about": {"name": "digits"},
    "steps": 60,
    "policy": {"name": "denoising", "call": {"num_inference_steps": 10}},
    "rewards": ["digit_verifier"],
    "rollout": {"prompts_per_step": 10, "group_size": 16, "window": {"name": "random_subset", "size": 4}},
    "advantage": {"clamp": 5.0},
    "objective": {
        "surrogate": {"name": "clipped", "low": 1e-3, "high": 2e-3},
        "kl": {"divergence": "gaussian", "beta": 0.1},
    },
    "update": {"minibatches": 2},
}


def changed(**sections: Mapping[str, Any]) -> RunConfig:
    """The digits job with some keys of some sections replaced."""
    return validated(DIGITS | {name: {**DIGITS.get(name, {}), **values} for name, values in sections.items()})


def numbers(counted: SampleForwards, num_steps: int) -> list[float]:
    assert counted.rollout is not None
    return [count.at(num_steps) for count in (counted.rollout, counted.values, counted.views, counted.update)]


def rows(config: RunConfig) -> dict[str, str]:
    """The explanation by its labels, continuation lines joined."""
    result: dict[str, str] = {}
    label = ""
    for line in explanation(config).splitlines():
        label = line[:LABEL].strip() or label
        if line:
            result[label] = f"{result.get(label, '')} {line[LABEL:].strip()}".strip()
    return result


def test_lines_are_as_wide_as_they_may_be() -> None:
    config = load_config("recipes/sd3.5-flow-grpo-fast")
    narrow, wide = explanation(config, 80), explanation(config)
    wrapped = [[line for line in text.splitlines() if "https://" not in line] for text in (narrow, wide)]
    assert [max(map(len, lines)) for lines in wrapped] == [80, 118]
    assert all(len(line[LABEL:].split()) == 1 for line in narrow.splitlines() if "https://" in line)  # not broken
    assert narrow.split() == wide.split()
    assert "\ncoupled values " in wide  # a space after the longest label too


def test_a_window_costs_one_forward_per_step_and_policy() -> None:
    # 10 steps sampled; 4 of them trained on, once by the policy and once by the reference
    assert numbers(forwards_per_sample(Algorithm.of(changed()), 10), 10) == [10.0, 0.0, 4.0, 4.0]
    assert "rollout 10.0, reference 4.0, update 4.0; in all 18.0" in rows(changed())["forwards"]


def test_without_a_window_all_steps_but_the_last_are_trained_on() -> None:
    config = changed(rollout={"window": None}, objective={"kl": {"beta": 0}})
    assert numbers(forwards_per_sample(Algorithm.of(config), 10), 10) == [10.0, 0.0, 0.0, 9.0]


def test_shared_noise_counts_the_prefix_and_the_first_stochastic_step_once_per_group() -> None:
    config = changed(rollout={"same_initial_noise": True, "window": {"name": "fixed", "start": 2, "size": 2}})
    # steps 0, 1, 2 once for 16 members, steps 3 to 9 for each; of the trained 2 and 3, 2 once for the group
    expected = [(3 + 16 * 7) / 16, 0.0, (1 + 16) / 16, (1 + 16) / 16]
    assert numbers(forwards_per_sample(Algorithm.of(config), 10), 10) == pytest.approx(expected, abs=1e-12)
    assert "rollout 7.2, reference 1.1, update 1.1; in all 9.3" in rows(config)["forwards"]


def test_shared_noise_averages_over_the_windows_of_the_run() -> None:
    window = {"name": "progressive", "size": 2, "interval": 1, "high": 4}
    config = changed(rollout={"same_initial_noise": True, "window": window})
    # the first stochastic step is 0, 1, 2 in turn over the 60 steps, 1 on average: 2 steps shared, 8 of each member's
    assert numbers(forwards_per_sample(Algorithm.of(config), 10), 10)[0] == pytest.approx((2 + 16 * 8) / 16, abs=1e-12)


def test_a_tree_counts_its_states() -> None:
    rollout = {"group_size": 4, "window": None, "tree": {"name": "evenly"}}
    config = changed(rollout=rollout, objective={"kl": {"beta": 0}})
    # splits at 0 and 10 // 2 = 5: 1 state at step 0, 2 at steps 1 to 5, 4 at 6 to 9, the last of which is not sampled
    assert numbers(forwards_per_sample(Algorithm.of(config), 10), 10) == [
        (1 + 5 * 2 + 4 * 4) / 4,
        0.0,
        0.0,
        (1 + 5 * 2 + 3 * 4) / 4,
    ]
    assert "rollout 6.8, update 5.8; in all 12.5" in rows(config)["forwards"]
    assert rows(config)["tree"].startswith("evenly: Every branch becomes factor at n decisions")
    # of a window of 2, 3 the splits are sampled too: 0, 2, 3, 5
    window = changed(
        rollout=rollout | {"window": {"name": "fixed", "start": 2, "size": 2}}, objective={"kl": {"beta": 0}}
    )
    assert numbers(forwards_per_sample(Algorithm.of(window), 10), 10)[3] == (1 + 2 + 2 + 2) / 4
    unknown = changed(policy={"name": "denoising", "call": {}}, rollout=rollout)
    assert rows(unknown)["forwards"] == "the states of a tree are counted once policy.call.num_inference_steps is known"
    with pytest.raises(ConfigError, match=r"a tree of 1 splits into 2 has 2 leaves, rollout\.group_size is 4"):
        rows(changed(rollout=rollout | {"tree": {"name": "at", "at": [0]}}))


def test_a_share_of_the_steps_is_that_of_the_schedule() -> None:
    config = changed(rollout={"window": {"name": "random_subset", "size": 0.5}}, objective={"kl": {"beta": 0}})
    # of 10 steps 9 are stochastic: int(4.5); where N is not known yet, half of N - 1
    assert numbers(forwards_per_sample(Algorithm.of(config), 10), 10)[3] == 4.0
    assert numbers(forwards_per_sample(Algorithm.of(config), None), 11)[3] == 5.0
    low = changed(rollout={"window": {"name": "random_subset", "size": 0.5, "low": 2, "high": 8}})
    assert numbers(forwards_per_sample(Algorithm.of(low), None), 10)[3] == 3.0


def test_a_coupled_ratio_takes_values_before_every_update_but_the_first() -> None:
    config = changed(objective={"ratio_level": "sequence", "kl": {"beta": 0}}, update={"epochs": 2, "minibatches": 2})
    # 4 updates of half the samples, the first of them without: 3 * 1/2 passes of 4 forwards; 2 epochs of updates
    assert numbers(forwards_per_sample(Algorithm.of(config), 10), 10) == [10.0, 6.0, 0.0, 8.0]
    lines = rows(config)
    assert lines["coupled values"].startswith("a pass before every update of a rollout but the first")
    assert lines["forwards"].startswith("per sample and step: rollout 10.0, values 6.0, update 8.0; in all 24.0")


def test_a_coupled_ratio_with_a_reference_takes_values_before_every_update() -> None:
    config = changed(objective={"ratio_level": "sequence"}, update={"minibatches": 1})
    # one pass for the values and one for the gradient, with a pass of the reference each
    assert numbers(forwards_per_sample(Algorithm.of(config), 10), 10) == [10.0, 4.0, 8.0, 4.0]
    assert rows(config)["coupled values"].startswith("a pass before every update: ")


def test_the_first_minibatch_may_hold_more_groups() -> None:
    config = changed(objective={"ratio_level": "segment", "kl": {"beta": 0}}, update={"minibatches": 3})
    # 10 groups in minibatches of 4, 3 and 3: the values of the latter 6 groups are computed
    assert numbers(forwards_per_sample(Algorithm.of(config), 10), 10)[1] == pytest.approx(0.6 * 4, abs=1e-12)
    assert rows(config)["updates"] == "1 epoch x 3 minibatches = 3 updates a rollout, of 48 or 64 samples"


def test_the_default_number_of_steps_stays_a_letter() -> None:
    lines = rows(changed(policy={"name": "denoising", "call": {}}))["forwards"]
    assert lines.startswith("per sample and step: rollout N, reference 4.0, update 4.0, with N = num_inference_steps, ")
    shared = changed(policy={"name": "denoising", "call": {}}, rollout={"same_initial_noise": True, "window": None})
    # all but the last step are trained on; step 0 counts 1 / 16: N - 15/16 = N - 0.9, and N - 1 - 15/16 = N - 1.9
    assert "rollout N - 0.9, reference N - 1.9, update N - 1.9" in rows(shared)["forwards"]


def test_a_live_policy_is_explained_without_its_settings() -> None:
    lines = rows(validated({}))
    assert lines["policy"] == "a live object with its own settings"
    assert lines["forwards"].startswith("per sample and step: rollout N, update N - 1.0, for a denoising policy of N")
    assert "sampler" not in lines
    window = {"same_initial_noise": True, "window": {"name": "random", "size": 2}}
    # the position of the window depends on N; of its 2 steps the first is shared by 8
    assert "rollout fewer than N, update 1.1" in rows(validated({"rollout": window}))["forwards"]


def test_formula_and_numbers() -> None:
    lines = rows(changed())
    assert lines["loss"].startswith("L = sum w l(r, logprob, A) + kl_beta * sum v KL")
    assert lines["advantage A"].startswith("group: A = (r - mean_G r) / (std_G r + eps)")
    assert lines["advantage A"].endswith(
        "eps = 0.0001, correction = 1. Advantage clamped to [-limit, limit], limit = 5"
    )
    assert lines["surrogate l"] == "clipped: l = max(-A r, -A clip(r, 1 - low, 1 + high)), low = 0.001, high = 0.002"
    assert lines["log-ratio"] == "decision: log r = logprob - old_logprob"
    assert lines["weight v"] == "sequence_mean: v = m / (kept decisions of the row * num_samples)"
    assert lines["KL"].startswith("kl_beta = 0.1, gaussian: KL of two Gaussians")
    assert lines["sampler"].startswith("chosen by the scheduler: flow_sde on flow levels, native for")
    named = rows(changed(policy={"sampler": "flow_sde"}))["sampler"]
    assert named.startswith("flow_sde, strength = 0.7: Flow-GRPO's sampler: s = strength sqrt(sigma")
    assert lines["density"].startswith("gaussian: ")
    assert lines["reduction"] == "mean: Mean over a sample's D elements, total / D"
    assert lines["method"] == "none named"


def test_normalized_log_ratio_and_step_weight() -> None:
    lines = rows(changed(objective={"ratio_level": "sequence", "normalize_ratio": True, "step_weight": "inverse_step"}))
    assert "normalized to (log r + b) * std, with b = mean((mu - mu_old)^2) / (2 std^2)" in lines["log-ratio"]
    assert "; then log r_i = mean_t log r_it" in lines["log-ratio"]
    assert lines["weight w"].startswith("w = v times inverse_step: 1 / h on the masked decisions")


def test_selections_bounds_and_the_ratio_of_the_divergence() -> None:
    selections = ({"name": "top_entropy", "share": 0.2}, {"name": "near_policy", "limit": 0.1})
    lines = rows(
        changed(
            objective={
                "surrogate": {"name": "unclipped"},
                "bound": {"name": "pessimistic", "low": 0.4, "high": 0.4},
                "ratio_level": "sequence",
                "selections": selections,
                "truncated": "zero",
                "kl": {"divergence": "k3", "beta": 0.1, "ratio_level": "step"},
            }
        )
    )
    assert lines["log-ratio"] == (
        "sequence: log r = logprob - old_logprob, bounded by pessimistic: b = min(log r, high) where A > 0, "
        "max(log r, -low) elsewhere, low = 0.4, high = 0.4; then log r_i = mean_t log r_it: the length-normalized "
        "ratio of the sequence"
    )
    first, second = lines["selection"].split("near_policy: ")
    assert first.startswith("top_entropy: w = 0 unless H >= quantile(H over the update's decisions on all processes")
    assert second.startswith("w = 0 unless A >= 0 or mean_t (old_logprob - logprob) <= limit")
    assert lines["truncated"].startswith("samples cut off by their length limit: decisions left out, counted as zeros")
    assert "times the ratio at the level step, with gradient, k3: " in lines["KL"]
    assert lines["coupled values"].startswith("a pass before every update: the sequence ratio couples decisions")
    assert "skipped" not in lines


def test_a_sampler_that_changes_the_marginals_is_marked() -> None:
    lines = {
        name: rows(changed(policy={"name": "denoising", "sampler": name, "strength": 0.8}))["sampler"]
        for name in ("cps", "ddim")
    }
    assert lines["cps"].endswith("; does not keep the marginals: samples spread less than the data")
    assert "marginals" not in lines["ddim"]


def test_weights_in_4_bit_and_the_system_turn_of_a_language_policy_are_rows() -> None:
    quantized = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    policy = {"name": "language", "model": "tiny", "lora": {}, "quantization_config": quantized, "system": "Be  brief."}
    lines = rows(validated({"policy": policy}))
    assert lines["policy"] == "language tiny; frozen weights in 4 bit; their layers compute in policy.dtype"
    assert lines["system"] == "of prompts without one: Be brief."
    assert "system" not in rows(validated({"policy": {"name": "language", "model": "tiny"}}))


def test_selections_alone_take_values_first() -> None:
    near = {"selections": ({"name": "near_policy", "limit": 0.1},), "kl": {"beta": 0}}
    lines = rows(changed(objective=near))
    assert lines["coupled values"].startswith("a pass before every update of a rollout but the first")
    assert lines["coupled values"].endswith("selections read all values first")
    assert lines["skipped"].startswith("decisions without an advantage or a weight take no forward")
    every_decision = {"surrogate": None, "terms": ({"name": "dgpo"},), "kl": {"beta": 0}}
    assert "skipped" not in rows(changed(objective=every_decision))
    assert (
        "pass before every update: "
        in rows(changed(objective={"selections": ({"name": "top_entropy", "share": 0.2},), "kl": {"beta": 0}}))[
            "coupled values"
        ]
    )


def test_a_divergence_in_the_reward_takes_one_pass_of_each_policy() -> None:
    config = changed(objective={"kl": {"beta": 0}}, advantage={"kl": {"divergence": "k1", "beta": 0.05}})
    assert numbers(forwards_per_sample(Algorithm.of(config), 10), 10) == [10.0, 4.0, 4.0, 4.0]
    lines = rows(config)
    assert lines["reward"].startswith("1 digit_verifier - 0.05 kl, the sum over the sample's decisions of k1: ")
    assert lines["reference"].startswith("a pass after the rollout")


def test_geometry_passes_and_method() -> None:
    evaluation = {
        "prompts": {"source": "prompts.txt"},
        "rewards": ({"name": "held_out_judge", "label": "held_out"},),
        "samples_per_prompt": 40,
    }
    policy = {"name": "denoising", "call": {"num_inference_steps": 10}, "evaluation_call": {"num_inference_steps": 40}}
    method = {"name": "flow_grpo", "title": "Flow-GRPO", "paper": "arXiv:2505.05470", "deviations": ("one window",)}
    method |= {"evidence": ("by hand",)}
    lines = rows(changed(evaluation=evaluation, policy=policy, about={"method": method}))
    assert lines["rollout"] == "10 prompts x 16 members = 160 samples a step"
    assert lines["updates"] == "1 epoch x 2 minibatches = 2 updates a rollout, of 80 samples"
    assert lines["in all"] == "60 steps, 9,600 samples, 120 updates"
    assert lines["old policy"].startswith("no pass")
    assert lines["coupled values"].startswith("no extra pass")
    assert lines["reference"].startswith("a pass with each pass of the policy")
    assert lines["evaluation"] == (
        "before the first step, every 10 steps and after the last: 40 samples a prompt of 40 forwards each, "
        "without noise, scored by held_out"
    )
    assert lines["method"] == "Flow-GRPO (arXiv:2505.05470)"
    assert (lines["deviation"], lines["evidence"]) == ("one window", "by hand")
    assert rows(changed(objective={"kl": {"beta": 0}}))["reference"] == "no pass: objective.kl.beta is 0"


@pytest.mark.parametrize(
    ("strategy", "note"),
    [
        (
            {"name": "take_turns", "roles": ["asker", "helper"], "turns": 2, "follow": "best"},
            "samples are those of rollout.strategy take_turns with one answer in each round, and rewards score all",
        ),
        (
            {"name": "stages", "first": {"prompt_template": "asker"}, "then": [{"prompt_template": "helper"}]},
            "a sample is one answer to the unchanged prompt: rollout.strategy stages and its prompt templates (asker, "
            "helper) apply in training alone",
        ),
    ],
)
def test_evaluations_are_conversations_of_roles_or_single_answers(strategy: dict[str, Any], note: str) -> None:
    config = validated(
        {
            "prompts": {"source": "prompts.jsonl"},
            "rewards": [{"name": "exact_match"}],
            "policy": {"name": "language", "model": "m"},
            "evaluation": {"prompts": {"source": "held_out.jsonl"}},
            "rollout": {
                "strategy": strategy,
                "prompt_templates": {name: {"name": "role", "text": "{prompt}"} for name in ("asker", "helper")},
            },
        }
    )
    assert evaluation_notes(config) == (note,)
    assert evaluation_notes(load_config("quickstart/arithmetic-text")) == ()


@pytest.mark.parametrize(
    ("arguments", "dtypes"),
    [({}, "bfloat16"), ({"bnb_4bit_compute_dtype": "float32"}, "float32")],
)
def test_the_dtype_of_layers_in_4_bit_is_stated(arguments: dict[str, str], dtypes: str) -> None:
    policy = {"name": "language", "model": "m", "dtype": "bfloat16", "lora": {"rank": 2}}
    values = {"policy": policy | {"quantization_config": {"load_in_4bit": True, **arguments}}}
    lines = " ".join(explanation(validated(values)).split())
    assert f"; frozen weights in 4 bit; their layers compute in {dtypes}" in lines


@pytest.mark.parametrize("registry", [SURROGATES, AGGREGATES, ADVANTAGES, BOUNDS, SELECTIONS, {"gdpo": gdpo_advantage}])
def test_every_registered_function_documents_its_formula(registry: Mapping[str, Any]) -> None:
    for name, function in registry.items():
        assert " = " in formula_of(function), name


def test_formulas_are_the_docstrings_own() -> None:
    assert formula_of(SURROGATES["policy_gradient"]) == "l = -A logprob"
    assert formula_of(ADVANTAGES["leave_one_out"]).startswith("A_i = r_i - mean_{j != i} r_j")
    assert formula_of("Sum.\n\nA = b + c over the\ngroup; 0 alone. Not\nthis.\n\nUnits: none.") == (
        "A = b + c over the group; 0 alone"
    )


def test_values_are_those_of_the_first_step_and_samples_of_all() -> None:
    sizes = {"name": "step", "values": [4, 8], "at": [30]}
    lines = explanation(
        validated(
            DIGITS | {"steps": 100, "schedules": {"rollout.group_size": sizes}, "rollout": {"prompts_per_step": 2}}
        )
    )
    assert "2 prompts x 4 members = 8 samples a step" in lines
    assert "100 steps, 1,360 samples" in lines


@pytest.mark.parametrize("schedule", [
    {"name": "step", "values": [1.0, -4], "at": [1]}, {"name": "linear", "start": 1, "end": -1, "steps": 1},
])  # fmt: skip
def test_scheduled_value_that_the_policy_does_not_take_raises(schedule: dict[str, Any]) -> None:
    values = {"policy": {"name": "language", "model": "m"}, "steps": 9, "schedules": {"policy.temperature": schedule}}
    with pytest.raises(
        ConfigError, match=r"with policy\.temperature = -\d.*temperature: must be greater than 0; got -"
    ):
        explanation(validated(values))


def test_mistakes_are_named_before_a_model_is_loaded() -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        explanation(changed(rollout={"window": {"name": "random", "size": 12}}))
    with pytest.raises(ConfigError, match="unknown key 'strenght'; did you mean strength"):
        explanation(changed(policy={"name": "denoising", "strenght": 1.0}))
    with pytest.raises(ConfigError, match="needs size"):
        explanation(changed(policy={"name": "denoising"}, rollout={"window": {"name": "random"}}))


def test_scheduled_values_are_listed() -> None:
    config = validated(
        {
            "steps": 101,
            "objective": {"kl": {"divergence": "k3", "beta": 0.1}},
            "prompts": {
                "sources": [{"source": "a.txt", "weight": 3, "label": "a"}, {"source": "b.txt"}],
                "sampler": {"name": "curriculum", "by": "level", "steps": 50},
            },
            "schedules": {
                "update.optimizer.max_grad_norm": {"name": "linear", "start": 1, "end": 0.5, "steps": 200},
                "objective.kl.beta": {"name": "adaptive_kl", "target": 0.01},
                "rollout.group_size": {"name": "step", "values": [4, 16], "at": [20]},
            },
        }
    )
    lines = " ".join(explanation(config).split())
    assert "prompts 0.75 of a + 0.25 of b.txt curriculum: share = start + (1 - start) min(step / steps, 1)" in lines
    assert "by = level, steps = 50, start = 0.2, descending = False" in lines
    assert (
        "max(step - begin, 0) / steps, 1), start = 1, end = 0.5, steps = 200; from 1 at the first step to 0.75 at"
        in lines
    )
    assert "values = [4, 16], at = [20]; from 4 at the first step to 16 at the last" in lines
    assert "objective.kl.beta, adaptive_kl: value' = value (1 + rate clip(measured / target - 1, -clip, clip))" in lines
    assert "metric = policy/kl_mean, target = 0.01" in lines
    assert "objective.kl.beta moves: a pass at the steps at which it is above 0" in lines


def test_off_policy_rows_and_auxiliary_losses() -> None:
    gold = {"name": "negative_logprob", "sources": ["demonstration"], "weight": 0.1}
    result = rows(
        load_config(
            "methods/luffy", {"policy": None, "advantage.off_policy_baseline": "separate", "objective.terms": [gold]}
        )
    )
    formula = "shaped_probability: l = -A p / (p + gamma), p = exp(logprob), gamma = 0.1"
    assert result["off-policy l"] == f"{formula}; r of the decision, times 1"
    assert result["term"] == "0.1 times negative_logprob: L = sum v (-logprob); only rows of source demonstration"
    assert result["advantage A"].endswith("Rows that are read are compared among themselves")
    result = rows(load_config("methods/mm-helix", {"policy": None}))
    assert result["it sets"].startswith(
        "objective.auxiliary = [answers (weight 1, label expert, batch_size None, column solution"
    )
    line = "expert: in every update 1 times the supervised loss of its groups' answers (solution)"
    assert result["auxiliary"] == f"{line}, weighted by below of the group's success"
    result = rows(load_config("methods/meml-grpo", {"policy": None}))
    assert result["auxiliary"].endswith("weighted by below of the part's success")
    assert result["coupled values"].startswith("a pass before every update: gradients go through the view weakest")


def no_planner() -> int:
    return 3


def test_function_with_another_result_raises() -> None:
    config = RunConfig.model_validate({"rollout": {"strategy": f"python:{__name__}:no_planner"}})
    with pytest.raises(
        ConfigError, match=r"rollout\.strategy: python:.*:no_planner returns a int; it must return a Strategy"
    ):
        explanation(config)


def test_explain_names_the_correction_of_examples() -> None:
    lines = " ".join(explanation(load_config("papers/soar")).split())
    assert (
        "supervision examples are noised at logit_normal levels, shift = 3; correction: 6 further points per example"
        in lines
    )


def test_conversation_counts_turns_and_tokens() -> None:
    config = load_config("quickstart/calculator-tool", {"rollout.max_turns": 3})
    # 64 prompts x 8 members of at most 24 tokens: 12,288
    assert rows(config)["environment"] == (
        "tools, functions = ['python:mmgrpo.examples.calculator:multiply'], describe = False: at most 3 turns and 24 "
        "tokens a sample, those of the environment's answers and their media included; at most 12,288 tokens a step, "
        "plus the prompts; 32 calls at a time, 60 s a call"
    )
    assert "environment" not in rows(load_config("quickstart/arithmetic-text"))
