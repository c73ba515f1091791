"""Methods that imitate samples of the policy, train on off-policy rows, or keep statistics for exploration.

Their prompts, off-policy rows and memory, and that they train.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.rewards.groups.explorability import Explorability

from mmgrpo.algorithm import Algorithm, prompt_sampler
from mmgrpo.config.loading import load_config
from mmgrpo.config.needs import row_columns
from mmgrpo.data.history import History
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Answer, Request, Setting
from mmgrpo.memory import Memory
from mmgrpo.methods.group_losses.dpo import chosen
from mmgrpo.methods.off_policy.meml_grpo import weakest_system
from mmgrpo.scoring import NamedReward
from mmgrpo.training.build import build_rewards
from mmgrpo.training.prompt_stats import PromptStats, update_prompt_stats
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt, Sample
from tests.configs.mechanisms import IMITATION
from tests.configs.method_steps import config_of
from tests.data.test_samplers import pool
from tests.policies.tiny_language import measured_policy_of, prompts_of

ANSWERS = ("equivalent_1", "equivalent_2", "different_1", "different_2")


def test_an_explanation_is_sampled_after_the_answer_and_trained_after_the_question() -> None:
    config = config_of("expo")
    requests = Algorithm.of(config).strategy.ask((), Setting(step=0, num_prompts=1, group_size=9))
    assert requests == (
        Request(prompt=0, members=tuple(range(8))),
        Request(prompt=0, members=(8,), prompt_template="explained", train_without_template=True),
    )
    templated = Algorithm.of(config).prompt_templates["explained"](Prompt("why", columns={"answer": "7"}), 8, History())
    assert templated is not None
    assert templated.text.startswith("why\n\nThe right answer is 7. ")


def test_groups_of_one_source_are_read() -> None:
    setting = Setting(step=0, num_prompts=2, group_size=2, key_of=lambda n: ("programs/a", "equivalents/b")[n])
    assert Algorithm.of(config_of("oorl")).strategy.ask((), setting) == (
        Request(prompt=0, members=(0, 1)),
        Request(prompt=1, members=(0, 1, 2, 3), off_policy_rows=tuple(Answer(column) for column in ANSWERS)),
    )


def test_right_answers_are_viewed_with_the_prompt_of_the_weakest_part() -> None:
    """Of three parts of two the first is half right, the second wrong, the third right."""
    config = config_of("meml-grpo")
    texts = [
        prompt_template(Prompt("q"), 0, History()) for prompt_template in Algorithm.of(config).prompt_templates.values()
    ]
    system_texts = [
        prompt.messages[0]["content"] for prompt in texts if prompt is not None and prompt.messages is not None
    ]
    view = config.objective.views["weakest"].prompt_template
    assert view is not None
    assert view.settings["texts"] == system_texts
    parts = [part for part in ("textbook", "at_length", "reflecting") for _ in range(2)]
    samples = [Sample(Prompt("q"), 0, member, text="a", prompt_template=part) for member, part in enumerate(parts)]
    history, show = History(samples=samples, rewards=[1, 0, 0, 0, 1, 1]), weakest_system(texts=system_texts)
    overrides = [show(sample.prompt, sample.member, history) for sample in samples]
    assert overrides[:4] == [None] * 4
    assert [prompt and prompt.messages for prompt in overrides[4:]] == [
        [{"role": "system", "content": system_texts[1]}, {"role": "user", "content": "q"}]
    ] * 2
    assert show(Prompt("q"), 0, replace(history, rewards=[1, 0, 0, 1, 1, 0])) is None
    assert show(Prompt("q"), 0, History()) is None
    with pytest.raises(ConfigError, match="2 texts, but the group was sampled in 3 prompt templates"):
        weakest_system(texts=system_texts[:2])(Prompt("q"), 0, history)


def test_prompts_to_explore_are_remembered_and_sampled() -> None:
    """One right of two, of entropies 0.4 and 0.5: 0.9; two right; a right one of 0.1 and a wrong one of 0.5: 0.1."""
    config = config_of("depo")
    assert config.prompts is not None
    assert config.prompts.sampler is not None
    sampler, explorability = prompt_sampler(config.prompts.sampler), build_rewards(config.rewards)[1]
    assert sampler.learn is not None
    assert explorability.weight == 0
    texts, entropies = (r"\boxed{7}", r"\boxed{8}"), {"0": (0.4, 0.5), "1": (0.3, 0.3), "2": (0.1, 0.5)}
    samples = [
        Sample(
            Prompt("q", columns={"answer": "7"}), group, m, text=texts[m * (key != "1")], values={"entropy": entropy}
        )
        for group, (key, both) in enumerate(entropies.items())
        for m, entropy in enumerate(both)
    ]
    scores = explorability.function(samples)
    assert scores == pytest.approx([0.4, 0.5, 0.0, 0.0, 0.1, 0.0], abs=1e-6)
    facts = PromptStats(
        keys=[key for key in entropies for _ in range(2)],
        reward_B=torch.zeros(6),
        valid_B=torch.ones(6).bool(),
        step=0,
        rewards={"explorability": torch.tensor(scores, dtype=torch.float64)},
    )
    memory = update_prompt_stats(Memory().declared(sampler.columns), facts, [sampler.learn])
    assert memory.read("explorability_0_ago", list(entropies)).tolist() == pytest.approx([0.9, 0.0, 0.1], abs=1e-6)
    # at least 0.4 of what is looked at, here of all three from epoch 20 on
    assert sampler.draw(memory, 1000, pool(3), 2, 0) == [0, 2]


SMALL: dict[str, dict[str, Any]] = {
    "expo": {"rollout.group_size": 3, "rollout.strategy.sizes": [2, 1]},
    "meml-grpo": {"rollout.group_size": 6},
}
COLUMNS = {**dict.fromkeys(("answer", "solution", "chosen", *ANSWERS), "two red squares"), "rejected": "one"}


def first_is_right(samples: Sequence[Sample]) -> list[float]:
    return [float(sample.member % 2 == 0 and sample.prompt_template != "at_length") for sample in samples]


def of_context(name: str) -> Any:
    return lambda samples: [1.0 if sample.prompt_template == name else None for sample in samples]


REWARDS = {
    "expo": [NamedReward("explained", of_context("explained"))],
    "mel": [NamedReward("proved", of_context("experience"))],
    "depo": [NamedReward("explorability", Explorability(first_is_right), weight=0.0)],
    "dpo": [NamedReward("chosen", chosen)],
}
EVERYDAY = ("oorl", "depo")


@pytest.mark.parametrize(
    "name", [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.nightly) for name in IMITATION]
)
def test_method_trains(name: str, tmp_path: Path) -> None:
    small = {"steps": 2, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "update.optimizer.lr": 1e-3}
    labels = ("programs", "equivalents") if name == "oorl" else (None, None)
    if name == "oorl":
        small["prompts.sources"] = [{"source": f"{label}.jsonl", "label": label} for label in labels]  # pyrefly: ignore[bad-assignment]
    config = load_config(
        f"methods/{name}", {**small, "rewards": [], "output": str(tmp_path), "policy": None, **SMALL.get(name, {})}
    )
    rewards = [NamedReward("right", first_is_right), *REWARDS.get(name, ())]
    prompts = [replace(prompt, columns=COLUMNS) for prompt in prompts_of("llama")[:2]]
    prompts = [replace(prompt, source=label) for prompt, label in zip(prompts, labels, strict=True)]
    trainer = Trainer(measured_policy_of("llama", max_new_tokens=8), rewards, prompts, config)
    folder = trainer.train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 2
    assert all(line["optimizer/grad_norm"] > 0 for line in lines)
    if (
        name == "oorl"
    ):  # of two groups the given one has equal log-ratios at first: log 2, and nothing else at a ratio of 1
        assert lines[0]["policy/loss/equivalents"] == pytest.approx(0.01 * 0.6931472 / 2, rel=1e-4)
    if name == "depo":
        remembered = trainer.session.memory.read("explorability_0_ago", trainer.stream.keys)
        assert bool((remembered > 0).all())  # of two groups of two, each with a right and a wrong one
        assert float(remembered.sum()) == pytest.approx(4 * lines[-1]["reward/explorability/mean"], rel=1e-5)
    if name == "meml-grpo":
        assert all("policy/loss/mutual" in line for line in lines)
    if name == "expo":
        assert lines[0]["policy/loss/off_policy"] > 0


def test_an_unknown_source_raises(tmp_path: Path) -> None:
    small = {"rewards": [], "output": str(tmp_path), "policy": None, "rollout.prompts_per_step": 2}
    config = load_config("methods/oorl", {**small, "update.minibatches": 1})
    columns = {name: "x" for _, name in row_columns(config)}
    rows = [replace(prompt, columns=columns) for prompt in prompts_of("llama")[:2]]
    with pytest.raises(ConfigError, match=r"rollout.strategy.source: 'equivalents' is the label of none"):
        Trainer(measured_policy_of("llama"), [NamedReward("right", first_is_right)], rows, config)
