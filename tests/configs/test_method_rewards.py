"""Rewards of methods combined with those of a run: neither replaces the other, in either order of an include."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RewardConfig, RunConfig, needs
from mmgrpo.config.loading import load_config
from mmgrpo.config.needs import require_needs
from mmgrpo.config.registry import names
from mmgrpo.errors import ConfigError
from mmgrpo.explain.explanation import explanation
from mmgrpo.scoring import NamedReward
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.arguments import joined_rewards
from mmgrpo.training.build import build_rewards
from mmgrpo.training.compute_advantages import group_advantages
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt, Sample, Scores
from tests.policies.tiny_language import picture, prompts_of
from tests.policies.tiny_language import policy_of as llama
from tests.rewards.grouped import plain

OF_REWARDS = [
    *("arm", "cde", "diver", "dra-grpo", "empo", "geometryzero", "intuitor", "noisy-verifiers", "p-grpo", "pref-grpo"),
    *("ttrv", "unlikeliness-reward"),
]
"""Methods of which nothing is left without their rewards."""


def run_of(folder: Path, *names: str, rewards: Any = (), **sections: Any) -> RunConfig:
    file = folder / "run.yaml"
    stated = {"rewards": rewards} if rewards else {}
    file.write_text(yaml.safe_dump({"include": list(names), **stated, **sections}))
    return load_config(file)


def policy_of(name: str) -> dict[str, Any]:
    """A section ``policy`` for the methods that set a part of it."""
    is_denoising = name.removeprefix("methods/") in ("pref-grpo", "promptecho")
    return {"policy": {"name": "denoising", "model": "some/model"}} if is_denoising else {}


def listed(config: RunConfig) -> list[dict[str, Any]]:
    """The rewards, each with what is not a default."""
    defaults = RewardConfig(name="none").model_dump()
    return [
        {key: value for key, value in reward.model_dump().items() if key not in defaults or value != defaults[key]}
        for reward in config.rewards
    ]


RUN_REWARD = {"name": "exact_match", "column": "result", "extract": "line"}
EXPECTED: dict[str, list[dict[str, Any]]] = {
    "arm": [RUN_REWARD, {"name": "rarity", "of": RUN_REWARD, "marks": ["<COT>", "<CODE>", "<ANSWER>", "<LONG_COT>"]}],
    "cde": [{**RUN_REWARD, "weight": 2.0}, {"name": "curiosity", "strength": 1.0, "ceiling": 0.333333}],
    "diver": [RUN_REWARD, {"name": "unique_formulas", "of": RUN_REWARD, "most": 0.42}],
    "dra-grpo": [{"name": "diversity_adjusted", "of": RUN_REWARD, "rule": "divide"}],
    "empo": [{**RUN_REWARD, "weight": 0.0, "verifier": True}, {"name": "semantic_clusters", "extract": "line"}],
    "geometryzero": [
        RUN_REWARD,
        {"name": "where_useful", "of": RUN_REWARD, "marks": ["<aux>"], "margin": 0.1, "weight": 0.5},
    ],
    "intuitor": [{**RUN_REWARD, "weight": 0.0, "verifier": True}, {"name": "self_certainty"}],
    "noisy-verifiers": [{"name": "noisy_verifier", "of": RUN_REWARD, "false_positive": 0.1, "false_negative": 0.2}],
    "p-grpo": [RUN_REWARD, {"name": "remote", "url": "http://127.0.0.1:8000", "label": "reasoning"}],
    "pref-grpo": [{"name": "pairwise_win_rate", "of": RUN_REWARD}],
    "ttrv": [
        {**RUN_REWARD, "weight": 0.0, "verifier": True},
        {"name": "majority_vote", "mode": "share", "entropy": 0.75, "extract": "line"},
    ],
    "unlikeliness-reward": [{"name": "unlikeliness", "of": RUN_REWARD, "strength": 0.25}],
}


@pytest.mark.parametrize("name", OF_REWARDS)
def test_rewards_of_a_run_do_not_replace_those_of_its_method(name: str, tmp_path: Path) -> None:
    config = run_of(tmp_path, f"methods/{name}", rewards=[RUN_REWARD], **policy_of(name))
    added = [reward for reward in config.rewards if reward.from_method == name]
    assert added
    rows = [{key: value for key, value in row.items() if key != "from_method"} for row in listed(config)]
    assert [{key: row[key] for key in row if key not in ("gate", "schedule")} for row in rows] == EXPECTED[name]


def test_a_reward_of_a_method_is_computed_of_each_verifier(tmp_path: Path) -> None:
    """With its weight and gate; rewards of form have none."""
    gate = {"reward": "format", "at_least": 1.0, "otherwise": "zero"}
    rewards = [
        {"name": "exact_match", "weight": 2.0, "gate": gate},
        {"name": "math_verify", "weight": 0.5, "clip": [0.0, 1.0]},
        {"name": "format", "weight": 0.2},
        {"name": "yes_no", "weight": 0.0},
    ]
    config = run_of(tmp_path, "methods/dra-grpo", rewards=rewards)
    first, second = (
        {"name": "diversity_adjusted", "rule": "divide", "from_method": "dra-grpo", "of": of}
        for of in ("exact_match", "math_verify")
    )
    assert listed(config) == [
        {**first, "label": "diversity_adjusted_of_exact_match", "weight": 2.0, "gate": gate},
        {**second, "label": "diversity_adjusted_of_math_verify", "weight": 0.5, "clip": (0.0, 1.0)},
        *rewards[2:],
    ]
    rewards[1]["verifier"] = False
    assert [row["name"] for row in listed(run_of(tmp_path, "methods/dra-grpo", rewards=rewards))] == [
        *("diversity_adjusted", "math_verify", "format", "yes_no")
    ]


def test_a_verifier_that_a_gate_reads_is_reported(tmp_path: Path) -> None:
    rewards = [
        {"name": "exact_match", "label": "right"},
        {
            "name": "overlong",
            "max_length": 8,
            "margin": 2,
            "gate": {"reward": "right", "at_least": 1.0, "otherwise": "zero"},
        },
    ]
    config = run_of(tmp_path, "methods/unlikeliness-reward", rewards=rewards)
    assert [(reward.logged_name, reward.weight) for reward in config.rewards] == [
        ("right", 0.0),
        ("unlikeliness", 1.0),
        ("overlong", 1.0),
    ]
    config = run_of(tmp_path, "methods/grpo-care", rewards=rewards)  # under the label that its estimator reads
    assert [reward.logged_name for reward in config.rewards] == ["accuracy", "overlong", "format", "answer"]
    assert config.rewards[1].gate is not None
    assert config.rewards[1].gate.reward == "accuracy"


def test_a_reward_of_the_run_replaces_the_methods_of_its_label(tmp_path: Path) -> None:
    """And has the method's gate, on the outcome."""
    judge: dict[str, Any] = {"name": "text_judge", "model": "some/judge", "label": "reasoning"}
    with pytest.raises(ConfigError, match=r"'reasoning' is the label of a reward remote that methods/p-grpo adds"):
        run_of(tmp_path, "methods/p-grpo", rewards=[RUN_REWARD, judge | {"verifier": False}])
    config = run_of(tmp_path, "methods/p-grpo", rewards=[RUN_REWARD, judge | {"from_method": "p-grpo"}])
    gate = {"reward": "exact_match", "at_least": 1.0, "otherwise": "zero"}
    assert listed(config) == [RUN_REWARD, judge | {"from_method": "p-grpo", "gate": gate}]
    marks = {"name": "rarity", "marks": ["<A>", "<B>"], "schedule": {"name": "constant"}}
    arm = load_config("methods/arm").about.method
    assert arm is not None
    (reward,) = arm.rewards.added
    config = run_of(tmp_path, "methods/arm", rewards=[{**marks, "weight": 0.5}, RUN_REWARD])
    assert listed(config) == [
        RUN_REWARD,
        {**reward.settings, **marks, "of": RUN_REWARD, "weight": 0.5, "from_method": "arm"},
    ]
    clusters = {"name": "semantic_clusters", "extract": "tag", "label": "answers"}
    config = run_of(tmp_path, "methods/copo", rewards=[RUN_REWARD, clusters])
    assert listed(config) == [RUN_REWARD, clusters | {"weight": 0.0, "from_method": "copo"}]


def test_explain_lists_rewards_and_where_each_is_from(tmp_path: Path) -> None:
    rewards = [{"name": "exact_match", "extract": "tag", "label": "right"}, {"name": "format", "weight": 0.2}]
    text = explanation(run_of(tmp_path, "methods/empo", rewards=rewards), width=200)
    lines = [line.strip() for line in text.splitlines()]
    (first,) = [number for number, line in enumerate(lines) if line.startswith("rewards")]
    assert [line.removeprefix("rewards").strip() for line in lines[first : first + 3]] == [
        "0 exact_match (extract tag), labeled right: of the run, "
        "reported only: a reward of the method counts in its place",
        "1 semantic_clusters (extract tag): of methods/empo",
        "0.2 format: of the run",
    ]
    assert "reported only" not in explanation(run_of(tmp_path, "methods/arm", rewards=rewards))
    assert "of methods/" not in explanation(run_of(tmp_path, "methods/gspo", rewards=rewards))


def test_a_run_without_a_verifier_raises_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"methods/arm needs a verifier.* rewards: has format: add one, for example"):
        run_of(tmp_path, "methods/arm", rewards=[{"name": "format"}])
    with pytest.raises(
        ConfigError, match=r"methods/grpo-care: its reward accuracy takes one verifier, and the run has"
    ):
        run_of(tmp_path, "methods/grpo-care", rewards=[{"name": "exact_match"}, {"name": "yes_no"}])
    run_of(tmp_path, "methods/arm", rewards=[{"name": "format", "verifier": True}])


def test_included_methods_all_add_their_rewards(tmp_path: Path) -> None:
    config = run_of(tmp_path, "methods/geometryzero", "methods/dapo", "methods/diver", rewards=[RUN_REWARD])
    assert [(reward.logged_name, reward.from_method) for reward in config.rewards] == [
        ("exact_match", None),
        ("where_useful", "geometryzero"),
        ("unique_formulas", "diver"),
    ]


def test_columns_of_a_verifier_within_a_reward_are_needed() -> None:
    config = load_config("methods/arm", {"rewards": [RUN_REWARD]})
    assert [reward.needs_columns for reward in build_rewards(config.rewards)] == [("result",), ("result",)]


def right(samples: Sequence[Sample]) -> list[float]:
    return [float("7" in (sample.text or "")) for sample in samples]


def test_live_functions_are_verifiers(tmp_path: Path) -> None:
    config = load_config("methods/noisy-verifiers")
    run = joined_rewards([NamedReward("right", right, 2.0)], config)
    (reward,) = run.named
    assert (reward.name, reward.weight) == ("noisy_verifier", 2.0)
    samples = [Sample(Prompt("q"), group=0, member=member, text=text) for member, text in enumerate("78")]
    assert reward.function(samples) == pytest.approx([0.9 / 0.7, -0.1 / 0.7])
    judge = NamedReward("reasoning", right, from_method="p-grpo")
    run = joined_rewards([NamedReward("right", right), judge], load_config("methods/p-grpo"))
    assert [(reward.name, reward.gate and reward.gate.reward) for reward in run.named] == [
        ("right", None),
        ("reasoning", "right"),
    ]
    run = joined_rewards([NamedReward("right", right), NamedReward("reasoning", right)], load_config("methods/p-grpo"))
    assert [(reward.name, reward.gate and reward.gate.reward) for reward in run.named] == [
        ("right", None),
        ("reasoning", "right"),  # by its label
    ]
    run = joined_rewards([NamedReward("accuracy", right)], load_config("methods/canoe"))  # the only verifier
    assert [reward.name for reward in run.named] == ["accuracy", "influence", "form"]
    built = [NamedReward("exact_match", right), NamedReward("rarity", right)]
    assert joined_rewards(built, load_config("methods/arm")).named == built  # of the configuration already


def test_needs_of_a_method_are_checked(tmp_path: Path) -> None:
    papo = load_config("methods/papo", {"policy": None})
    with pytest.raises(ConfigError, match=r"methods/papo needs rows with images, and none of the 2 prompts has any"):
        require_needs(papo, prompts=[Prompt("a"), Prompt("b")])
    require_needs(papo, prompts=[Prompt("a"), Prompt("b", images=[picture()])])
    require_needs(papo)
    gigpo = run_of(tmp_path, "quickstart/calculator-tool", "methods/gigpo")
    with pytest.raises(
        ConfigError, match=r"methods/gigpo needs a reward of each turn, and the environment tools gives"
    ):
        require_needs(gigpo)
    named = {"advantage": {"estimators": [{"name": "anchor_states", "reward": "right"}]}}
    require_needs(run_of(tmp_path, "quickstart/calculator-tool", "methods/gigpo", **named))
    with pytest.raises(ConfigError, match=r"needs turns of a conversation.* set rollout.environment"):
        require_needs(load_config("methods/gigpo", {"policy": None}))


def seven(samples: Sequence[Sample]) -> list[float]:
    """What a user wrote: whether the text holds a 7."""
    return [float("7" in (sample.text or "")) for sample in samples]


def length(samples: Sequence[Sample]) -> list[float]:
    return [len(sample.text or "") / 10 for sample in samples]


SEVEN = {"name": "python:tests.configs.test_method_rewards:seven"}
GRADED = {"name": "python:tests.configs.test_method_rewards:length"}
JUDGE = {"name": "python:tests.configs.test_method_rewards:length", "label": "reasoning", "from_method": "p-grpo"}
ALSO = {"p-grpo": [JUDGE]}
TEXTS = {
    "arm": ("<COT> 7", "<COT> 8", "<CODE> 7", "9"),
    "diver": ("$a$ 7", "$a$ 8", "$b$ $c$ 7", "8"),
    "geometryzero": ("<aux></aux> 7", "<aux></aux> 8", "8", "9"),
    "empo": ("7", "8", "8", "8"),
    "ttrv": ("7", "8", "8", "8"),
}


@pytest.mark.parametrize("name", OF_REWARDS)
def test_stated_rewards_do_not_make_a_method_plain_grpo(name: str, tmp_path: Path) -> None:
    """In either order of the include its advantages are not those of the same file without its rewards."""
    base = tmp_path / "base.yaml"
    reward = GRADED if name == "pref-grpo" else SEVEN  # of two values, win rates are a change of scale
    sections = {"prompts": {"source": "p.txt"}, "rewards": [reward, *ALSO.get(name, [])], **policy_of(name)}
    base.write_text(yaml.safe_dump(sections))
    config = run_of(tmp_path, f"methods/{name}", str(base))
    assert config == run_of(tmp_path, str(base), f"methods/{name}")
    texts = TEXTS.get(name, ("it is 7", "so it must be 7", "it is 8", "9"))
    samples = [
        Sample(
            Prompt("q"),
            group=0,
            member=member,
            text=text,
            logprob=-float(2 + member) / 10,
            values={"certainty": float(member)},
        )
        for member, text in enumerate(texts)
    ]
    result_B = advantages(config, samples)
    plain_B = advantages(config.model_copy(update={"rewards": (RewardConfig.model_validate(reward),)}), samples)
    assert float((result_B - plain_B).abs().max()) > 0.04


def advantages(config: RunConfig, samples: Sequence[Sample]) -> torch.Tensor:
    rewards = build_rewards(config.rewards)
    values = [plain(reward.function(samples)) for reward in rewards]
    scores = Scores(
        names=tuple(reward.name for reward in rewards),
        weight_R=torch.tensor([reward.weight for reward in rewards]),
        value_BR=torch.tensor(values).T.contiguous(),
        valid_BR=torch.ones(len(samples), len(rewards)).bool(),
    )
    group_B = torch.zeros(len(samples), dtype=torch.long)
    shaped, _ = shape_scores(scores, rewards, 0)
    return group_advantages(shaped, group_B, Algorithm.of(config).advantages).advantage_B


@pytest.mark.parametrize("name", ["intuitor", "unlikeliness-reward"])
def test_a_run_of_live_functions_and_a_method_is_not_plain_grpo(name: str, tmp_path: Path) -> None:
    """The same samples in the first step, and other weights after it."""
    small = {"steps": 1, "rollout.prompts_per_step": 2, "rollout.group_size": 4, "update.optimizer.lr": 1e-3}
    weights, logged = [], []
    for label, changes in ((name, {}), ("plain", {"about.method": None})):
        config = load_config(f"methods/{name}", {**small, **changes, "output": str(tmp_path), "about.name": label})
        policy = llama("llama", max_new_tokens=5)
        folder = Trainer(policy, [NamedReward("parity", parity)], prompts_of("llama"), config).train()
        weights.append(torch.cat([parameter.detach().flatten() for parameter in policy.trainable]))
        logged.append(json.loads((folder / "metrics.jsonl").read_text().splitlines()[0]))
    assert not torch.equal(*weights)
    substitute = {"intuitor": "self_certainty", "unlikeliness-reward": "unlikeliness"}[name]
    assert f"reward/{substitute}/mean" in logged[0]
    assert f"reward/{substitute}/mean" not in logged[1]


def parity(samples: Sequence[Sample]) -> list[float]:
    return [float(sample.member % 2) for sample in samples]


@pytest.mark.parametrize("method", ["rank-grpo", "direct-advantage-policy-optimization"])
def test_method_of_segments_needs_their_end(method: str) -> None:
    policy = {"name": "language", "model": "some/model"}
    with pytest.raises(
        ConfigError, match=rf"methods/{method} needs segments of .* policy\.segment_end: \"\\n\" for lines"
    ):
        require_needs(load_config(f"methods/{method}", {"policy": policy}))
    require_needs(load_config(f"methods/{method}", {"policy": {**policy, "segment_end": "\n"}}))


@pytest.mark.parametrize(
    ("method", "key", "column"),
    [
        ("luffy", "rollout.strategy.column", "solution"),
        ("ampo", "rollout.strategy.further", "teacher_2"),
        ("guide-grpo", "rollout.prompt_templates.hint.column", "hint"),
        ("r1-sharevl", "rollout.prompt_templates.variant.text", "variant"),
        ("mm-helix", "objective.auxiliary.expert.column", "solution"),
    ],
)
def test_columns_that_functions_read_are_checked(method: str, key: str, column: str) -> None:
    config = load_config(f"methods/{method}", {"policy": None})
    rows = [Prompt("a", columns={"teacher_1": "b", "answer": "c"})]
    with pytest.raises(
        ConfigError,
        match=rf"{re.escape(key)} reads the column '{column}', which none of the 1 prompts has: add it to the rows, or "
        "name another one there; the columns are answer, teacher_1",
    ):
        require_needs(config, rewards=[RewardConfig(name="live:right")], prompts=rows)
    names = [name for _, name in needs.row_columns(config)]
    require_needs(
        config,
        rewards=[RewardConfig(name="live:right")],
        prompts=[Prompt("a", columns=dict.fromkeys(names, "x"))],
    )


def test_method_of_a_judge_needs_a_reward_by_a_model() -> None:
    config = load_config("methods/rgr-grpo", {"rewards": [RUN_REWARD]})
    with pytest.raises(ConfigError, match=r"methods/rgr-grpo needs a judge.* rewards: has exact_match: add one, for "):
        require_needs(config)
    judge = RewardConfig.model_validate({"name": "text_judge", "model": "m", "question": "{response}"})
    require_needs(config, rewards=[judge])
    wrapped = RewardConfig.model_validate({"name": "frame_mean", "of": {"name": "vlm_judge", "model": "m"}})
    require_needs(config, rewards=[wrapped])
    for name in ("clap_score", "clip_score", "image_reward", "remote", "reward_model", "video_align"):
        require_needs(config, rewards=[RewardConfig.model_validate({"name": name})])
    assert names("rewards").keys() >= needs.MODEL_REWARDS
    require_needs(config, rewards=[RewardConfig.model_validate({"name": "live:rubric"})])
    with pytest.raises(ConfigError, match="methods/dr-irl needs a judge"):
        require_needs(load_config("methods/dr-irl", {"rewards": [RUN_REWARD]}))


@pytest.mark.parametrize("method", ["prof", "clip-delta-prm-shaping", "process-supervision"])
def test_method_of_step_rewards_needs_their_label(method: str) -> None:
    config = load_config(f"methods/{method}", {"rewards": [RUN_REWARD]})
    with pytest.raises(
        ConfigError,
        match=rf"methods/{method} needs scores of steps: .* labeled steps, and rewards: has exact_match: add",
    ):
        require_needs(config)
    require_needs(config, rewards=[*config.rewards, RewardConfig(name="live:steps", label="steps")])


@pytest.mark.parametrize("method", ["ppo", "dvpo", "direct-advantage-policy-optimization"])
def test_method_of_a_critic_needs_one(method: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"methods/{method} needs a critic, and the run has none: .* set advantage\.critic"
    ):
        require_needs(load_config(f"methods/{method}", {"advantage.critic": None}))
    require_needs(load_config(f"methods/{method}"))
