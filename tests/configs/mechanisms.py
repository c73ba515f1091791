"""The shipped methods that tests train with: enough to cover every function that a method names.

Other tests check the numbers of methods and functions. Daily tests train with the methods of ``EVERYDAY``, which
together set every key, nightly tests with all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from mmgrpo.config.loading import CONFIGS, find_config, read_layers, shipped

PLACES = ("prompts", "rollout", "advantage", "objective")
"""Sections in which a method sets its mechanisms."""

CHAINS = ["svs", "delethink", "motif", "clpo", "canoe", "multi-module-grpo", "grpo-care", "critique-rl", "comas"]
"""Trained on a language policy with rows that are sampled after others, in ``tests/configs/test_chain_methods.py``."""

ANY_KIND = [
    "aapo", "bnpo", "cispo", "clip-cov", "coba-rl", "competence-curriculum", "cppo", "cures", "dars", "disco",
    "dr-grpo", "f-grpo", "gdpo", "gmpo", "gpg", "greso", "grpo", "grpo-lead", "gspo", "gvpo", "kl-cov", "klear-gppo",
    "knapsack-rl", "mapo", "mmr1", "ngrpo", "nsr", "online-dpo", "pacs", "pass-k-training", "process-supervision",
    "prorl", "prs-vspo", "real", "reinforce-rej", "reward-model-ensembles", "riskpo", "rloo", "sapo",
    "simple-policy-optimization", "spo", "srpo--cross-domain", "stable-grpo", "vespo",
    "dr-irl", "gspo-token", "lite-ppo", "ppl", "ppl-position", "pvpo", "rec",
]  # fmt: skip
"""Trained on a denoising policy."""

STEP_METHODS = ["chunk-grpo", "flow-dppo", "sage-grpo", "tempflow-grpo"]
"""Trained on a denoising policy, whose steps they are about."""

TOKENS = [
    "archer", "bnpo", "d3s", "dcpo-clip", "deepvideo-r1", "disco", "dr-grpo", "drpo", "edge-grpo", "f-grpo",
    "flow-of-reasoning", "gfpo", "gigpo", "gtpo", "gvpo",
    "kl-cov", "lambda-grpo", "mapo", "nft", "ngrpo", "nsr", "online-dpo", "pass-k-training", "prorl",
    "rl-zvp", "tempo",
    "apo", "copo", "lens--waste-mistakes", "less", "prof", "seed-grpo", "evisrag", "rank-grpo",
    "clip-delta-prm-shaping", "earl", "egsw", "grpo-lambda", "gtpo--token-sequence",
    "rover", "simko", "siren",
    "laser", "tw-grpo",
    "high-entropy-tokens", "reinforce-plus-plus", "reinforce-plus-plus-baseline",
    "dppo-kl", "dppo-tv",
]  # fmt: skip
"""Trained on a language policy."""

READING = [
    "aepo",
    "ampo", "ar3po", "avatar", "critique-grpo", "dph-rl", "eframe", "evocot", "exgrpo", "g2rpo-a", "gcpo", "ghpo",
    "guide-grpo", "hbpo", "igrpo", "latr", "luffy", "mm-helix", "ps-grpo", "r1-sharevl", "raif", "repo", "rgr-grpo",
    "eepo", "rl-plus", "sage", "scaf-grpo", "seele", "spec-rl", "tree-opo", "trimpi", "visurf",
]  # fmt: skip
"""Trained on a language policy, with rows that have further contexts, or that were not all sampled as usual."""

PARTING = ["spo--segment-policy", "treerpo"]
"""Trained on a language policy with rows that continue others, in two rounds."""

PARTING_ONCE: dict[str, dict[str, Any]] = {
    "anytimereasoner": {
        "rollout.group_size": 2,
        "rollout.strategy.at": [2],
        "rollout.strategy.num": 1,
        "rollout.strategy.then": "!",
        "rollout.strategy.room": 3,
        "advantage.estimators": [{"name": "over_budgets", "at": [2]}],
    },
    "cure": {"rollout.group_size": 2, "rollout.strategy.among": 3, "rollout.strategy.factor": 2},
    "grpo-ma": {"rollout.group_size": 2, "rollout.strategy.pattern": ".", "rollout.strategy.factor": 2},
    "rose": {"rollout.group_size": 2, "rollout.strategy.from_root": 0.0},
    "s-grpo--early-reinforcement": {
        "rollout.group_size": 2,
        "rollout.strategy.num": 1,
        "rollout.strategy.then": "!",
        "rollout.strategy.room": 3,
    },
}
"""Likewise, in one round; and what of each is made small."""


VIEWS = [
    "papo", "sdpo", "on-policy-distillation", "g-opd", "gtr-turbo", "srpo--unifying-group", "vogue", "rto", "prl",
    "cgpo", "gkd", "opsd", "sdft", "uld",
]  # fmt: skip
"""Trained with views, in ``tests/training/test_view_runs.py``."""

TURNS = sorted(path.stem for path in CONFIGS.glob("methods/environments/*.yaml"))
"""Trained on conversations, in ``tests/configs/test_turn_methods.py``."""

IMITATION = ["expo", "mel", "oorl", "depo", "meml-grpo", "dpo"]
"""Trained on a language policy, in ``tests/configs/test_imitation.py``."""

CRITICS = ["ppo", "dvpo", "direct-advantage-policy-optimization", "t-ppo", "dppo"]
"""Trained with a critic, in ``tests/training/test_critic.py``, ``test_partial_rollouts.py`` and the file of dppo."""

INTERNALS = ["verl", "capo", "preplan-and-anchor-credit"]
"""Trained with what the network says inside, in ``tests/training/test_internal_runs.py``."""

ENGINE = ["icepop"]
"""Trained on samples of a server, in ``tests/policies/test_engine.py``."""

EVERYDAY = {
    "any kind": (
        "flow-dppo", "gdpo", "gmpo", "gpg", "gspo-token", "mmr1", "online-dpo", "process-supervision", "rloo",
        "sage-grpo", "srpo--cross-domain", "tempflow-grpo",
    ),
    "tokens": (
        "d3s", "earl", "evisrag", "gigpo", "kl-cov", "lens--waste-mistakes", "ngrpo", "pass-k-training", "prorl",
        "rank-grpo", "reinforce-plus-plus-baseline", "rover", "siren",
    ),
    "reading": (
        "aepo", "ampo", "ar3po", "critique-grpo", "dph-rl", "eepo", "exgrpo", "guide-grpo", "latr", "mm-helix", "raif",
        "scaf-grpo", "seele", "spec-rl", "tree-opo",
    ),
}  # fmt: skip
"""Those that are trained daily: on denoising policies ("any kind") and on language policies, every key on one of them;
with off-policy rows ("reading"), every strategy and auxiliary loss.

Each function has a separate test in ``tests/maths`` or ``tests/methods``."""


def nightly(of: str, names: Iterable[str]) -> list[Any]:
    """The parameters of a test, a method each; those not of every day have the mark ``nightly``."""
    return [pytest.param(name, marks=() if name in EVERYDAY[of] else pytest.mark.nightly) for name in names]


def settings(name: str) -> set[str]:
    """What a method's file sets: each key, with a choice that is no name of a function; of functions the keys alone."""
    values = read_layers(find_config(name))
    sections = {section: value for section, value in values.items() if section != "about"}
    return {result for section, value in sections.items() for result in _set(section, value)}


def functions(name: str) -> set[tuple[str, str]]:
    """The functions that a method's file names, each with its place."""
    values = read_layers(find_config(name))
    return {result for section in PLACES for result in _named(section, values.get(section, {}))}


def strategies(names: Iterable[str]) -> set[str]:
    """The strategies and auxiliary losses that methods name."""
    places = ("rollout.strategy", "objective.auxiliary")
    return {function for name in names for place, function in functions(f"methods/{name}") if place.startswith(places)}


def applies_to(name: str) -> str:
    """The policies that a method is for."""
    return read_layers(find_config(name))["about"]["method"]["applies_to"]


def untrained(kind: str, trained: list[str]) -> set[tuple[str, str]]:
    """What the methods of a kind name, and none of those that are trained does."""
    covered = {
        result
        for name in [*trained, *VIEWS, *CHAINS, *CRITICS, *IMITATION, *INTERNALS, *TURNS, *ENGINE]
        for result in functions(f"methods/{name}")
    }
    named = {result for name in shipped("methods") if applies_to(name) == kind for result in functions(name)}
    return named - covered


def _set(where: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and "name" in value:
        yield where
        for key, inner in value.items():
            if isinstance(inner, (Mapping, list)):
                yield from _set(f"{where}.{key}", inner)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _set(f"{where}.{key}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _set(where, inner)
    else:
        chosen = isinstance(value, (bool, str)) and not where.startswith("policy.")
        yield f"{where} = {value}" if chosen else where


def _named(where: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        if isinstance(value.get("name"), str):
            yield where, value["name"]
        for key, inner in value.items():
            if f"{where}.{key}" != "objective.views":  # passes that mechanisms read
                yield from _named(f"{where}.{key}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _named(where, inner)
    elif isinstance(value, str) and where.rpartition(".")[2] in ("scale", "divergence", "ratio_level"):
        yield where, value
