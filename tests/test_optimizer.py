"""The gradient in an update: none is left from before, and a non-finite one changes no weight."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from mmgrpo.examples.digits import digit_prompts
from torch import Tensor

from mmgrpo import Trainer
from mmgrpo.algorithm import Algorithm, optimizer_factory
from mmgrpo.config import OptimizerConfig
from mmgrpo.config.loading import validated
from mmgrpo.distributed.job import Job
from mmgrpo.distributed.parameter_shards import ParameterShard
from mmgrpo.errors import ConfigError, NonFiniteError
from mmgrpo.runs.checkpoint import weights_folder
from mmgrpo.system.embedding_weights import mark_embeddings
from mmgrpo.system.extras import is_installed
from mmgrpo.training.build import build_optimizer
from mmgrpo.types import Sample
from tests.test_trainer import BASE, brightness, lines, make_policy, weights

needs_bitsandbytes = pytest.mark.skipif(
    not is_installed("bitsandbytes"), reason="the extra quantization is not installed"
)
WARMUP = {"examples": {"name": "mislabeled_digits", "fraction": 0.5}, "steps": 2, "batch_size": 4}
WARMED = {"optimizer": {"lr": 1e-3}, "warmup": WARMUP}
ROLLOUT = {"prompts_per_step": 2, "group_size": 2, "window": {"name": "random_subset", "size": 1}}


def trainer_of(folder: Path, policy: Any = None, reward: Any = brightness, **changes: Any) -> Trainer:
    values = {**BASE, "output": str(folder), "rollout": ROLLOUT, "update": {"optimizer": {"lr": 1e-3}}, **changes}
    return Trainer(policy or make_policy(), {"reward": reward}, digit_prompts(), values)


def huge_from_call(first: int) -> Any:
    """Rewards so large, from a call on, that a gradient of theirs overflows."""
    calls = []

    def huge(samples: Sequence[Sample]) -> list[float]:
        calls.append(1)
        return [(3e38 if len(calls) >= first else 1.0) * (1 if sample.member else -1) for sample in samples]

    return huge


@pytest.mark.nightly
def test_the_first_update_is_that_of_a_run_that_starts_from_the_warmed_weights(tmp_path: Path) -> None:
    uninterrupted = trainer_of(tmp_path / "whole", steps=1, update=WARMED)
    uninterrupted.train()
    warmed = trainer_of(tmp_path / "warmed", steps=0, update=WARMED)
    warmed.train()
    policy = make_policy()
    policy.load(weights_folder(warmed.folder.path))
    after = trainer_of(tmp_path / "after", policy, steps=1)
    after.train()
    assert lines(uninterrupted)[0]["optimizer/grad_norm"] == lines(after)[0]["optimizer/grad_norm"]
    assert torch.equal(weights(uninterrupted), weights(after))


def test_a_gradient_from_before_is_no_part_of_an_update(tmp_path: Path) -> None:
    expected = trainer_of(tmp_path / "a", steps=1)
    expected.train()
    policy = make_policy()
    for parameter in policy.trainable:
        parameter.grad = torch.ones_like(parameter)
    result = trainer_of(tmp_path / "b", policy, steps=1)
    result.train()
    assert torch.equal(weights(result), weights(expected))


@pytest.mark.nightly
def test_a_gradient_that_is_not_finite_is_skipped_counted_and_named(tmp_path: Path) -> None:
    snapshots: list[Tensor] = []
    huge = huge_from_call(2)

    def watched(samples: Sequence[Sample]) -> list[float]:
        snapshots.append(torch.cat([p.detach().flatten().clone() for p in trainer.policy.trainable]))
        return huge(samples)

    trainer = trainer_of(tmp_path, reward=watched, steps=3, advantage={"scale": "none"})
    trainer.train()
    assert [line["optimizer/skipped"] for line in lines(trainer)] == [0.0, 1.0, 1.0]
    assert not torch.equal(snapshots[0], snapshots[1])
    assert torch.equal(snapshots[1], snapshots[2])
    assert torch.equal(snapshots[1], weights(trainer))
    first, second = lines(trainer, "skipped.jsonl")
    assert (first["step"], second["step"]) == (2, 3)
    assert [(sample["group"], sample["member"]) for sample in first["samples"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert first["samples"][0]["advantage"] == pytest.approx(-3e38, rel=1e-6)
    assert first["samples"][0]["prompt"].startswith("a ")
    state = torch.load(weights_folder(tmp_path / "run").parent / "training.pt", weights_only=True)
    assert state["recently_skipped"] == [False, True, True]


def test_only_the_samples_at_fault_are_named(tmp_path: Path) -> None:
    def single_group(samples: Sequence[Sample]) -> list[float]:
        return [(3e38 if sample.group == 1 else 1.0) * (1 if sample.member else -1) for sample in samples]

    trainer = trainer_of(tmp_path, reward=single_group, steps=1, advantage={"scale": "none"})
    trainer.train()
    (line,) = lines(trainer, "skipped.jsonl")
    assert [(sample["group"], sample["member"]) for sample in line["samples"]] == [(1, 0), (1, 1)]
    folder = trainer.folder.path / "samples" / "skipped-000001-0"
    rows = [json.loads(row) for row in (folder / "samples.jsonl").read_text().splitlines()]
    assert [(row["group"], row["member"]) for row in rows] == [(1, 0), (1, 1)]
    assert [row["advantage"] for row in rows] == [sample["advantage"] for sample in line["samples"]]
    assert len(list(folder.glob("*.png"))) == 2


@pytest.mark.nightly
def test_a_run_that_mostly_skips_ends_with_its_good_weights(tmp_path: Path) -> None:
    trainer = trainer_of(
        tmp_path, reward=huge_from_call(2), steps=20, advantage={"scale": "none"}, checkpoint={"every": 1}
    )
    with pytest.raises(NonFiniteError, match=r"6 of the last 7 updates .*, more than 5 of 20"):
        trainer.train()
    assert len(lines(trainer)) == 7
    assert json.loads((trainer.folder.path / "run.json").read_text())["status"] == "failed"
    saved = make_policy()
    saved.load(weights_folder(trainer.folder.path))
    assert torch.equal(torch.cat([p.detach().flatten() for p in saved.trainable]), weights(trainer))
    assert all(bool(p.isfinite().all()) for p in saved.trainable)


@pytest.mark.nightly
def test_weights_that_are_not_finite_are_not_saved_over_good_ones(tmp_path: Path) -> None:
    def poisoning(samples: Sequence[Sample]) -> list[float]:
        if trainer.step == 1:
            with torch.no_grad():
                trainer.parameters[-1].fill_(float("inf"))
        return brightness(samples)

    trainer = trainer_of(tmp_path, reward=poisoning, steps=2, checkpoint={"every": 1, "keep": 1})
    with pytest.raises(NonFiniteError, match="not saved"):
        trainer.train()
    assert [path.name for path in (trainer.folder.path / "checkpoints").iterdir()] == ["step-000001"]


def test_the_warm_up_skips_them_too(tmp_path: Path) -> None:
    policy = make_policy()
    with torch.no_grad():
        policy.trainable[-1].fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="6 of the last 6"):
        trainer_of(tmp_path, policy, update={**WARMED, "warmup": {**WARMUP, "steps": 10}}).train()


def gradient_descent(*, momentum: float = 0.0) -> Any:
    return lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=momentum)


def no_optimizer(*, momentum: float = 0.0) -> Any:
    return momentum


def test_an_optimizer_of_another_module_moves_along_the_gradient(tmp_path: Path) -> None:
    optimizer = {"name": "python:tests.test_optimizer:gradient_descent", "lr": 0.5, "max_grad_norm": None}
    trainer = trainer_of(tmp_path, steps=1, update={"optimizer": optimizer})
    before = weights(trainer).clone()
    trainer.train()
    moved = float((weights(trainer) - before).norm())
    assert moved == pytest.approx(0.5 * lines(trainer)[0]["optimizer/grad_norm"], rel=1e-4)
    assert moved > 0


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"learning_rate": 1.0}, "update.optimizer: adamw takes no 'learning_rate'; .* lr, "),
        ({"betas": [0.9]}, "betas of adamw must be two numbers"),
        ({"betas": [0.9, 1.0]}, "betas of adamw must be two numbers"),
        ({"eps": 0.0}, "eps of adamw must be above 0"),
        ({"weight_decay": -0.1}, "weight_decay of adamw must be at least 0"),
        pytest.param({"name": "adamw_8bit", "eps": 0.0}, "eps of adamw_8bit must be above 0", marks=needs_bitsandbytes),
        ({"name": "adamw_8bit", "momentum": 0.9}, "adamw_8bit takes no 'momentum'"),
        ({"name": "adafactor", "beta1": 1.0}, "beta1 of adafactor must be from 0 to below 1"),
        ({"name": "adafactor", "decay_rate": 0.8}, "decay_rate below 0"),
        ({"name": "muon", "momentum": 1.0}, "muon needs momentum from 0 to below 1"),
        ({"name": "adam"}, "unknown name 'adam'; did you mean adamw"),
        ({"name": "python:tests.test_optimizer:gradient_descent", "betas": [0.9, 0.9]}, "takes no 'betas'"),
        ({"name": "python:tests.test_optimizer:no_optimizer"}, "must return a function of .*, got 0.0"),
    ],
)
def test_wrong_settings_of_an_optimizer_raise_before_the_run(optimizer: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Algorithm.of(validated({"update": {"optimizer": optimizer}}))


def test_a_critic_follows_the_optimizer_of_the_policy() -> None:
    other = "python:tests.test_optimizer:gradient_descent"
    config = validated(
        {"update": {"optimizer": {"name": other, "lr": 0.5, "momentum": 0.9}}, "advantage": {"critic": {}}}
    )
    assert config.advantage.critic is not None
    followed = config.advantage.critic.optimizer.over(config.update.optimizer)
    assert (followed.name, followed.lr, followed.settings) == (other, 1e-5, {"momentum": 0.9})
    separate = OptimizerConfig.model_validate({"name": "adamw"}).over(config.update.optimizer)
    assert (separate.name, separate.lr, separate.settings) == ("adamw", 0.5, {})


OPTIMIZERS = {
    "adamw_8bit": {"name": "adamw_8bit", "lr": 1e-3, "min_8bit_size": 16},
    "adafactor": {"name": "adafactor", "lr": 1e-3, "beta1": 0.9},
    "muon": {"name": "muon", "lr": 1e-3, "weight_decay": 0.1},
}


NAMES = [pytest.param(name, marks=needs_bitsandbytes if name == "adamw_8bit" else ()) for name in OPTIMIZERS]


@pytest.mark.first_case
@pytest.mark.parametrize("name", NAMES)
def test_optimizer_resumes_bitwise(name: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "steps": 3,
        "update": {"optimizer": OPTIMIZERS[name]},
        "checkpoint": {"every": 1, "keep": None},
    }
    complete = trainer_of(tmp_path / "complete", make_policy(lora=None), **changes)
    before = weights(complete).clone()
    complete.train()
    assert not torch.equal(weights(complete), before)
    values = {**BASE, "rollout": ROLLOUT, **changes, "output": str(tmp_path / "resumed")}
    checkpoint = complete.folder.path / "checkpoints" / "step-000002"
    resumed = Trainer(make_policy(lora=None), {"reward": brightness}, digit_prompts(), values, resume=checkpoint)
    resumed.train()
    assert torch.equal(weights(resumed), weights(complete))
    assert not torch.equal(weights(resumed), before)


def stepped(settings: dict[str, Any], parameters: Sequence[Tensor], num_steps: int = 2) -> Any:
    optimizer = optimizer_factory(OptimizerConfig.model_validate(settings))(parameters, 0.01)
    for step in range(num_steps):
        for parameter in parameters:
            parameter.grad = torch.linspace(-1, 1 + step, parameter.numel()).reshape(parameter.shape)
        optimizer.step()
    return optimizer


def test_muon_leaves_vectors_convolutions_and_embeddings_to_adamw() -> None:
    torch.manual_seed(0)
    embedding, kernel = torch.nn.Embedding(8, 4), torch.nn.Conv2d(2, 3, 2, bias=False)
    shapes = [(6, 4), (5,)]
    parameters = [embedding.weight, kernel.weight, *(torch.nn.Parameter(torch.randn(shape)) for shape in shapes)]
    mark_embeddings([embedding])
    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    stepped({"name": "muon"}, parameters)
    stepped({"name": "adamw"}, [copies[0], copies[1], copies[3]])
    expected = torch.optim.Muon([copies[2]], lr=0.01, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for step in range(2):
        copies[2].grad = torch.linspace(-1, 1 + step, 24).reshape(6, 4)
        expected.step()
    assert all(torch.equal(result, copied) for result, copied in zip(parameters, copies, strict=True))


def test_adafactor_is_that_of_transformers_at_the_rate_of_the_run() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(4))]
    optimizer = stepped({"name": "adafactor"}, parameters, num_steps=1)
    # the first decay is 1 - 1^-0.8 = 0: v = g^2, for a vector update = g / |g|, of a root mean square of 1, times lr
    gradient = torch.linspace(-1, 1, 4)
    assert torch.allclose(parameters[1], 1 - 0.01 * gradient.sign(), atol=1e-6)
    assert set(optimizer.state[parameters[0]]) == {"step", "RMS", "exp_avg_sq_row", "exp_avg_sq_col"}


@pytest.mark.parametrize("name", NAMES)
def test_state_has_the_stated_bytes(name: str) -> None:
    settings = OptimizerConfig.model_validate({"name": name})
    parameters = [torch.nn.Parameter(torch.randn(64, 128)), torch.nn.Parameter(torch.randn(5))]
    factory = optimizer_factory(settings)
    optimizer = stepped({"name": name}, parameters)
    state = optimizer.state[parameters[0]]
    num_bytes = sum(value.nbytes for value in state.values() if isinstance(value, Tensor) and value.ndim)
    assert factory.state_bytes((64, 128)) == num_bytes  # pyrefly: ignore[missing-attribute]
    assert num_bytes < 0.6 * 8 * 64 * 128


def test_optimizers_of_complete_weights_raise_for_shards() -> None:
    parameter, job = ParameterShard(torch.zeros(4)), Job(Accelerator(cpu=True))
    for name in OPTIMIZERS if is_installed("bitsandbytes") else ("adafactor", "muon"):
        with pytest.raises(ConfigError, match=f"update.optimizer {name} needs complete weights"):
            build_optimizer([parameter], OptimizerConfig(name=name), num_updates=1, job=job)
