"""Memory that runs out in an update: its gradient is accumulated again in slices of half as many rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo import Trainer
from mmgrpo.errors import OutOfMemoryError
from mmgrpo.explain.memory_meter import MemoryMeter
from mmgrpo.policy import Policy
from mmgrpo.training.streaming import slice_limit
from tests.policies import tiny_language, tiny_policies
from tests.test_trainer_language import vowels


class LimitedMemory(MemoryMeter):
    """An allocator with a limit: an operator whose outputs exceed it raises torch's error."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.limit = limit

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = super().__torch_dispatch__(func, types, args, kwargs)
        if self.limit is not None and self.live > self.limit:
            raise torch.OutOfMemoryError(f"CUDA out of memory. {self.live} bytes of {self.limit}")
        return output


@contextmanager
def limited_updates(policy: Policy, limit: int | None) -> Iterator[LimitedMemory]:
    """Limits the bytes of calls of ``evaluate`` with grad, and of the backward passes within them."""
    memory, evaluate = LimitedMemory(limit), policy.evaluate

    def limited(*args: Any, **kwargs: Any) -> Iterator[Any]:
        if not torch.is_grad_enabled():
            yield from evaluate(*args, **kwargs)
            return
        with memory:
            yield from evaluate(*args, **kwargs)

    policy.evaluate = limited
    yield memory
    del policy.evaluate


def trainer_of(name: str, output: Path) -> Trainer:
    settings: dict[str, Any] = {"output": str(output), "steps": 1, "runtime": {"device": "cpu"}}
    settings |= {
        "rollout": {"prompts_per_step": 2, "group_size": 4},
        "update": {"optimizer": {"lr": 1e-2, "eps": 1e-3}},
    }
    if name == "language":
        policy = tiny_language.policy_of("llama", lora={"rank": 2, "alpha": 2.0}, share_prefix=False)
        return Trainer(policy, {"vowels": vowels}, tiny_language.prompts_of("llama"), settings)
    policy = tiny_policies.policy_of("sd3")
    members = {"member": lambda samples: [float(sample.member) for sample in samples]}
    return Trainer(policy, members, tiny_policies.prompts_of("sd3"), settings)


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("name", ["language", "denoising"])
def test_update_is_the_same_in_halved_slices(name: str, tmp_path: Path) -> None:
    complete = trainer_of(name, tmp_path / "complete")
    before = weights(complete).clone()
    with limited_updates(complete.policy, None) as memory:
        complete.train()
    assert slice_limit(complete.policy) is None
    halved = trainer_of(name, tmp_path / "halved")
    with limited_updates(halved.policy, int(memory.peak * 0.6)) as limited:
        halved.train()
    limit = slice_limit(halved.policy)
    assert limit in (1, 2, 3, 4)
    assert limited.limit is not None
    assert limited.peak > limited.limit  # it ran out
    moved = float((weights(complete) - before).abs().max())
    assert float((weights(halved) - weights(complete)).abs().max()) < 1e-4 * moved + 1e-6
    assert moved > 1e-3


@pytest.mark.nightly
def test_a_row_that_does_not_fit_raises_with_the_settings_to_lower(tmp_path: Path) -> None:
    trainer = trainer_of("language", tmp_path)
    with (
        limited_updates(trainer.policy, 1000),
        pytest.raises(OutOfMemoryError, match=r"out of memory in the update at step 1: lower policy"),
    ):
        trainer.train()
    assert slice_limit(trainer.policy) == 1
