"""Complete runs on the digits pipeline: their output, resuming, and independence of the machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.examples.digits import digit_prompts
from mmgrpo.examples.pipelines import digits_pipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config
from mmgrpo.errors import ConfigError, DataError, RewardError
from mmgrpo.runs.checkpoint import weights_folder
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Sample
from tests.policies.tiny_policies import measured

CALL = {"height": 8, "width": 8, "num_inference_steps": 4, "guidance_scale": 1.0, "max_sequence_length": 1}
BASE: dict[str, Any] = {
    "steps": 4,
    "rollout": {"prompts_per_step": 4, "group_size": 2, "window": {"name": "random_subset", "size": 2}},
    "objective": {
        "surrogate": {"name": "clipped", "low": 1e-3, "high": 1e-3},
        "kl": {"divergence": "gaussian", "beta": 0.1},
    },
    "update": {"minibatches": 2, "optimizer": {"lr": 1e-3}, "ema": {"decay": 0.5}},
}


def brightness(samples: Sequence[Sample]) -> list[float]:
    """Mean gray value, in [0, 255]."""
    return [sum(sample.image.tobytes()) / 64 for sample in samples if sample.image is not None]


def new_policy(**settings: Any) -> DenoisingPolicy:
    pipeline = digits_pipeline(num_layers=2)
    generator = torch.Generator().manual_seed(0)  # adaLN-Zero starts at zero output; a policy with something to say
    with torch.no_grad():
        for parameter in pipeline.transformer.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return DenoisingPolicy(pipeline, {"call": CALL, "rollout_batch": 8, "update_batch": 8, **settings})


def make_policy(**settings: Any) -> DenoisingPolicy:
    return measured(new_policy, digit_prompts(), **settings)


def run(output: Path, policy: DenoisingPolicy | None = None, *, resume: Path | None = None, **changes: Any) -> Trainer:
    values = {**BASE, "output": str(output), **changes}
    trainer = Trainer(policy or make_policy(), {"brightness": brightness}, digit_prompts(), values, resume=resume)
    trainer.train()
    return trainer


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.policy.trainable])


def lines(trainer: Trainer, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (trainer.folder.path / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run that nothing interrupted, with which others are compared."""
    return run(tmp_path_factory.mktemp("whole"), checkpoint={"every": 2, "keep": None})


def test_run_folder_has_the_documented_files(tmp_path: Path, uninterrupted: Trainer) -> None:
    trainer = run(tmp_path, checkpoint={"every": 4, "keep": 1})
    assert torch.equal(weights(trainer), weights(uninterrupted))  # whatever is saved on the way
    metrics = lines(trainer)
    assert [(line["step"], line["update"]) for line in metrics] == [(s, u) for s in (1, 2, 3, 4) for u in (0, 1)]
    for line in metrics:
        assert line["policy/on_policy_gap"] < 1e-6
        assert line["reward/mean"] == pytest.approx(line["reward/brightness/mean"])
        # 4 rollout steps; then 2 decisions, each a reference and an update forward, for every sample trained so far
        assert line["count/forwards_per_sample"] == pytest.approx(4 + 4 * (line["update"] + 1) / 2)
    assert {line["policy/ratio_mean"] for line in metrics if line["update"] == 0} == {1.0}
    first = next(iter(metrics))
    assert first["policy/kl_mean"] == 0.0
    assert metrics[-1]["policy/kl_mean"] > 0.0
    folder = trainer.folder.path
    assert load_config(folder / "config.yaml") == trainer.config
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000004"]
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


@pytest.mark.nightly
def test_none_takes_rewards_and_prompts_of_the_configuration(tmp_path: Path, uninterrupted: Trainer) -> None:
    sections = {
        "prompts": {"source": "python:mmgrpo.examples.digits:digit_prompts"},
        "rewards": [{"name": "python:tests.test_trainer:brightness", "label": "brightness"}],
    }
    trainer = Trainer(make_policy(), None, None, {**BASE, **sections, "output": str(tmp_path)})
    trainer.train()
    assert torch.equal(weights(trainer), weights(uninterrupted))
    without = {**BASE, "prompts": sections["prompts"], "output": str(tmp_path)}
    with pytest.raises(ConfigError, match="there are no rewards"):
        Trainer(make_policy(), None, None, without)
    with pytest.raises(DataError, match=r"pass them or set prompts\.source"):
        Trainer(make_policy(), brightness, None, {**BASE, "output": str(tmp_path)})


def test_reward_rises(tmp_path: Path) -> None:
    trainer = run(
        tmp_path,
        steps=5,
        rollout={"prompts_per_step": 4, "group_size": 8, "window": {"name": "random_subset", "size": 1}},
        update={"optimizer": {"lr": 2e-3}},
    )
    first, *_, last = lines(trainer)
    assert last["reward/mean"] > first["reward/mean"] + 10
    assert last["policy/kl_mean"] > 0


def test_resumed_run_is_the_uninterrupted_one(tmp_path: Path, uninterrupted: Trainer) -> None:
    copied = Path(shutil.copytree(uninterrupted.folder.path, tmp_path / "half" / "run"))
    resumed = run(tmp_path / "half", resume=copied / "checkpoints" / "step-000002")
    assert torch.equal(weights(uninterrupted), weights(resumed))
    same = [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines(uninterrupted)]
    assert [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines(resumed)] == same


def test_resumed_lora_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    lora = {"rank": 2, "alpha": 4, "targets": ["to_q", "to_v"]}
    uninterrupted = run(tmp_path, make_policy(lora=lora), steps=3, checkpoint={"every": 1})
    checkpoint = uninterrupted.folder.path / "checkpoints" / "step-000001"
    resumed = run(tmp_path, make_policy(lora=lora), steps=3, resume=checkpoint)
    assert torch.equal(weights(uninterrupted), weights(resumed))


def test_batches_do_not_change_the_run(tmp_path: Path, uninterrupted: Trainer) -> None:
    half = make_policy()
    half.load(uninterrupted.folder.path / "checkpoints" / "step-000002" / "policy")
    expected = torch.cat([parameter.detach().flatten() for parameter in half.trainable])
    for number, settings in enumerate(({"rollout_batch": 3, "update_batch": 1}, {"update_batch": 3})):
        result = weights(run(tmp_path / str(number), make_policy(**settings), steps=2))
        assert float((result - expected).abs().max()) < 2e-5, settings


def test_update_of_the_complete_rollout_at_once_or_in_epochs(tmp_path: Path) -> None:
    update = {"epochs": 2, "minibatches": 1, "optimizer": {"lr": 1e-3}}
    trainer = run(tmp_path, steps=1, update=update, objective={"ratio_level": "sequence"})
    ratios = [line["policy/ratio_std"] for line in lines(trainer)]
    assert ratios[0] == 0.0
    assert ratios[1] > 0.0


def test_gdpo_and_several_rewards(tmp_path: Path) -> None:
    values = {**BASE, "output": str(tmp_path), "steps": 1, "advantage": {"scale": "gdpo"}}
    halves = {"brightness": brightness, "darkness": lambda samples: [-value for value in brightness(samples)]}
    trainer = Trainer(make_policy(), halves, digit_prompts(), values)
    trainer.train()
    assert lines(trainer)[0]["groups/zero_std_frac"] == 1.0  # opposite rewards of equal weight cancel
    assert lines(trainer)[0]["reward/mean"] == pytest.approx(0.0, abs=1e-4)


@pytest.mark.nightly
def test_trackers_get_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    evaluation = {"prompts": {"source": "python:mmgrpo.examples.digits:digit_prompts"}, "every": 2}
    trainer = run(tmp_path, steps=2, runtime={"trackers": ["tensorboard"]}, evaluation=evaluation)
    written = min(trainer.folder.path.rglob("events.out.tfevents*"), key=lambda path: len(path.parts))
    events = EventAccumulator(str(written.parent))
    events.Reload()
    last = {event.step: event.value for event in events.Scalars("reward/mean")}
    assert last == {line["step"]: pytest.approx(line["reward/mean"], rel=1e-6) for line in lines(trainer)}
    sheets = events.Images("evaluation/images")
    assert [(sheet.step, sheet.width) for sheet in sheets] == [(0, 8 * 136 + 8), (2, 8 * 136 + 8)]
    assert sheets[0].encoded_image_string != sheets[1].encoded_image_string


def test_averaged_weights_are_saved_and_used(uninterrupted: Trainer) -> None:
    checkpoint = uninterrupted.folder.path / "checkpoints" / "step-000004"
    assert weights_folder(uninterrupted.folder.path) == checkpoint / "average"
    trained, averaged = make_policy(), make_policy()
    trained.load(checkpoint / "policy")
    averaged.load(checkpoint / "average")
    assert uninterrupted.average is not None
    with uninterrupted.average.applied():
        assert all(torch.equal(a, b) for a, b in zip(averaged.trainable, uninterrupted.policy.trainable, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(trained.trainable, uninterrupted.policy.trainable, strict=True))
    assert not torch.equal(trained.trainable[0], averaged.trainable[0])


class TestBadInput:
    def test_a_policy_without_noise(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"raise policy\.strength"):
            run(tmp_path, make_policy(strength=0.0), rollout={"prompts_per_step": 4, "group_size": 2})

    def test_group_of_one(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="group_size"):
            run(tmp_path, rollout={"group_size": 1})

    def test_window_outside_the_schedule(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="has 3 usable stochastic decisions"):
            run(tmp_path, rollout={"window": {"name": "fixed", "start": 2, "size": 2}})
        assert not list(tmp_path.iterdir())

    def test_reward_that_raises_stops_with_its_cause(self, tmp_path: Path) -> None:
        def broken(samples: Sequence[Sample]) -> list[float]:
            raise RuntimeError("scorer is down")

        with pytest.raises(RewardError, match="scorer is down"):
            Trainer(make_policy(), {"broken": broken}, digit_prompts(), {**BASE, "output": str(tmp_path)}).train()

    def test_reward_that_fails_on_some_samples_is_counted(self, tmp_path: Path) -> None:
        def patchy(samples: Sequence[Sample]) -> list[float]:
            values = brightness(samples)
            return [float("nan"), *values[1:]]

        values = {**BASE, "steps": 2, "output": str(tmp_path)}
        trainer = Trainer(make_policy(), {"patchy": patchy}, digit_prompts(), values)
        trainer.train()
        assert {line["reward/patchy/failed_frac"] for line in lines(trainer)} == {1 / 8}

    def test_reward_with_too_few_values(self, tmp_path: Path) -> None:
        with pytest.raises(RewardError, match="8"):
            Trainer(
                make_policy(), {"short": lambda samples: [1.0]}, digit_prompts(), {**BASE, "output": str(tmp_path)}
            ).train()

    def test_no_rewards_and_no_prompts(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no rewards"):
            Trainer(make_policy(), {}, digit_prompts(), BASE)
        with pytest.raises(DataError):
            Trainer(make_policy(), {"brightness": brightness}, [], BASE)

    def test_unknown_key_names_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"rollout\.group_sise.*did you mean group_size"):
            Trainer(make_policy(), {"brightness": brightness}, digit_prompts(), {"rollout": {"group_sise": 8}})

    def test_resume_without_checkpoint(self, tmp_path: Path) -> None:
        from mmgrpo.errors import CheckpointError

        with pytest.raises(CheckpointError, match="no checkpoint"):
            run(tmp_path, resume=tmp_path)


@pytest.mark.nightly
def test_interrupt_leaves_a_checkpoint_to_resume_from(tmp_path: Path, uninterrupted: Trainer) -> None:
    calls = []

    def interrupting(samples: Sequence[Sample]) -> list[float]:
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return brightness(samples)

    values = {**BASE, "output": str(tmp_path / "half")}
    trainer = Trainer(make_policy(), {"brightness": interrupting}, digit_prompts(), values)
    trainer.train()
    assert trainer.step == 2
    assert json.loads((trainer.folder.path / "run.json").read_text())["status"] == "interrupted"
    resumed = run(tmp_path / "half", resume=trainer.folder.path)
    assert torch.equal(weights(resumed), weights(uninterrupted))


def test_resolved_config_round_trips(tmp_path: Path) -> None:
    config = load_config("quickstart/digits-image", ["update.optimizer.lr=1e-5", "rollout.window=null"])
    assert isinstance(config, RunConfig)
    assert config.update.optimizer.lr == 1e-5
    assert config.rollout.window is None
