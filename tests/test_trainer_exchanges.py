"""Runs whose samples are exchanges with an environment, from the configuration to the metrics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import pytest
from mmgrpo.examples import calculator
from mmgrpo.examples.language_models import END, calculator_lm
from mmgrpo.policies.language import LanguagePolicy

from mmgrpo.environment import Environment, Turn
from mmgrpo.errors import ConfigError
from mmgrpo.tools import ToolEnvironment
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Plan, Prompt, Sample
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import prompts_of

BASE: dict[str, Any] = {
    "steps": 2,
    "rollout": {"prompts_per_step": 2, "group_size": 4},
    "update": {"optimizer": {"lr": 1e-3}},
}
ASKS = {"name": "python:tests.test_trainer_exchanges:Asks", "reply": "two red"}


@final
class Asks(Environment):
    """Says one thing to whatever is written."""

    def __init__(self, reply: str) -> None:
        self.reply = reply

    def reset(self, prompt: Prompt) -> Turn:
        return Turn()

    def step(self, text: str) -> Turn:
        return Turn(text=self.reply, reward=float(len(text)))


def evaluation_prompts() -> list[Prompt]:
    return prompts_of("llama")


def turn_rewards(samples: Sequence[Sample]) -> list[float]:
    return [sum(reward or 0.0 for reward in sample.turn_rewards) + len(sample.turn_ends) for sample in samples]


def trainer_of(folder: Path, rollout: dict[str, Any], **sections: Any) -> Trainer:
    values = {**BASE, "output": str(folder), **sections, "rollout": {**BASE["rollout"], **rollout}}
    return Trainer(terse("llama"), {"judged": turn_rewards}, prompts_of("llama"), values)


@pytest.mark.nightly
def test_a_run_is_trained_and_evaluated_on_conversations(tmp_path: Path) -> None:
    evaluation = {"prompts": {"source": "python:tests.test_trainer_exchanges:evaluation_prompts"}, "every": 1}
    trainer = trainer_of(tmp_path, {"environment": ASKS, "max_turns": 2}, evaluation=evaluation)
    trainer.train()
    lines = [json.loads(line) for line in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["reward/judged/mean"] > 1.0
    assert lines[0]["policy/on_policy_gap"] < 3e-6
    assert lines[0]["optimizer/grad_norm"] > 0
    (first, *_) = (trainer.folder.path / "evaluation.jsonl").read_text().splitlines()
    assert json.loads(first)["eval/judged/mean"] >= 1.0  # of a sample that is no exchange it is 0


def test_an_environment_that_cannot_be_built_raises(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"rollout\.environment .*: .*missing 1 required positional argument: 'reply'"
    ):
        trainer_of(tmp_path, {"environment": ASKS["name"]})
    with pytest.raises(ConfigError, match="makes a list; give a class of"):
        trainer_of(tmp_path, {"environment": "python:tests.test_trainer_exchanges:nothing"})
    with pytest.raises(ConfigError, match=r"unknown name 'tool' among environments.*tools"):
        trainer_of(tmp_path, {"environment": "tool"})


def nothing() -> list[int]:
    return []


def test_the_calculator_is_supervised_as_it_is_used() -> None:
    model, tokenizer = calculator_lm()
    policy = LanguagePolicy(model, tokenizer, {"chat": False, "max_new_tokens": 24})
    first, second = calculator.examples(called=1.0)[:2]
    assert first.prompt.text + (first.text or "") + END in second.prompt.text
    reply = ToolEnvironment([calculator.multiply], describe=False).step(first.text or "")
    assert reply.text == second.text == first.prompt.columns["answer"]
    encoder = policy._encoder
    row = [
        *encoder(first.prompt).ids_P.tolist(),
        *encoder.encode_text(first.text or "").tolist(),
        encoder.end_id(policy._end_ids.tolist()),
        *encoder.encode_reply(reply, prompt=first.prompt, end_ids=policy._end_ids.tolist()).token_T.tolist(),
    ]
    assert encoder(second.prompt).ids_P.tolist() == row


def test_calls_and_answers_are_distinguished() -> None:
    prompt = Prompt("12*34=", columns={"answer": "408"})
    call = calculator.examples(called=1.0)[0].text or ""
    samples = [
        Sample(prompt, 0, 0, turn_texts=[call, "408"]),
        Sample(prompt, 0, 1, turn_texts=["408"]),
        Sample(prompt, 0, 2, turn_texts=[call, "40"]),
        Sample(prompt, 0, 3, turn_texts=[call]),
    ]
    assert calculator.right(samples) == [1.0, 1.0, 0.0, 0.0]
    assert calculator.right([Sample(Prompt("12*34="), 0, 0, turn_texts=["408"])]) == [None]
    assert calculator.called(samples) == [1.0, 0.0, 1.0, 1.0]
    assert sum("tool_call" in (example.text or "") for example in calculator.examples(0.25)) == round(0.25 * 6480)


def test_an_untrained_calculator_is_written_with_its_tool() -> None:
    model, tokenizer = calculator_lm()
    policy = LanguagePolicy(model, tokenizer, {"chat": False, "max_new_tokens": 24})
    prompt = calculator.products()[0]
    call = calculator.examples(called=1.0)[0].text or ""
    plan = Plan(environment=lambda: ToolEnvironment([calculator.multiply], describe=False), max_turns=2)
    sample = policy.rollout([Prompt(prompt.text, prefix=call)], group_size=1, seed=0, plan=plan).samples[0]
    assert sample.num_forced == len(policy._encoder.encode_text(call)) == sample.turn_starts[0]
