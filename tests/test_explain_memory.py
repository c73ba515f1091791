"""What a plan says a process holds is what live modules, gradients and moments take; what it says passes take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from mmgrpo.config.loading import load_config, validated
from mmgrpo.explain.memory import gathered_bytes, held_by
from mmgrpo.explain.metering import ran
from mmgrpo.explain.scale import Machine, planned, scale_rows
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.run.parts import held
from mmgrpo.run.processes import Job
from tests.test_sharding import on_two


class Block(nn.Linear):
    """3 by 2 weights and 3 numbers."""


class Blocks(nn.Module):
    """Two blocks, and a layer in none of them."""

    _no_split_modules = ("Block",)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(2, 3), Block(2, 3)])
        self.head = nn.Linear(3, 1)


def test_bytes_by_hand() -> None:
    module = Blocks()
    whole = held_by([module], averages=True, copied=[module], num_copies=1)
    # 2 (6 + 3) + 4 = 22 numbers of 4 bytes; 6 parameters whose steps are counted
    assert (whole.trained, whole.gradients, whole.average, whole.copies) == (88, 88, 88, 88)
    assert (whole.moments, whole.total) == (2 * 88 + 6 * 4, 4 * 88 + 2 * 88 + 24)
    parts = held_by([module], sharded=[module], num_processes=2)
    # of 3 rows the larger part is 2: 2 (2 * 2 + 2) + 4 = 16 numbers
    assert parts.trained == 64
    assert gathered_bytes([module]) == 2 * 9 * 4
    module.requires_grad_(False)
    module.blocks[0].bias.requires_grad_(True)  # an adapter, as it were: whole beside frozen weights in parts
    parts = held_by([module], sharded=[module], num_processes=2)
    assert (parts.trained, parts.frozen) == (12, 4 * (4 + 6 + 4))


def test_bytes_and_operations_of_a_pass_by_hand() -> None:
    layer, x_BD = nn.Linear(4, 3, bias=False), torch.ones(2, 4)
    found = ran(lambda: layer(x_BD), [layer.weight, x_BD])
    assert (found.num_bytes, found.flops) == (2 * 3 * 4, 2 * 2 * 4 * 3)


LORAS: tuple[dict[str, Any] | None, ...] = (None, {"rank": 4, "alpha": 8.0})


def settings_with(lora: dict[str, Any] | None) -> dict[str, Any]:
    config = load_config("quickstart/arithmetic-text")
    assert config.policy is not None
    return {key: one for key, one in {**config.policy.numbers, "lora": lora}.items() if key != "name"}


def test_what_stays_is_what_a_live_policy_holds() -> None:
    config = load_config("quickstart/arithmetic-text")
    for lora in LORAS:
        named = settings_with(lora)
        policy = LanguagePolicy.from_config(named)
        optimizer = torch.optim.AdamW(policy.trainable)
        for parameter in policy.trainable:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        plan = planned(validated({**config.model_dump(), "policy": {"name": "language", **named}}))
        held = plan.memory(1, sharded=False).held
        assert held.trained == sum(p.nbytes for p in policy.trainable)
        assert held.frozen == sum(p.nbytes for p in policy.model.parameters() if not p.requires_grad)
        assert held.moments == sum(one.nbytes for state in optimizer.state.values() for one in state.values())


def held_in_parts(folder: Path, names: Sequence[str]) -> list[tuple[int, int]]:
    """Bytes of trained and of frozen weights that this process of two holds, of all weights trained and of adapters."""
    os.environ.update({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"})
    job, found = Job(Accelerator()), []
    assert job.sharding is not None
    for lora in LORAS:
        policy = LanguagePolicy.from_config(settings_with(lora))
        policy.shard(job.sharding.shard)
        sizes = [(whole.requires_grad, held([whole])[0].nbytes) for whole in policy.model.parameters()]
        found.append((sum(size for trains, size in sizes if trains), sum(size for trains, size in sizes if not trains)))
    return found


@pytest.mark.nightly
def test_what_stays_is_what_each_of_two_processes_holds_in_parts(tmp_path: Path) -> None:
    found = on_two(tmp_path, (), function="held_in_parts", module="tests.test_explain_memory")
    config = load_config("quickstart/arithmetic-text")
    for lora, (trained, frozen) in zip(LORAS, found, strict=True):
        plan = planned(validated({**config.model_dump(), "policy": {"name": "language", **settings_with(lora)}}))
        said = plan.memory(2, sharded=True).held
        assert (said.trained, said.frozen) == (trained, frozen)


def test_a_plan_is_told() -> None:
    plan = planned(load_config("quickstart/arithmetic-text"), prompt_tokens=8)
    said = dict(scale_rows(plan, 3, Machine(), sharded=True))
    assert said["processes"] == "3, the model in parts (FSDP2): predicted, not measured"
    assert "GiB at the most on each: trained" in said["memory"]
    assert plan.seconds(1, Machine(), sharded=True).gathers == plan.seconds(1, Machine(), sharded=True).sums == 0
    assert plan.seconds(2, Machine(), sharded=True).gathers == pytest.approx(
        2 * plan.seconds(2, Machine(link_gb_s=100.0), sharded=True).gathers
    )


@pytest.mark.nightly
def test_the_page_has_what_is_predicted_now() -> None:
    from benchmarks.scale import table
    from mmgrpo.config.loading import CONFIGS

    page = (CONFIGS.resolve().parent / "docs" / "scale.md").read_text()
    assert "\n".join(table()) in page
