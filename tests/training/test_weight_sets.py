"""Further weights of a policy: trained as the policy would be, without an effect on it, unless a loss reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.examples.digits import digit_prompts
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo import MixedTrainer, Trainer
from mmgrpo.config import RunConfig
from mmgrpo.config.sections import unknown_keys
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.policy import SupportsNamedWeights
from mmgrpo.types import OffPolicySample, Plan, Prompt, Sample
from tests import test_trainer
from tests.policies.letters import letters
from tests.policies.tiny_language import measured_policy_of as language_policy_of
from tests.policies.tiny_language import prompts_of
from tests.policies.tiny_policies import measured_policy_of
from tests.test_trainer import brightness, lines, make_policy, weights

LORA = {"rank": 2, "alpha": 4.0}
ENTROPY = [{"name": "negative_logprob"}]
OTHER = {"name": "adamw", "lr": 3e-3}
KL = {"name": "divergence", "form": "k2", "view": "copy"}


def run(output: Path, *, lora: bool = True, **changes: Any) -> Trainer:
    torch.manual_seed(0)  # of fresh adapters
    policy = make_policy(**({"lora": LORA} if lora else {}))
    values: dict[str, Any] = {"steps": 1, "update": {}, "objective": {}, **changes}
    return test_trainer.run(output, policy, **values)


def with_set(weight: float = 0.0, **section: Any) -> dict[str, Any]:
    """A set named ``copy``, which the policy's loss reads with a weight."""
    return {
        "objective": {"terms": [{**KL, "weight": weight}]},
        "update": {"weight_sets": {"copy": {"terms": ENTROPY, **section}}},
    }


def weights_of(trainer: Trainer, name: str) -> Tensor:
    policy = trainer.policy
    assert isinstance(policy, SupportsNamedWeights)
    with policy.weights.training(name):
        return weights(trainer)


def mixed(output: Path, *, owner: dict[str, Any], guest: dict[str, Any]) -> MixedTrainer:
    """Two tasks that train one policy."""
    rollout = {"prompts_per_step": 2, "group_size": 2}
    tasks = {
        "one": {"rollout": rollout, **owner},
        "other": {"rollout": {**rollout, "task": {"policy_of": "one"}}, **guest},
    }
    values = {"about": {"name": "two"}, "output": str(output), "steps": 1, "tasks": tasks}
    rewards, prompts = {"brightness": brightness}, digit_prompts()
    return MixedTrainer(
        values,
        policies={"one": make_policy(lora=LORA)},
        rewards={"one": rewards, "other": rewards},
        prompts={"one": prompts, "other": prompts},
    )


def alone(output: Path, *, lora: bool = True, epochs: int = 1, **optimizer: Any) -> Trainer:
    """A run whose policy is trained by the loss of the set."""
    update = {"epochs": epochs, "optimizer": optimizer or {"lr": 1e-4}}
    return run(output, lora=lora, objective={"surrogate": None, "terms": ENTROPY}, update=update)


@pytest.mark.parametrize("lora", [True, False], ids=["adapters", "all weights"])
def test_set_is_trained_as_a_policy_and_leaves_the_policy_alone(lora: bool, tmp_path: Path) -> None:
    trainer = run(tmp_path / "set", lora=lora, **with_set(optimizer=OTHER))
    assert torch.equal(weights(trainer), weights(run(tmp_path / "none", lora=lora)))
    assert torch.equal(weights_of(trainer, "copy"), weights(alone(tmp_path / "alone", lora=lora, **OTHER)))
    assert lines(trainer)[-1]["weight_sets/copy/lr"] == 3e-3


def test_updates_of_a_set_are_those_of_as_many_epochs(tmp_path: Path) -> None:
    trainer = run(tmp_path / "set", **with_set(updates=2))
    assert torch.equal(weights_of(trainer, "copy"), weights(alone(tmp_path / "alone", epochs=2)))


def test_loss_of_the_policy_reads_the_set(tmp_path: Path) -> None:
    """k2 = (logprob - logprob@copy)^2 / 2 is 0 at a set that has not moved: its learning rate is next to nothing."""
    read, still = (run(tmp_path / str(lr), **with_set(1.0, optimizer={"lr": lr})) for lr in (1e-2, 1e-12))
    assert lines(still)[0]["policy/loss/k2_copy"] == pytest.approx(0.0, abs=1e-9)
    assert lines(read)[0]["policy/loss/k2_copy"] > 1e-6
    assert not torch.equal(weights(read), weights(still))


def test_set_is_the_reference_before_the_first_step(tmp_path: Path) -> None:
    """Of a policy that starts from other adapters, and that was warmed up: the model without adapters."""
    policy = make_policy(lora=LORA)
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter += 0.1
    warmup = {"examples": {"name": "mislabeled_digits", "fraction": 0.45}, "steps": 1, "batch_size": 4}
    changes = with_set(optimizer={"lr": 1e-12}, average={"name": "constant", "value": 0.5})
    changes["objective"]["terms"] += [{**KL, "form": form, "view": "copy_average"} for form in ("k1",)]
    changes["update"]["warmup"] = warmup
    test_trainer.run(tmp_path, policy, steps=1, **changes)
    for name in ("copy", "copy_average"):
        with policy.weights.training(name):
            assert all(float(p.abs().max()) < 1e-10 for p in policy.trainable[1::2])  # the second factors


def test_sets_of_a_language_policy_train(tmp_path: Path) -> None:
    def length(samples: Any) -> list[float]:
        return [float(len(sample.text)) for sample in samples]

    def trained(output: Path, **changes: Any) -> Trainer:
        rollout = {"prompts_per_step": 2, "group_size": 2}
        values = {"output": str(output), "steps": 2, "rollout": rollout, "runtime": {"device": "cpu"}, **changes}
        trainer = Trainer(language_policy_of("llama"), {"length": length}, prompts_of("llama")[:2], values)
        trainer.train()
        return trainer

    with_copy, without = trained(tmp_path / "set", **with_set()), trained(tmp_path / "none")
    assert isinstance(with_copy.policy, LanguagePolicy)
    assert torch.equal(weights(with_copy), weights(without))
    assert [line["weight_sets/copy/grad_norm"] > 0 for line in lines(with_copy)] == [True, True]


def test_without_sets_no_metric_is_added(tmp_path: Path) -> None:
    assert not [key for key in lines(run(tmp_path))[0] if "weight_sets" in key]


def test_unknown_keys_of_a_set_are_found() -> None:
    sections = {"copy": {"terms": ENTROPY, "optimiser": {}}, "other": {"optimizer": {"rate": 1.0, "lr": 1.0}}}
    assert list(unknown_keys(RunConfig, {"update": {"weight_sets": sections}})) == ["update.weight_sets.copy.optimiser"]


SETS: list[tuple[dict[str, Any], str]] = [
    ({"copy": {"terms": []}}, "at least 1"),
    ({"copy": {"terms": [{"name": "negative_logprop"}]}}, "update.weight_sets.copy.terms.*negative_logprob"),
    ({"copy": {"terms": ENTROPY, "average": {"name": "constant", "value": 1.5}}}, "copy.average: .* from 0 to 1"),
    ({"average": {"terms": ENTROPY}}, "names of other weights of the run, got average"),
    (
        {"copy": {"terms": ENTROPY, "average": "constant"}, "copy_average": {"terms": ENTROPY}},
        "names of other weights of the run, got copy_average",
    ),
    ({"copy": {"terms": ENTROPY}, "spare": {"terms": ENTROPY}}, "no other loss reads the weights 'spare'"),
    ({"copy": {"terms": ENTROPY, "average": "constant"}}, "no other loss reads the weights 'copy_average'"),
    ({"copy": {"terms": [{**KL, "view": "copied"}]}}, "terms reads copied; .* copy, old, reference"),
    ({"copy": {"terms": [{"name": "negative_logprob", "view": "copy", "grad": True}]}}, "no gradient goes through"),
    ({"copy": {"terms": ENTROPY, "reading": {"low": 0.1}}}, "reading is for rollout.training_states: renoised"),
    ({"copy": {"terms": ENTROPY, "optimizer": {"name": "adam"}}}, "update.weight_sets.copy.optimizer"),
    ({"co py": {"terms": ENTROPY}}, "names of stored weights have letters"),
]


@pytest.mark.parametrize(("sets", "message"), SETS)
def test_sets_that_cannot_be_trained_are_errors(sets: dict[str, Any], message: str, tmp_path: Path) -> None:
    terms = [{**KL, "view": next(iter(sets)), "weight": 0.0}]
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, objective={"terms": terms}, update={"weight_sets": sets})


def test_policies_without_named_weights_are_errors(tmp_path: Path) -> None:
    values = {"output": str(tmp_path), "steps": 1, "runtime": {"device": "cpu"}, **with_set()}
    with pytest.raises(ConfigError, match=r"update\.weight_sets: LetterPolicy keeps no weights under names"):
        Trainer(letters(), {"brightness": brightness}, [Prompt("a")], values)


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ({"states": "steps"}, "set levels: uniform, and leave out num_levels"),
        ({"states": "steps", "levels": "uniform", "num_levels": 4}, "leave out num_levels"),
        ({"margin": 0.1}, "margin is for states of the sampler"),
    ],
)
def test_readings_of_steps_are_checked(reading: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_policy(reading=reading)


def test_steps_are_not_approximated() -> None:
    reading = {"states": "steps", "levels": "uniform"}
    with pytest.raises(ConfigError, match="trains on the steps of the sampler, which cache and step_quantization"):
        measured_policy_of("sd3", reading=reading, cache={"name": "FirstBlockCache", "threshold": 0.1})


def test_samples_of_the_data_have_no_steps() -> None:
    policy = measured_policy_of("sd3", reading={"states": "boundaries", "levels": "uniform"})
    prompt = digit_prompts()[0]
    sample = Sample(prompt, 0, 0, latent=torch.zeros(1, 4, 8, 8))
    with pytest.raises(DataError, match=r"has no recorded steps.*use states: sample"):
        policy.read([OffPolicySample(sample=sample)], seed=0, plan=Plan())


def test_policy_of_several_tasks_has_no_sets(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"update.weight_sets: a policy that several tasks train has no further"):
        mixed(tmp_path, owner=with_set(), guest={"objective": with_set()["objective"]})
