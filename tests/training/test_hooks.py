"""Hooks around an optimizer step, and references that move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import validated
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.training.build import optimizer_of
from mmgrpo.training.optimizer import GuardedOptimizer
from mmgrpo.training.update_hooks import Mask, SlowFast
from tests.policies.families import daily
from tests.test_trainer import BASE, lines, make_policy, run, weights

LORA = {"rank": 2, "alpha": 4, "targets": ["to_q", "to_v"]}


def optimizer(parameters: list[nn.Parameter], *hooks: dict[str, Any], **settings: Any) -> GuardedOptimizer:
    config: RunConfig = validated(
        {"update": {"optimizer": {"lr": 0.1, "max_grad_norm": None, **settings}, "hooks": hooks}}
    )
    return optimizer_of(Algorithm.of(config), parameters, job=Job(Accelerator(cpu=True)))


def trained(num_updates: int, *hooks: dict[str, Any], **settings: Any) -> list[list[float]]:
    """Four weights after each update, with the gradient (1, 2, -1, -2) times the number of the update."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    trainer = optimizer([weight], *hooks, **settings)
    result = []
    for number in range(num_updates):
        trainer.clear()
        weight.grad = (number + 1) * torch.tensor([1.0, 2.0, -1.0, -2.0])
        trainer.apply()
        result.append(weight.tolist())
    return result


def test_hooks_without_effect_are_plain_updates() -> None:
    plain = trained(5, weight_decay=0.1)
    assert trained(5, {"name": "slow_fast", "inner": 2, "alpha": 1.0}, weight_decay=0.1) == plain
    assert trained(5, {"name": "mask", "share": 1.0}, weight_decay=0.1) == plain


def updated(weight: nn.Parameter, hook: SlowFast, num: int, *, factor: float = 1.0) -> list[list[float]]:
    """The values of the weight after each update, which multiplies it by ``factor`` and adds 1."""
    values = []
    for _ in range(num):
        hook.before()
        with torch.no_grad():
            weight.mul_(factor).add_(1.0)
        hook.after()
        values.append(weight.tolist())
    return [list(column) for column in zip(*values, strict=True)]


def test_slow_fast_goes_back_along_its_way() -> None:
    weight = nn.Parameter(torch.tensor([0.0, 8.0]))
    # 0 -> 1 -> 2, back to 0.25 * 2 = 0.5; the slow one -> 1.5; the next round from there: 2.5 -> 3.5, back to 2; 3
    assert updated(weight, SlowFast([weight], inner=2, alpha=0.25), 6) == [
        [1.0, 0.5, 1.5, 2.5, 2.0, 3.0],
        [9.0, 8.5, 9.5, 10.5, 10.0, 11.0],
    ]


def test_slow_fast_of_two_slow_updates() -> None:
    weight = nn.Parameter(torch.zeros(1))
    # 0 -> 1 -> 2, back to 1; two slow ones -> 3; from there 4 -> 5, back to 4
    assert updated(weight, SlowFast([weight], inner=2, alpha=0.5, slow=2), 6) == [[1.0, 1.0, 2.0, 3.0, 4.0, 4.0]]


def test_slow_fast_beyond_its_way_and_without_slow_updates() -> None:
    weight = nn.Parameter(torch.tensor([0.0, 8.0]))
    # 0 -> 1 -> 1.5, on to 0 + 2 * 1.5 = 3; the next round from there: 2.5 -> 2.25, on to 3 - 2 * 0.75 = 1.5; 1.75
    # 8 -> 5 -> 3.5, on to 8 - 2 * 4.5 = -1; 0.5 -> 1.25, on to -1 + 2 * 2.25 = 3.5; 2.75
    assert updated(weight, SlowFast([weight], inner=2, alpha=2.0, slow=0), 5, factor=0.5) == [
        [1.0, 3.0, 2.5, 1.5, 1.75],
        [5.0, -1.0, 0.5, 3.5, 2.75],
    ]


def test_slow_fast_resumes_within_a_round() -> None:
    weight = nn.Parameter(torch.zeros(2))
    hook = SlowFast([weight], inner=3, alpha=0.5)
    hook.before()
    with torch.no_grad():
        weight.add_(1.0)
    hook.after()
    again = SlowFast([weight], inner=3, alpha=0.5)
    again.load_state_dict(hook.state_dict())
    for _ in range(2):
        again.before()
        with torch.no_grad():
            weight.add_(1.0)
        again.after()
    assert weight.tolist() == [1.5, 1.5]


def test_a_mask_keeps_the_others_bitwise() -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(50, 40)), nn.Parameter(torch.randn(300))]
    before = [parameter.detach().clone() for parameter in parameters]
    trainer = optimizer(parameters, {"name": "mask", "share": 0.01, "seed": 3}, weight_decay=0.1)
    for _ in range(3):
        trainer.clear()
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape)
        trainer.apply()
    moved = [(now != then) for now, then in zip(parameters, before, strict=True)]
    assert 10 <= int(moved[0].sum()) <= 32  # 20 of 2,000 are expected
    again = Mask(parameters, share=0.01, seed=3)
    assert [torch.equal(mask, other) for mask, other in zip(moved, again._trained, strict=True)] == [True, True]


def test_wrong_numbers() -> None:
    weight = [nn.Parameter(torch.zeros(1))]
    for hook, message in (
        ({"name": "slow_fast", "inner": 0, "alpha": 0.5}, "inner >= 1"),
        ({"name": "slow_fast", "inner": 1, "alpha": -0.5}, "alpha >= 0"),
        ({"name": "mask", "share": 0.0}, "0 < share"),
        ({"name": "mask", "part": 0.1}, "takes no 'part'"),
        ({"name": "maks"}, "did you mean mask"),
    ):
        with pytest.raises(ConfigError, match=message):
            optimizer(weight, hook)


@pytest.mark.nightly
def test_hooks_resume(tmp_path: Path) -> None:
    hooks = [{"name": "slow_fast", "inner": 2, "alpha": 0.5}, {"name": "mask", "share": 0.5}]
    update = {**BASE["update"], "hooks": hooks}
    values: dict[str, Any] = {"steps": 3, "update": update, "checkpoint": {"every": 2}}
    uninterrupted = run(tmp_path / "whole", **values)  # a round of three ends within a step
    resumed = run(tmp_path / "whole", resume=uninterrupted.folder.path / "checkpoints" / "step-000002", **values)
    assert torch.equal(weights(resumed), weights(uninterrupted))
    assert not torch.equal(weights(uninterrupted), weights(run(tmp_path / "plain", steps=3)))


@pytest.mark.nightly
@pytest.mark.parametrize("settings", daily([{}, {"lora": LORA}], {"lora": LORA}), ids=["full", "lora"])
def test_the_divergence_is_none_right_after_a_reset(settings: dict[str, Any], tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "update": {**BASE["update"], "reference": {"reset_every": 2, "reset_optimizer": True}},
        "checkpoint": {"every": 1},
    }
    uninterrupted = run(tmp_path / "whole", make_policy(**settings), **values)
    kl = {(row["step"], row["update"]): row["policy/kl_mean"] for row in lines(uninterrupted)}
    assert kl[1, 0] == kl[3, 0] == 0.0
    assert min(kl[2, 0], kl[2, 1], kl[4, 0], kl[4, 1]) > 0.0
    result = {}
    for step in (2, 3):  # right after a reset, and one step on: the optimizer has restarted
        checkpoint = uninterrupted.folder.path / "checkpoints" / f"step-00000{step}"
        state = torch.load(checkpoint / "training.pt", weights_only=True)
        result[step] = [int(parameter_state["step"]) for parameter_state in state["optimizer"]["state"].values()]
    assert set(result[2]) == set()
    assert set(result[3]) == {2}
    resumed = run(
        tmp_path / "whole",
        make_policy(**settings),
        resume=uninterrupted.folder.path / "checkpoints" / "step-000003",
        **values,
    )
    assert torch.equal(weights(resumed), weights(uninterrupted))


@pytest.mark.nightly
def test_a_reference_that_follows(tmp_path: Path) -> None:
    policy = make_policy()
    start = torch.cat([parameter.detach().flatten() for parameter in policy.trainable])
    trainer = run(tmp_path, policy, steps=1, update={"optimizer": {"lr": 1e-3}, "reference": {"ema": {"decay": 0.9}}})
    now = weights(trainer)
    with policy.weights.using("reference"):
        pass
    copies = policy.weights._store.of("reference")  # pyrefly: ignore[missing-attribute]
    reference = torch.cat([parameter.flatten() for module in copies.values() for parameter in module.parameters()])
    assert torch.allclose(reference, 0.9 * start + 0.1 * now, atol=1e-7)
    assert float((now - start).abs().max()) > 1e-4


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "leave the section out"),
        ({"ema": {"decay": 0.9}, "reset_optimizer": True}, "set reset_every"),
        ({"reset_every": 0}, "greater than or equal to 1"),
    ],
)
def test_invalid_sections_raise(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validated({"update": {"reference": section}})
