"""Tools and environments of TRL's documentation as arguments of a Trainer."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from mmgrpo.policies.language import LanguagePolicy

from mmgrpo import Trainer
from mmgrpo.config.loading import validated
from mmgrpo.doctor.examination import examine
from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.samples import EnvironmentHandle
from mmgrpo.scoring import named_rewards, score
from mmgrpo.types import Prompt, Sample
from tests.tiny.counting import TargetEnv, TwoEnv, counted, examples_of, question
from tests.tiny.tool_callers import ask, caller


class Other:
    def reset(self, **kwargs: Any) -> str:
        assert "environment" not in kwargs
        return "Stay."

    def stay(self) -> str:
        """Stays."""
        return "stayed"


def increment(step: int) -> int:
    """
    Increment the internal counter.

    Args:
        step: Value to add to the counter.

    Returns:
        The updated counter value.
    """
    return step


ASK, DONE = ask(question(2)), counted(2)


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    return caller("qwen3", examples_of([2]), max_new_tokens=200)


def values_of(folder: Path) -> dict[str, Any]:
    rollout = {"prompts_per_step": 2, "group_size": 2}
    return {"steps": 1, "rollout": rollout, "update": {"optimizer": {"lr": 1e-9}}, "output": str(folder)}


def metrics_of(trainer: Trainer) -> dict[str, Any]:
    return json.loads((trainer.train() / "metrics.jsonl").read_text().splitlines()[0])


@pytest.mark.nightly
def test_an_environment_writes_the_prompts_and_the_reward(policy: LanguagePolicy, tmp_path: Path) -> None:
    trainer = Trainer(policy, None, config=values_of(tmp_path), environment_factory=TwoEnv)
    line = metrics_of(trainer)
    assert line["reward/TwoEnv/mean"] == 1.0
    assert (line["tools/increment/calls"], line["tools/increment/failures"]) == (4.0, 0.0)


@pytest.mark.nightly
def test_rewards_read_the_environments_and_the_messages(policy: LanguagePolicy, tmp_path: Path) -> None:
    arguments: list[Any] = []

    def counter(environments: list[Any], **kwargs: Any) -> list[float]:
        return [environment.counter / 2 for environment in environments]

    def last(completions: list[Any], **kwargs: Any) -> list[float]:
        arguments.extend(completions)
        return [float(completion[-1]["content"] == "Done.") for completion in completions]

    dataset = Dataset.from_dict({"prompt": [ASK] * 2, "target": [2, 2]})
    trainer = Trainer(policy, [counter, last], dataset, values_of(tmp_path), tools=[], environment_factory=TargetEnv)
    line = metrics_of(trainer)
    assert [line[f"reward/{name}/mean"] for name in ("counter", "last", "TargetEnv")] == [1.0, 1.0, 1.0]
    assert [message["role"] for message in arguments[-1]] == ["assistant", "tool", "assistant"]
    assert arguments[-1] == [*DONE[1:], {"role": "assistant", "content": "Done."}]


def test_rows_choose_their_environment(policy: LanguagePolicy, tmp_path: Path) -> None:
    dataset = Dataset.from_dict({"environment": ["count", "stay"]})
    factories = {"count": TwoEnv, "stay": Other}
    kinds: list[str] = []

    def kind(environments: list[Any], **kwargs: Any) -> list[float]:
        kinds.extend(type(environment).__name__ for environment in environments)
        return [1.0] * len(environments)

    trainer = Trainer(policy, kind, dataset, values_of(tmp_path), environment_factory=factories)
    metrics_of(trainer)
    assert sorted(kinds[-4:]) == ["Other", "Other", "TwoEnv", "TwoEnv"]


def test_functions_are_tools(policy: LanguagePolicy, tmp_path: Path) -> None:
    def right(samples: list[Sample]) -> list[float]:
        return [float(list(sample.turn_texts)[-1:] == ["Done."]) for sample in samples]

    trainer = Trainer(policy, right, [{"prompt": ASK}] * 2, values_of(tmp_path), tools=[increment])
    line = metrics_of(trainer)
    assert (line["reward/right/mean"], line["tools/increment/calls"]) == (1.0, 4.0)
    both = {**values_of(tmp_path), "rollout": {"environment": "tools", "prompts_per_step": 2, "group_size": 2}}
    with pytest.raises(ConfigError, match=r"remove rollout\.environment"):
        Trainer(policy, right, [{"prompt": ASK}] * 2, both, tools=[increment])


def test_doctor_scores_the_turn_after_a_call(policy: LanguagePolicy) -> None:
    environment = {"name": "tools", "functions": [f"python:{__name__}:increment"]}
    config = validated({"rollout": {"prompts_per_step": 1, "group_size": 2, "environment": environment}})
    results = examine(config, policy, {"length": lambda samples: [1.0] * len(samples)}, [Prompt("", messages=ASK)])
    (turns,) = [result for result in results if result.check == "turns"]
    assert (turns.ok, turns.fix) == (True, "")
    assert turns.measured.startswith("turns a sample: 2; log-prob by turn ")
    assert turns.measured.endswith("environments failed on 0 of 2 samples; 0 of 2 calls of tools failed")
    gaps = turns.measured.split("by turn ")[1].split(",")[0].split()
    assert all(float(gap) < 1e-5 for gap in gaps)


def test_objects_of_another_process_are_an_error() -> None:
    def counter(environments: list[Any], **kwargs: Any) -> list[float]:
        return [environment.counter for environment in environments]

    environment = TwoEnv()
    environment.reset()
    environment.increment(3)
    sample = Sample(Prompt("count"), 0, 0, text="done", environment=EnvironmentHandle(environment))
    (reward,) = named_rewards({"counter": counter})
    assert score([sample], [reward]).value_BR.tolist() == [[3.0]]
    with pytest.raises(RewardError, match=r"stay in the process that sampled them: .* reads_environments = True"):
        reward.function(pickle.loads(pickle.dumps([sample])))
    plain = Sample(Prompt("count"), 0, 0, text="done")
    assert list(reward.function([sample, plain])) == [3, None]  # no conversation: the reward does not apply
