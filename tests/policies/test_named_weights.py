"""Named weights: exact copies, averages, no leftovers, saving and loading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.policy import Policy, SupportsNamedWeights
from mmgrpo.types import Prompt, Rollout
from mmgrpo.values import Value
from tests.policies import tiny_language, tiny_policies
from tests.policies.contract import gradients, move, values
from tests.policies.families import daily

SEED = 3
LORA = {"lora": {"rank": 2, "alpha": 2.0}}
DORA = {"lora": {"rank": 2, "alpha": 2.0, "dora": True}}
FULL: dict[str, Any] = {"lora": None}

MAKERS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "sd3": (lambda **s: tiny_policies.policy_of("sd3", **s), lambda: tiny_policies.prompts_of("sd3")),
    "sd15": (lambda **s: tiny_policies.policy_of("sd15", **s), lambda: tiny_policies.prompts_of("sd15")),
    "llama": (lambda **s: tiny_language.policy_of("llama", **s), lambda: tiny_language.prompts_of("llama")),
}
CASES = [(name, settings) for name in MAKERS for settings in (LORA, FULL)] + [("sd3", DORA), ("llama", DORA)]
IDS = [f"{name}-{'full' if s['lora'] is None else 'dora' if 'dora' in s['lora'] else 'lora'}" for name, s in CASES]
NIGHTLY = ("sd15-full", "sd15-lora", "sd3-dora", "sd3-full", "llama-lora")
"""What CI leaves to the night: the U-Net, and of the others what one of the two does each time, the cheaper one."""

every = pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(*case, id=logged_name, marks=[pytest.mark.nightly] if logged_name in NIGHTLY else [])
        for case, logged_name in zip(CASES, IDS, strict=True)
    ],
)


def made(name: str, settings: dict[str, Any]) -> tuple[Any, Rollout]:
    make, prompts = MAKERS[name]
    policy = make(**settings)
    return policy, policy.rollout(prompts(), group_size=2, seed=SEED)


def of_view(policy: Policy, rollout: Rollout, name: str) -> torch.Tensor:
    """(B, T) of the value, 0 where the mask is False."""
    what, view = name.split("@")
    value = Value(what, view)
    result_BT = torch.zeros(rollout.shape)
    with torch.no_grad():
        for part in policy.evaluate(rollout, values=[value]):
            assert part.rows is not None
            result_BT[part.rows[:, None], torch.tensor(list(part.columns))[None]] = part.values[value].float().cpu()
    return result_BT * rollout.mask_BT


def divergences(name: str) -> list[str]:
    return ["k1", "k2", "k3"] if name == "llama" else ["k1", "k2", "k3", "gaussian", "gaussian_no_dt", "velocity_mse"]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "settings"), daily(CASES, ("llama", FULL), ("llama", DORA)), ids=IDS)
def test_stored_weights_equal_the_current_policy(name: str, settings: dict[str, Any]) -> None:
    policy, rollout = made(name, settings)
    assert issubclass(type(policy), SupportsNamedWeights)
    first_BT = values(policy, rollout)
    move(policy.trainable)
    now_BT = values(policy, rollout)
    with policy.reference():  # a full fine-tune's is made here, of the moved weights; the adapters' is the model's own
        reference_BT = values(policy, rollout)
    assert torch.equal(reference_BT, now_BT if settings["lora"] is None else first_BT)
    for weights in ("reference", "snapshot"):
        policy.weights.store(weights)
        assert all(not of_view(policy, rollout, f"{what}@{weights}").any() for what in divergences(name))
        assert torch.equal(of_view(policy, rollout, f"logprob@{weights}"), now_BT)
    move(policy.trainable, seed=6)
    policy.weights.store("snapshot")
    assert torch.equal(of_view(policy, rollout, "logprob@reference"), now_BT)
    assert torch.equal(of_view(policy, rollout, "logprob@snapshot"), values(policy, rollout))
    assert of_view(policy, rollout, "k3@reference").any()


@pytest.mark.nightly
@every
def test_using_named_weights_restores_the_current_ones(name: str, settings: dict[str, Any]) -> None:
    policy, rollout = made(name, settings)
    move(policy.trainable)
    policy.weights.store("one")
    current_BT = values(policy, rollout)
    move(policy.trainable, seed=6)
    before, now_BT = [id(p) for p in policy.trainable], values(policy, rollout)
    everything = (tiny_language if name == "llama" else tiny_policies).parameters_of(policy)
    flags = [p.requires_grad for p in everything]
    for parameter in policy.trainable:
        parameter.grad = torch.full_like(parameter, 2.0)
    for view in ("one", "reference"):
        with policy.weights.using(view):
            assert torch.equal(values(policy, rollout), current_BT) == (view == "one")
            with policy.weights.using("one"):  # within another
                assert torch.equal(values(policy, rollout), current_BT)
    with pytest.raises(RuntimeError, match="halfway"), policy.weights.using("one"):
        raise RuntimeError("halfway")
    assert [id(p) for p in policy.trainable] == before
    assert all(bool((p.grad == 2.0).all()) for p in policy.trainable)
    assert [p.requires_grad for p in everything] == flags
    assert torch.equal(values(policy, rollout), now_BT)
    fresh, _ = made(name, settings)
    for ours, other in zip(policy.trainable, fresh.trainable, strict=True):
        other.data.copy_(ours.data)
    for result, expected in zip(gradients(policy, rollout), gradients(fresh, rollout), strict=True):
        assert torch.equal(result, expected)


@every
def test_an_average_moves_by_its_decay(name: str, settings: dict[str, Any]) -> None:
    """A weight at 0 that jumps to 1, averaged at 0.9: 0.1, 0.19, 0.271."""
    policy, _ = made(name, settings)
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter.zero_()
        policy.weights.store("average", decay=0.9)  # new: a copy of the current weights
        for parameter in policy.trainable:
            parameter.fill_(1.0)
    for expected in (0.1, 0.19, 0.271):
        policy.weights.store("average", decay=0.9)
        for average in stored_parameters(policy, "average"):
            torch.testing.assert_close(average, torch.full_like(average, expected), rtol=1e-6, atol=0)
    policy.weights.store("average")
    assert all(bool((parameter == 1.0).all()) for parameter in stored_parameters(policy, "average"))


def stored_parameters(policy: Any, name: str) -> list[torch.Tensor]:
    weights = policy.weights
    if weights.lora is None:
        return [p for module in weights._store.of(name).values() for p in module.parameters()]
    key = weights._store.key(name)
    return [p for module in weights.modules.values() for path, p in module.named_parameters() if key in path]


@pytest.mark.nightly
@pytest.mark.each_value
@pytest.mark.parametrize("settings", [LORA, DORA], ids=["lora", "dora"])
@pytest.mark.parametrize("name", ["sd3", "llama"])
def test_the_average_of_a_reference_without_adapters_begins_at_none(name: str, settings: dict[str, Any]) -> None:
    policy, rollout = made(name, settings)
    move(policy.trainable)
    policy.weights.store("reference", decay=1.0)
    torch.testing.assert_close(
        of_view(policy, rollout, "logprob@reference"), rollout.old_logprob_BT * rollout.mask_BT, rtol=1e-5, atol=1e-5
    )
    policy.weights.store("reference", decay=0.5)
    assert of_view(policy, rollout, "k2@reference").any()


@pytest.mark.nightly
@every
def test_kept_weights_are_saved_and_loaded(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    policy, rollout = made(name, settings)
    other, _ = made(name, settings)
    stored_BT = {}
    for seed, view in enumerate(("reference", "ema_2", "ema")):
        move(policy.trainable, seed=seed)
        policy.weights.store(view)
        stored_BT[view] = values(policy, rollout)
    move(policy.trainable, seed=9)
    policy.save(tmp_path)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["ema", "ema_2", "reference"]
    other.load(tmp_path)
    assert torch.equal(values(other, rollout), values(policy, rollout))
    for view, expected_BT in stored_BT.items():
        assert torch.equal(of_view(other, rollout, f"logprob@{view}"), expected_BT)
        for stored, loaded in zip(stored_parameters(policy, view), stored_parameters(other, view), strict=True):
            assert torch.equal(stored, loaded)
            assert not loaded.requires_grad
    assert len(other.trainable) == len(policy.trainable)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["sd3", "llama"])
def test_checkpoints_without_named_weights_load(name: str, tmp_path: Path) -> None:
    policy, rollout = made(name, FULL)
    with policy.reference():
        pass
    move(policy.trainable)
    policy.save(tmp_path)
    (tmp_path / "kept" / "reference").rename(tmp_path / "reference")
    (tmp_path / "kept").rmdir()
    other, _ = made(name, FULL)
    move(other.trainable, seed=7)
    other.load(tmp_path)
    with other.reference():
        assert torch.equal(values(other, rollout), values(policy, rollout)) is False
        torch.testing.assert_close(values(other, rollout), rollout.old_logprob_BT * rollout.mask_BT)


@pytest.mark.parametrize("name", ["sd3", "llama"])
def test_unknown_names_of_weights_raise(name: str) -> None:
    policy, rollout = made(name, LORA)
    refused = pytest.raises(ConfigError, match="no weights are stored under 'teacher'; stored are reference")
    with refused, policy.weights.using("teacher"):
        pass
    with pytest.raises(ConfigError, match="no value k3@teacher"):
        next(policy.evaluate(rollout, values=[Value("k3", "teacher")]))
    for wrong, why in (("old", "the policy that sampled"), ("a/b", "have letters"), ("default", "do not contain")):
        with pytest.raises(ConfigError, match=why):
            policy.weights.store(wrong)
    with pytest.raises(ConfigError, match=r"decay of stored weights must be in \[0, 1\], got 1.5"):
        policy.weights.store("average", decay=1.5)


def test_prompts_may_change_under_the_reference() -> None:
    """Ways through a model are compared by their gradients, which the reference of adapters has none of."""
    policy = tiny_language.policy_of("llama", lora=LORA["lora"])
    rollout = policy.rollout([Prompt("what")], group_size=2, seed=SEED)
    longer = policy.override_prompts(rollout, [Prompt("say the number that you see")] * 2)
    move(policy.trainable)
    with policy.reference():
        reference_BT = values(policy, longer)
    assert all(parameter.requires_grad for parameter in policy.trainable)
    now_BT = values(policy, longer)
    assert not torch.equal(reference_BT, now_BT)
    fresh = tiny_language.policy_of("llama", lora=LORA["lora"])
    assert torch.equal(values(fresh, longer), reference_BT)
