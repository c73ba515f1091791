"""Complete runs with memory: their samples, resuming, and that an unread memory changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.examples.digits import digit_prompts

from mmgrpo.config.loading import validated
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.errors import ConfigError
from mmgrpo.runs.checkpoint import load_checkpoint
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Sample
from tests.test_trainer import BASE, brightness, lines, make_policy, run, weights

SETTLED = {"sampler": {"name": "skip_settled", "right": 60, "wrong": 50, "start": 0.3}}


def timeless(trainer: Trainer) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith("time")} for row in lines(trainer)]


def watching(counts: list[list[str]]) -> Any:
    def reward(samples: list[Sample]) -> list[float]:
        counts.append(list(dict.fromkeys(sample.prompt.text for sample in samples)))
        return brightness(samples)

    return reward


@pytest.mark.nightly
def test_a_resumed_run_samples_like_the_uninterrupted_one(tmp_path: Path) -> None:
    texts: dict[str, list[list[str]]] = {"whole": [], "resumed": []}
    values = {**BASE, "steps": 6, "prompts": SETTLED, "checkpoint": {"every": 3}}

    def trained(name: str, folder: str, resume: Path | None = None) -> Trainer:
        config = {**values, "output": str(tmp_path / folder)}
        trainer = Trainer(make_policy(), {"brightness": watching(texts[name])}, digit_prompts(), config, resume=resume)
        trainer.train()
        return trainer

    uninterrupted = trained("whole", "whole")
    resumed = trained("resumed", "whole", uninterrupted.folder.path / "checkpoints" / "step-000003")
    assert texts["resumed"] == texts["whole"][3:]
    assert torch.equal(weights(resumed), weights(uninterrupted))
    memories = [trainer.session.memory for trainer in (uninterrupted, resumed)]
    keys = list(memories[0].index_of)
    assert memories[0].read("last_step", keys).tolist() == memories[1].read("last_step", keys).tolist()
    assert memories[0].states == memories[1].states
    assert memories[0].state("skip_settled")["easy"] != 0.3


@pytest.mark.nightly
def test_the_checkpoint_holds_it_and_one_without_is_an_empty_one(tmp_path: Path) -> None:
    trainer = run(tmp_path, steps=2, prompts=SETTLED, checkpoint={"every": 1})
    checkpoint = trainer.folder.path / "checkpoints" / "step-000001"
    _, state = load_checkpoint(checkpoint, make_policy(), "cpu")
    assert len(state["memory"]["keys"]) == 4
    assert state["memory"]["numbers"]["last_step"].tolist() == [0, 0, 0, 0]
    del state["memory"]
    torch.save(state, checkpoint / "training.pt")
    (checkpoint / "manifest.json").unlink()
    older = Trainer(
        make_policy(),
        {"brightness": brightness},
        digit_prompts(),
        {**BASE, "steps": 2, "prompts": SETTLED, "output": str(tmp_path)},
        resume=checkpoint,
    )
    assert not older.session.memory.index_of
    assert set(older.session.memory.columns) == {"right_streak", "wrong_streak", "last_step"}


@pytest.mark.nightly
def test_the_shuffled_sampler_and_one_source_are_the_run_as_it_was(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", steps=2)
    named = run(tmp_path / "named", steps=2, prompts={"sampler": "shuffled"})
    assert torch.equal(weights(plain), weights(named))
    mixture = {"sources": [{"source": "python:mmgrpo.examples.digits:digit_prompts", "label": "digits"}]}
    config = validated({**BASE, "steps": 2, "prompts": mixture, "output": str(tmp_path / "one")})
    assert config.prompts is not None
    single_source = Trainer(make_policy(), {"brightness": brightness}, load_prompts_of(config.prompts), config)
    single_source.train()
    assert torch.equal(weights(plain), weights(single_source))
    assert timeless(plain) == [
        {key: value for key, value in row.items() if "@" not in key} for row in timeless(single_source)
    ]


@pytest.mark.nightly
def test_sources_by_weight_and_their_metrics(tmp_path: Path) -> None:
    sources = []
    for label, weight, texts in (("few", 3, "ab"), ("many", 1, "cdef")):
        path = tmp_path / f"{label}.jsonl"
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        sources.append({"source": str(path), "weight": weight, "label": label})
    config = validated({**BASE, "steps": 2, "prompts": {"sources": sources}, "output": str(tmp_path)})
    assert config.prompts is not None
    prompts = [
        replace(prompt, text="a digit", columns={"row": prompt.text}) for prompt in load_prompts_of(config.prompts)
    ]
    counts: list[Counter[str | None]] = []

    def by_source(samples: list[Sample]) -> list[float]:
        counts.append(Counter(sample.prompt.source for sample in samples))
        return [1.0 if sample.prompt.source == "few" else 0.25 for sample in samples]

    trainer = Trainer(make_policy(), {"source": by_source}, prompts, config)
    trainer.train()
    assert counts == [{"few": 6, "many": 2}] * 2  # of 4 prompts 3 and 1, two samples each
    for row in lines(trainer):
        assert row["reward/source/mean@few"] == 1.0
        assert row["reward/source/mean@many"] == 0.25
        assert row["reward/source/mean"] == pytest.approx(0.8125)


def test_a_section_without_a_source_is_for_live_prompts() -> None:
    config = validated({"prompts": {"sampler": "weighted"}})
    assert config.prompts is not None
    with pytest.raises(ConfigError, match="prompts names no source"):
        load_prompts_of(config.prompts)
