"""For each shipped method a tiny run with the inputs that it needs: see ``ablation``."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from mmgrpo.policies.diffusion import DenoisingPolicy

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import find_config, read_layers
from mmgrpo.policy import Policy
from mmgrpo.scoring import NamedReward
from mmgrpo.training.build import build_policy
from mmgrpo.types import Prompt, Sample
from tests.configs import test_imitation, test_smoke_language, test_smoke_reading
from tests.configs.ablation import COLUMNS, TEXTS, TinyRun, halves, some_right
from tests.configs.language_models import CRITIC, TEACHER
from tests.configs.mechanisms import CHAINS, IMITATION, PARTING, PARTING_ONCE, READING, TURNS, applies_to
from tests.configs.test_chain_methods import by_text, half_are_right, second_half
from tests.configs.turn_runs import turn_run
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import measured_policy_of, picture, policy_of
from tests.policies.tiny_masked import prompts_of as masked_prompts_of
from tests.policies.tiny_policies import pipeline_of, settings_of


@cache
def _other_tokens() -> tuple[int, ...]:
    """All tokens but some ends and those of the answers that rows bring along, so that texts have many lengths."""
    bare = measured_policy_of("llama")
    tokenizer = getattr(bare.processor, "tokenizer", bare.processor)
    texts = [str(text) for text in COLUMNS.values()]
    written = {token for text in texts for variant in (text, f" {text}") for token in tokenizer(variant)["input_ids"]}
    allowed_tokens = {*written, *range(60, 70), *bare._end_ids.tolist()}
    return tuple(
        token for token in range(bare.model.config.get_text_config().vocab_size) if token not in allowed_tokens
    )


@cache
def _no_formula_tokens() -> tuple[int, ...]:
    """All tokens but a dollar sign and three letters, so that texts hold formulas between dollar signs."""
    bare = measured_policy_of("llama")
    tokenizer = getattr(bare.processor, "tokenizer", bare.processor)
    formula_tokens = {*tokenizer("$", add_special_tokens=False)["input_ids"], 60, 61, 62}
    return tuple(
        token for token in range(bare.model.config.get_text_config().vocab_size) if token not in formula_tokens
    )


def by_length(samples: Sequence[Sample]) -> list[float]:
    """A number for each answer from its length."""
    return [len(sample.text or "") % 5 / 4 for sample in samples]


FOLLOWING = ("grpo-care", "gtr-turbo", "sdft", "sdpo", "srpo--unifying-group")
"""Methods whose reference follows the policy."""

CHANGES: dict[str, dict[str, Any]] = {
    **{name: dict(changes) for name, changes in test_smoke_language.SMALL.items()},
    **{name: {"rollout.group_size": 2, **test_smoke_reading.SMALL.get(name, {})} for name in READING},
    **{name: dict(changes) for name, changes in PARTING_ONCE.items()},
    **{name: dict(changes) for name, changes in test_imitation.SMALL.items()},
    "anytimereasoner": {**PARTING_ONCE["anytimereasoner"], "rollout.strategy.num": 2},
    **{name: {"rollout.group_size": 2, "rollout.strategy.every": 2, "rollout.strategy.factor": 2} for name in PARTING},
    **{name: {"rollout.group_size": 4} for name in ("ampo", "gcpo")},  # some members that failed are not replaced
    "clpo": {"rollout.prompt_templates.of_simpler.pattern": None, "rollout.prompt_templates.of_other.pattern": None},
    "dcpo-clip": {"objective.surrogate.bound": 1.05},  # the modulation sets the other bounds
    "delethink": {"update.epochs": 2},
    "pass-k-training": {**test_smoke_language.SMALL["pass-k-training"], "update.epochs": 2},
    "latr": {
        **test_smoke_reading.SMALL["latr"],
        "rollout.group_size": 4,
        "schedules": {"rollout.strategy.share": {"name": "step", "values": [0.5, 1.0], "at": [1]}},
    },
    "r1-sharevl": {"rollout.group_size": 4},
    "aapo": {"advantage.estimators": [{"name": "column_margin", "column": "difficulty"}]},
    "arm": {"about.method.rewards.added": [{"name": "rarity", "of": "verifiers", "marks": ["X", "V", "W"]}]},
    "geometryzero": {
        "about.method.rewards.added": [
            {"name": "where_useful", "of": "verifiers", "marks": ["X"], "margin": 0.1, "weight": 0.5}
        ]
    },
    "empo": {"about.method.rewards.substitutes": [{"name": "semantic_clusters", "extract": "line"}]},
    "ttrv": {"about.method.rewards.substitutes": [{"name": "majority_vote", "mode": "share", "extract": "line"}]},
    "curriculum-grpo": {
        "schedules": {
            "rewards.length_peak.max_length": {"name": "exponential", "start": 16, "factor": 0.5, "every": 1, "low": 2}
        }
    },
    "depo": {"steps": 4, "prompts.sampler.falls": 0.5},
    "canoe": {"rollout.prompt_templates.proxy.pattern": None},
    "capo": {"advantage.filters": [{"name": "within_curvature", "shift": 0.3, "divergence": 1.0}]},
    "critique-rl": {"advantage.kl.beta": 1.0},
    "p3o": {"advantage.kl.beta": 1.0},
    "rloo": {"advantage.kl.beta": 1.0},
    **{name: {"update.reference.ema": {"decay": 0.5, "every": 1}, "steps": 3} for name in FOLLOWING},
    "prorl": {"update.reference.reset_every": 1},
    "reinforce-plus-plus-baseline": {"objective.kl.beta": 1.0},
    "re-schedule": {
        "schedules": {
            "advantage.estimators.column_weight.at_zero": {"name": "step", "values": [2.0, 0.5], "at": [1]},
            "advantage.estimators.column_weight.at_one": {"name": "step", "values": [0.5, 2.0], "at": [1]},
        }
    },
    "rlvr-linearity": {"update.hooks": [{"name": "slow_fast", "inner": 2, "alpha": 2.0, "slow": 0}]},
    "scaf-grpo": {"rollout.strategy.start": 0, "rollout.group_size": 2},
    "ppl-position": {"advantage.estimators": [{"name": "late_decisions", "start": 0}]},
    "d3s": {
        "rollout.group_size": 6,
        "schedules": {
            "advantage.filters.most_varied.count": {"name": "linear", "start": 2, "end": 5, "steps": 1},
            "objective.modulations.top_product.share": {"name": "linear", "start": 0.25, "end": 1.0, "steps": 1},
        },
    },
    "ead": {
        "policy.name": "language",
        "policy.model": CRITIC["model"],
        "policy.temperature_schedule": {"high": 1.2, "low": 0.1, "pace": 5.0, "after": 1},
        "schedules": {"policy.temperature_schedule.pace": {"name": "linear", "start": 5.0, "end": 50.0, "steps": 1}},
    },
    "evocot": {
        "schedules": {
            "rollout.prompt_templates.thought.share": {"name": "linear", "start": 1.0, "end": 0.0, "steps": 1}
        },
        "rollout.group_size": 2,
    },
    "g2rpo-a": {
        **test_smoke_reading.SMALL["g2rpo-a"],
        "rollout.prompt_templates.guided.share": 0.5,
        "steps": 4,
        "schedules": {
            "rollout.prompt_templates.guided.share": {
                "name": "against_trend",
                "metric": "reward/mean",
                "every": 2,
                "low": 0.01,
                "high": 1.0,
            }
        },
    },
    "rose": {"rollout.group_size": 6},
    "srpo--cross-domain": {"steps": 3, "rollout.prompts_per_step": 3},
    "spo--segment-policy": {
        "rollout.group_size": 2,
        "rollout.strategy.every": 2,
        "rollout.strategy.factor": 2,
        "advantage.filters": [{"name": "each_decision_once"}, {"name": "unlikely", "below": 0.08}],
    },
    "verl": {
        "advantage.estimators": [
            {"name": "rank_bonus", "rank": 0.0, "velocity": 0.0, "acceleration": 0.0, "stride": 2, "ratio": 0.1}
        ]
    },
    "vogue": {
        "schedules": {
            "rollout.prompt_templates.noised.chance": {"name": "linear", "start": 1.0, "end": 0.0, "steps": 1}
        }
    },
    "laser": {
        "advantage.estimators": [{"name": "self_rewarded", "token": 61, "anchor": -4.0, "start": 1, "least": 0.0}],
        "objective.terms": [{"name": "self_reward", "weight": 0.1, "token": 61, "anchor": -4.0}],
    },
    **{  # tokens of a tiny vocabulary are too unlikely to move by the published limits
        f"dppo-{divergence}": {
            "objective.modulations": [
                {"name": "within_divergence", "divergence": f"binary_{divergence}", "limit": 1e-3}
            ]
        }
        for divergence in ("kl", "tv")
    },
    "clip-cov": {"objective.modulations": [{"name": "clip_covariance", "share": 0.1, "at_least": 0.0}]},
    "ppo": {"advantage.critic.policy": CRITIC},
    "t-ppo": {
        "advantage.critic.policy": CRITIC,
        "advantage.critic.optimizer.lr": 1e-2,
        "rollout.strategy.window": 5,
        "steps": 3,
    },
    "dvpo": {
        "advantage.critic.policy": CRITIC,
        "advantage.critic.warmup_steps": 1,
        "advantage.critic.freeze_after": 1,
        "advantage.critic.optimizer.lr": 1e-2,
    },
    "direct-advantage-policy-optimization": {
        "advantage.critic.policy": CRITIC,
        "advantage.critic.warmup_steps": 1,
        "advantage.critic.freeze_after": 1,
        "advantage.critic.optimizer.lr": 1e-2,
    },
    "on-policy-distillation": {"objective.views": {"teacher": TEACHER}, "rollout.group_size": 1},
    "g-opd": {"objective.views": {"teacher": TEACHER}, "rollout.group_size": 1},
    "gkd": {"objective.views": {"teacher": TEACHER}, "rollout.group_size": 1},
    "uld": {"objective.views": {"teacher": TEACHER}, "rollout.group_size": 1},
    "rto": {"objective.views": {"preferred": TEACHER}},
}

REWARDS: dict[str, list[NamedReward]] = {
    **{name: [NamedReward("steps", halves, weight=0.0)] for name in ("clip-delta-prm-shaping", "prof")},
    "rank-grpo": [NamedReward("items", halves, weight=0.0)],
    "evisrag": [NamedReward(part, halves, weight=0.0) for part in ("accuracy", "evidence")],
    "process-supervision": [NamedReward("steps", halves, weight=0.0)],
    "copo": [NamedReward("answers", by_length, weight=0.0, from_method="copo")],
    "seed-grpo": [NamedReward("answers", by_length, weight=0.0, from_method="seed-grpo")],
    "depo": [NamedReward("explorability", by_length, weight=0.0, from_method="depo")],
    "cgpo": [NamedReward("over_reference", by_length, from_method="cgpo")],
    "p-grpo": [NamedReward("reasoning", by_length, from_method="p-grpo")],
    "reward-model-ensembles": [NamedReward("length", by_length)],
}
"""Rewards besides ``right``."""


def first_solved(samples: Sequence[Sample]) -> list[float]:
    """All members of a step's first group are right, and every other member of the other groups."""
    return [float(sample.group == 0 or sample.member % 2 == 0) for sample in samples]


def third_right(samples: Sequence[Sample]) -> list[float]:
    """The third member of each group is right, and of the last group of four all are."""
    return [float(sample.member == 2 or sample.group % 4 == 3) for sample in samples]


def teachers_right(samples: Sequence[Sample]) -> list[float]:
    """Teachers, members past the fourth, are right; of every other group so are half of the policy's samples."""
    return [float(sample.member >= 4 or (sample.group % 2 == 1 and sample.member % 2 == 1)) for sample in samples]


def half_right(samples: Sequence[Sample]) -> list[float]:
    """Every other member is right, and all that are shown another wording of a prompt."""
    return [
        float((sample.group + sample.member) % 2 == 0 or sample.prompt_template == "of_other") for sample in samples
    ]


READING_REWARDS = {"ampo": teachers_right, "gcpo": teachers_right, "g2rpo-a": by_length, "eframe": third_right}


def language_prompts(name: str, num: int = 6) -> list[Prompt]:
    """Prompts with every column that a method of texts reads."""
    prompts = []
    for number, text in enumerate(TEXTS[:num]):
        numbers = {"difficulty": number, "static_value": 0.25, "rank": number / num, "value": 0.5, "baseline": 0.25}
        if name == "raif":
            numbers["reward_without_thought"] = number % 2
        images = [picture(56, 56, seed=number)] if name in ("papo", "vogue") else []
        prompts.append(Prompt(text, images=images, columns={**COLUMNS, **numbers}))
    return prompts


REFILLED = "the strategy leaves no group of equal rewards to drop"

ALL_STEPS = "a run without a window trains every step too"
PIPELINE_SAMPLER = "a pipeline of flow matching without a sampler has this one"
FIXED_LENGTH = "all answers of a masked policy have one length"

INERT: dict[str, dict[str, str]] = {
    "anytimereasoner": {
        "advantage.filters.0": "the credits of rows that share a decision sum to 0 in a sum over decisions: the "
        "filter saves their forwards",
    },
    "branch-grpo": {"rollout.window": ALL_STEPS},
    "chunk-grpo": {"rollout.window": ALL_STEPS, "policy.sampler": PIPELINE_SAMPLER},
    "clpo": {"about.method.rewards": "it leaves rewritten prompts without a reward, which are not trained on"},
    "dapo": {"advantage.zero_variance_groups": REFILLED},
    "diffusion-dpo": {"rollout.training_states": "stored images are noised in any case"},
    "diffu-grpo": {"objective.aggregate": FIXED_LENGTH},
    "dppo": {
        "rollout.window": ALL_STEPS,
        "policy.sampler": PIPELINE_SAMPLER,
        "objective.surrogate": "the default is clipped too, and the growing bounds replace those of both",
    },
    "flow-dppo": {"policy.sampler": PIPELINE_SAMPLER},
    "flow-grpo": {"rollout.window": ALL_STEPS, "policy.sampler": PIPELINE_SAMPLER},
    "g2rpo": {"policy.sampler": PIPELINE_SAMPLER},
    "grpo-guard": {"rollout.window": ALL_STEPS, "policy.sampler": PIPELINE_SAMPLER},
    "high-entropy-tokens": {"advantage.zero_variance_groups": REFILLED},
    "pref-grpo": {"policy.sampler": PIPELINE_SAMPLER},
    "sage-grpo": {"rollout.window": ALL_STEPS},
    "tempflow-grpo": {"policy.sampler": PIPELINE_SAMPLER},
    "mix-grpo": {"policy.sampler": PIPELINE_SAMPLER},
    "mix-grpo-flash": {"policy.sampler": PIPELINE_SAMPLER},
}
"""Mechanisms without which the weights are the same, each with the reason."""


NOT_RUN = {
    "promptecho": "its reward is computed by a vision-language model from the hub",
    **dict.fromkeys(
        ("icepop", "mis", "sequence-mis", "sequence-tis", "tis"),
        "its weights compare with a server that samples; tests/configs/test_engine_methods.py has their numbers",
    ),
}
"""Methods without a tiny run, each with the reason."""


def run_of(name: str) -> TinyRun:
    """The tiny run of a method, by its file's name."""
    if name in TURNS:
        return turn_run(name)
    kind = applies_to(f"methods/{name}")
    return {"denoising": _denoising, "masked": _masked}.get(kind, _language)(name)


def _language(name: str) -> TinyRun:
    changes = CHANGES.get(name, {})
    if name in CHAINS:
        changes = {**_chain(name), **changes}
    length = {"hbpo": 96, "delethink": 3, "empo": 1, "ttrv": 1}.get(name, 12)

    def policy(config: RunConfig) -> Policy:
        if name == "ead":
            assert config.policy is not None
            settings = {key: value for key, value in config.policy.settings.items() if key != "model"}
            return measured_policy_of("llama", max_new_tokens=length, **settings)
        if name in ("papo", "vogue"):
            return policy_of("qwen2.5-vl", max_new_tokens=5)
        if name == "diver":
            return terse("llama", max_new_tokens=length, suppress=_no_formula_tokens())
        if name in (*READING, *IMITATION):
            return measured_policy_of("llama", max_new_tokens=length, suppress=_other_tokens(), temperature=8.0)
        return terse("llama", max_new_tokens=length)

    reward = some_right
    if name in READING:
        reward = READING_REWARDS.get(name) or test_smoke_reading.rewarded(name)
    if name == "srpo--cross-domain":
        reward = first_solved
    weight = 0.0 if name in ("on-policy-distillation", "g-opd") else 1.0
    rewards = [NamedReward("right", reward, weight=weight), *REWARDS.get(name, [])]
    if name in CHAINS:
        replacing = {"grpo-care": ("answer", second_half), "critique-rl": ("discrimination", half_are_right)}
        rewards = [NamedReward("right", half_right if name == "clpo" else by_text)]
        if name in replacing:
            rewards += [NamedReward(*replacing[name], from_method=name)]
    prompts = language_prompts(name)
    if name == "oorl":
        from dataclasses import replace

        labels = ("programs", "equivalents")
        changes = {**changes, "prompts.sources": [{"source": f"{label}.jsonl", "label": label} for label in labels]}
        prompts = [replace(prompt, source=labels[n % 2]) for n, prompt in enumerate(prompts)]
    return TinyRun(changes=changes, policy=policy, rewards=rewards, prompts=prompts)


def _chain(name: str) -> dict[str, Any]:
    changes: dict[str, Any] = {"rollout.prompts_per_step": 2, "rollout.group_size": 4 if name == "grpo-care" else 2}
    if name == "svs":
        changes["rollout.prompt_templates.solution.pattern"] = None
    if name == "delethink":
        changes |= {"rollout.prompt_templates.chunk.head": 1, "rollout.prompt_templates.chunk.tail": 1}
    then = read_layers(find_config(f"methods/{name}")).get("rollout", {}).get("strategy", {}).get("then")
    if then:  # settings of drawing are of models with room for long answers
        short = [{key: value for key, value in stage.items() if key != "settings"} for stage in then]
        changes["rollout.strategy.then"] = short
    return changes


DENOISING: dict[str, dict[str, Any]] = {
    "chunk-grpo": {"policy.segments": [2, 2]},
    "dppo": {
        "advantage.critic.policy": CRITIC,
        "advantage.critic.optimizer.lr": 1e-2,
        "rollout.group_size": 1,
        "rollout.prompts_per_step": 4,
        "update.epochs": 2,
    },
    "flow-dppo": {  # within the published limit of 1e-5 no ratio is near the default bound of 0.2
        "rollout.window.high": 3,
        "rollout.window.size": 2,
        "update.optimizer.lr": 0.2,
        "update.epochs": 2,
        "objective.modulations": [{"name": "within_divergence", "limit": 1.0}],
    },
    "flow-grpo-fast": {"rollout.window.high": 3, "rollout.window.size": 2},
    "sage-grpo": {"update.reference.reset_every": 1, "objective.kl.beta": 1.0},
    "mix-grpo": {"rollout.window.size": 2},
    "mix-grpo-flash": {"rollout.window.size": 2},
    "crd": {"policy.reading.num_levels": 5},
}


def bright_left(samples: Sequence[Sample]) -> list[float]:
    """Every member another reward, not in the order of members."""
    return [float((sample.member * 3 + sample.group) % 4) / 3 for sample in samples]


def _denoising(name: str) -> TinyRun:
    method_policy = read_layers(find_config(f"methods/{name}")).get("policy", {})
    settings = {key: value for key, value in settings_of("sd3").items() if key not in method_policy}
    settings["call"] = {**settings["call"], "num_inference_steps": 4, "height": 16, "width": 16}
    changes = {f"policy.{key}": value for key, value in {"name": "denoising", **settings}.items()}
    changes |= {"policy.model": "python:tests.policies.tiny_policies:build_sd3", "rollout.prompts_per_step": 2}
    if "clamp" in read_layers(find_config(f"methods/{name}")).get("advantage", {}):
        changes["advantage.clamp"] = 1.0  # so few members are never five standard deviations apart

    def policy(config: RunConfig) -> Policy:
        assert config.policy is not None
        numbers = {key: value for key, value in config.policy.settings.items() if key != "model"}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # of fresh adapters
            return DenoisingPolicy(pipeline_of("sd3"), copy.deepcopy(numbers))

    rewards = [NamedReward("bright", bright_left)]
    pairs = [{"chosen": picture(16, 16, seed=n), "rejected": picture(16, 16, seed=n + 10)} for n in range(4)]
    prompts = [Prompt(text, columns=columns) for text, columns in zip(TEXTS[:4], pairs, strict=True)]
    return TinyRun(changes={**changes, **DENOISING.get(name, {})}, policy=policy, rewards=rewards, prompts=prompts)


def _masked(name: str) -> TinyRun:
    changes = {
        "policy.name": "masked",
        "policy.model": "python:tests.tiny.masked_models:eurobert",
        "policy.length": 6,
        "policy.num_steps": 3,
        "policy.reading.num_levels": 2,
        "rollout.prompts_per_step": 2,
        "update.epochs": 2,
    }
    rewards = [NamedReward("right", bright_left)]
    return TinyRun(
        changes=changes,
        policy=lambda config: build_policy(config, "cpu"),
        rewards=rewards,
        prompts=masked_prompts_of(),
    )
